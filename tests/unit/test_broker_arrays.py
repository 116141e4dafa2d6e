"""Arrays travel bit for bit, and never disagree with their dtype and shape."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from broker.arrays import ITEM_BYTES, Array, logprob_array, pack, token_array, unpack

DTYPES = sorted(ITEM_BYTES)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_any_array_survives_the_journey_bit_for_bit(dtype: str, shape: list[int], seed: int):
    size = int(np.prod(shape)) * ITEM_BYTES[dtype]
    values = np.frombuffer(np.random.default_rng(seed).bytes(size), dtype=dtype).reshape(shape)

    found = unpack(pack(values, dtype))  # type: ignore[arg-type]

    assert found.shape == tuple(shape)
    assert found.tobytes() == values.tobytes()


def test_bytes_are_little_endian_whatever_the_source_was():
    big_endian = np.array([1, 2], dtype=">i8")

    assert pack(big_endian, "<i4").data == b"\x01\0\0\0\x02\0\0\0"


def test_a_non_contiguous_array_is_packed_in_its_own_order():
    every_other = np.arange(6, dtype=np.int32)[::2]

    assert unpack(token_array(every_other)).tolist() == [0, 2, 4]


def test_an_unpacked_array_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        unpack(logprob_array([-0.5]))[0] = 0.0


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        ("<i4", (2,), b"\0" * 7),
        ("<i4", (2,), b"\0" * 9),
        ("<f4", (-1,), b""),
        ("<f4", (-2, -2), b"\0" * 16),
        ("<f8", (1,), b"\0" * 8),
        ("<i4", (2**40, 2**40), b""),
    ],
)
def test_bytes_that_do_not_fit_dtype_and_shape_are_refused(dtype: str, shape: tuple, data: bytes):
    with pytest.raises(ValidationError):
        Array.model_validate({"dtype": dtype, "shape": shape, "data": data})


def test_the_length_of_an_array_is_its_first_dimension():
    assert len(token_array([[1, 2], [3, 4], [5, 6]])) == 3
    assert len(token_array([])) == 0
    assert len(pack(np.float32(1), "<f4")) == 0
