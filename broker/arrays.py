"""numpy <-> bytes. The only place that knows dtype and byte order; sizes are checked on both ends."""

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

DType = Literal["<i4", "<f4", "<f2", "|u1"]
ITEM_BYTES: dict[str, int] = {"<i4": 4, "<f4": 4, "<f2": 2, "|u1": 1}
MAX_DIMENSIONS = 4
DTYPES = {name: np.dtype(name) for name in ITEM_BYTES}


class Array(BaseModel):
    """A dense array as it travels: raw little-endian bytes, row-major."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    dtype: DType
    shape: tuple[int, ...] = Field(max_length=MAX_DIMENSIONS)
    data: bytes

    @model_validator(mode="after")
    def _size_fits(self) -> "Array":
        expected = ITEM_BYTES[self.dtype]
        for dimension in self.shape:
            if dimension < 0:
                raise ValueError(f"shape {self.shape}: expected no negative dimension")
            expected *= dimension
        if len(self.data) != expected:
            raise ValueError(
                f"data has {len(self.data)} bytes; dtype {self.dtype} and shape {self.shape} need {expected}"
            )
        return self

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0


def pack(values: object, dtype: DType) -> Array:
    """Any array-like to its travelling form, cast to `dtype`."""
    return Array.model_validate(packed(values, dtype))


def packed(values: object, dtype: DType) -> dict[str, object]:
    """The same as fields, for a message that validates them as part of itself: many at once are quicker."""
    array = np.asarray(values, dtype=DTYPES[dtype], order="C")
    return {"dtype": dtype, "shape": array.shape, "data": array.tobytes()}


def unpack(array: Array) -> np.ndarray:
    """A read-only view on the travelled bytes, shape `array.shape`."""
    found = np.frombuffer(array.data, dtype=DTYPES[array.dtype])
    return found if len(array.shape) == 1 else found.reshape(array.shape)


def token_array(token_ids: object) -> Array:
    """Token ids as little-endian int32, shape (T,)."""
    return pack(token_ids, "<i4")


def logprob_array(logprobs: object) -> Array:
    """Natural-log probabilities as float32, shape (T,)."""
    return pack(logprobs, "<f4")
