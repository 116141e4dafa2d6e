"""Whatever an engine returns, only groups that keep every promise are passed on as good."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from broker.errors import BadConfiguration, Poison
from broker.memory import MemoryBus, MemoryServer
from broker.messages import GroupGenerated, Sampling, VersionSpan
from broker.seeds import row_seed
from broker.serve import serve
from broker.telemetry import Health
from broker.topology import ROLLOUT_TRAIN, Log
from tests.builders import a_key, a_request
from tests.rollout_models import a_folder
from workers.rollout.answers import Group, Texts, fault
from workers.rollout.engine import Answer, EngineError, Job, Refused, Result
from workers.rollout.ledger_view import LedgerView
from workers.rollout.service import Service
from workers.rollout.weights import NewestWeights, PinnedWeights, loader

SAMPLING = Sampling(temperature=1.0, max_tokens=4)
GOOD = Answer(
    token_ids=np.array([3, 4, 2], dtype=np.int32),
    logprobs=np.array([-0.5, -0.25, 0.0], dtype=np.float32),
    finish_reason="stop",
    spans=(VersionSpan(version=3, first=0, end=1), VersionSpan(version=4, first=1, end=3)),
    started_at_us=1,
    finished_at_us=2,
)


def a_group(tmp_path: Path) -> Group:
    return Group(Texts(a_folder(tmp_path)), run_seed=7, engine="fake", worker="w")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"logprobs": np.array([-0.5, np.nan, 0], dtype=np.float32)}, "not finite or above 0"),
        ({"logprobs": np.array([-0.5, -np.inf, 0], dtype=np.float32)}, "not finite or above 0"),
        ({"logprobs": np.array([-0.5, 0.5, 0], dtype=np.float32)}, "not finite or above 0"),
        ({"logprobs": np.array([-0.5, 0], dtype=np.float32)}, "2 log-probabilities for 3 tokens"),
        ({"token_ids": np.zeros(0, np.int32)}, "0 tokens; expected 1 to 4"),
        ({"token_ids": np.zeros(5, np.int32)}, "5 tokens; expected 1 to 4"),
        ({"spans": ()}, "no version is known"),
        ({"spans": (VersionSpan(version=2, first=0, end=3),)}, "requested at least 3"),
    ],
)
def test_an_answer_that_breaks_a_promise_fails_its_group_with_the_reason(
    tmp_path: Path, change: dict[str, object], reason: str
):
    request = a_request(size=2, sampling=SAMPLING, requested_version=3)
    bad = replace(GOOD, **change)

    with pytest.raises(Poison, match=f"answer 1: .*{reason}"):
        a_group(tmp_path).generated(request, (GOOD, bad))


def test_a_group_with_an_answer_too_few_is_failed():
    request = a_request(size=2, sampling=SAMPLING, requested_version=3)

    assert fault(request, (GOOD,)) == "1 answers; expected 2"
    assert fault(request, (GOOD, GOOD)) == ""


def test_an_evaluation_answered_by_a_newer_version_is_failed():
    key = a_key("v000003-math-00000-0", purpose="eval", request_seq=1)
    request = a_request(size=1, group=key, mixture=None, sampling=SAMPLING, requested_version=3)

    assert "requested exactly 3" in fault(request, (GOOD,))
    pinned = replace(GOOD, spans=(VersionSpan(version=3, first=0, end=3),))
    assert fault(request, (pinned,)) == ""


def test_text_leaves_out_the_end_token_but_nothing_that_was_said(tmp_path: Path):
    texts = Texts(a_folder(tmp_path))
    ordinary_end = replace(GOOD, token_ids=np.array([3, 4, 5], dtype=np.int32))
    cut = replace(ordinary_end, finish_reason="length")

    assert texts.of([GOOD, ordinary_end, cut]) == ["ab", "ab", "abc"]


def test_a_model_folder_without_tokenizer_is_refused_by_name(tmp_path: Path):
    with pytest.raises(BadConfiguration, match=f"{tmp_path}/tokenizer.json"):
        Texts(tmp_path)


def test_no_two_answers_of_a_run_share_a_seed(tmp_path: Path):
    group = a_group(tmp_path)
    jobs = [group.job(a_request(f"{n:08d}-0-{a}", size=8)) for n in range(200) for a in range(2)]

    seeds = [seed for job in jobs for seed in job.seeds]

    assert len(set(seeds)) == len(seeds) == 3200
    assert jobs[0].seeds[3] == row_seed(7, "00000000-0-0", 3)
    assert all(0 <= seed < 2**63 for seed in seeds)


class Engine:
    """Breaks so many times, then answers as told."""

    name = "fake"
    version: int | None = 0
    rows = sampled = 0

    def __init__(self, breaks: int, result: Result) -> None:
        self._breaks = breaks
        self._result = result

    async def generate(self, jobs: Sequence[Job]) -> list[Result]:
        if self._breaks:
            self._breaks -= 1
            raise EngineError("out of memory")
        return [self._result for _ in jobs]

    async def load(self, weights: Path, version: int) -> None:
        self.version = version

    async def close(self) -> None:
        """Holds nothing."""


def a_service(bus: MemoryBus, engine: Engine, group: Group) -> Service:
    ledger, load = LedgerView(bus), loader(bus, Path("unused"), 1.0)
    return Service(
        engine=engine,
        newest=NewestWeights(engine, ledger, load),
        pinned=PinnedWeights(lambda: engine, ledger, load, 1.0),
        ledger=ledger,
        group=group,
        weights_wait_s=1.0,
        health=Health("rollout"),
    )


@pytest.mark.parametrize(
    ("breaks", "result", "status", "reason"),
    [
        (0, (GOOD,), "ok", ""),
        (1, (GOOD,), "ok", ""),
        (9, (GOOD,), "failed", "out of memory"),
        (0, Refused("too long"), "failed", "too long"),
        (0, (GOOD, GOOD), "failed", "engine fake: 2 answers; expected 1"),
    ],
)
async def test_a_group_ends_whatever_the_engine_does(
    tmp_path: Path, breaks: int, result: Result, status: str, reason: str
):
    bus, stop = MemoryBus(MemoryServer(), "t"), asyncio.Event()
    group = a_group(tmp_path)
    service = a_service(bus, Engine(breaks, result), group)
    await bus.publish(a_request(size=1, sampling=SAMPLING))
    serving = asyncio.create_task(
        serve(
            bus, ROLLOUT_TRAIN, service.train, fail=group.failed, slots=4, health=service.health,
            stop=stop, delay_s=lambda deliveries: 0.0,
        )
    )  # fmt: skip
    cursor = await bus.cursor(Log.GENERATED, 0)

    (stored,) = await cursor.read(1, 10)
    stop.set()
    await serving

    event = stored.event()
    assert isinstance(event, GroupGenerated)
    assert event.status == status
    assert reason in event.reason
    assert (await bus.state(Log.DEAD)).messages == (status == "failed")
