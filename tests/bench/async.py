"""Synchronous against asynchronous steps when answers have a long tail of lengths, in simulated time.

What decides who waits for whom is what runs decide with: the dispatcher's `room` says how much is requested
ahead, the learner's `sweep` what is too old to train. Simulated are the engine (so many rows at once, a row
takes as long as its answer is long, weights change in flight), the trainer (a time per step) and the clock.
The ideal is a run in which engine or trainer, whichever takes longer, never waits.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from learner.windows import Member, Rules, sweep
from tests.bench.result import Result
from tests.learning import VOCABULARY, a_group
from workers.dispatcher.pacing import room

GROUPS, SIZE = 16, 8
ROWS = 32
"""Answers that the engine decodes at once."""
TOKEN_S = 0.02
"""A decoding step: what a row needs for a token, however many rows are decoded."""
MEAN, SPREAD, LONGEST = 600.0, 0.8, 4096
"""Answer lengths: log-normal with this mean and sigma, cut at the longest an answer may be."""
WARM_STEPS, STEPS, LAST_STEPS = 8, 40, 4
"""Before, within and after what is measured: a run that begins or ends has less under way."""
SEEDS = 5
LIMIT = 0.95


def answer_lengths(rng: np.random.Generator, count: int) -> np.ndarray:
    """(count,) float64, tokens."""
    return np.clip(rng.lognormal(np.log(MEAN) - SPREAD**2 / 2, SPREAD, count), 1, LONGEST)


@dataclass
class Group:
    number: int
    lengths: list[int]
    open: int = SIZE
    version_min: int = 1 << 30
    """Of the answers that were begun."""


@dataclass
class World:
    """A run in progress: what is requested, decoded, waiting to be trained, and trained."""

    eta: int
    train_s: float
    rng: np.random.Generator
    now: float = 0.0
    version: int = 0
    outstanding: int = 0
    requested: int = 0
    stale: int = 0
    trained: int = 0
    busy_until: float = 0.0
    waiting: deque[tuple[Group, int]] = field(default_factory=deque)
    """Answers for which no row is free."""
    decoding: list[tuple[float, int, Group]] = field(default_factory=list)
    """Heap of (when it ends, number, group)."""
    done: deque[Group] = field(default_factory=deque)
    training: int | None = None
    """How many groups of the window in training are still to end."""
    committed: list[tuple[float, int]] = field(default_factory=list)
    """When, and how many groups were trained until then."""

    def request(self) -> None:
        more = room(
            outstanding=self.outstanding,
            pace=self.eta,
            bundles_per_step=GROUPS,
            steps_left=WARM_STEPS + STEPS + LAST_STEPS - len(self.committed),
        )
        for _ in range(more):
            self.requested += 1
            group = Group(self.requested, [int(n) for n in answer_lengths(self.rng, SIZE)])
            self.waiting.extend((group, length) for length in group.lengths)
        self.outstanding += more

    def decode(self) -> None:
        """Rows that are free take the next answers."""
        while self.waiting and len(self.decoding) < ROWS:
            group, length = self.waiting.popleft()
            group.version_min = min(group.version_min, self.version)
            ends = self.now + length * TOKEN_S
            heapq.heappush(self.decoding, (ends, group.number * SIZE + group.open, group))

    def plan(self) -> None:
        """The next window, if it is complete and the trainer is free."""
        if self.training is not None or len(self.done) < GROUPS:
            return
        window = [self.done.popleft() for _ in range(GROUPS)]
        members = [
            Member(str(g.number), str(g.number), "d", g.number, annotated(g)) for g in window
        ]
        swept = sweep(members, Rules(self.eta, VOCABULARY), version=self.version)
        self.stale += len(swept.dropped)
        self.trained += len(swept.kept)
        self.training = GROUPS
        self.busy_until = self.now + self.train_s * len(swept.kept) / GROUPS

    def advance(self) -> None:
        """To the next thing that happens."""
        next_answer = self.decoding[0][0] if self.decoding else float("inf")
        next_commit = self.busy_until if self.training is not None else float("inf")
        self.now = min(next_answer, next_commit)
        if next_commit <= next_answer:
            self.version += 1
            self.committed.append((self.now, self.trained))
            self.outstanding -= self.training or 0
            self.training = None
            return
        _, _, group = heapq.heappop(self.decoding)
        group.open -= 1
        if group.open == 0:
            self.done.append(group)


def annotated(group: Group):
    """The group as the learner's sweep sees it."""
    return a_group(f"{group.number:08d}-0-0", rewards=(1.0, 0.0), version=group.version_min)


def groups_per_s(eta: int, train_s: float, seed: int) -> tuple[float, float]:
    """Trained groups a second once the run is under way, and the share of groups dropped as stale."""
    world = World(eta, train_s, np.random.default_rng(seed))
    while len(world.committed) < WARM_STEPS + STEPS:
        world.request()
        world.decode()
        world.plan()
        world.advance()
    (began, before), (ended, after) = world.committed[WARM_STEPS - 1], world.committed[-1]
    return (after - before) / (ended - began), world.stale / world.requested


def generation_s() -> float:
    """Seconds of a step's generation with every row busy all the time."""
    mean = answer_lengths(np.random.default_rng(0), 200_000).mean()
    return float(mean) * GROUPS * SIZE * TOKEN_S / ROWS


def measure() -> list[Result]:
    generation = generation_s()
    results: list[Result] = []
    for share in (0.5, 1.0, 2.0):
        train = share * generation
        ideal = GROUPS / max(train, generation)
        for eta in (0, 2):
            found = [groups_per_s(eta, train, seed) for seed in range(SEEDS)]
            reached = float(np.median([rate / ideal for rate, _ in found]))
            stale = float(np.median([dropped for _, dropped in found]))
            what = f"training {share:g} x generation, eta {eta}"
            results.append(
                Result(
                    "async", f"share of the ideal, {what}", "share", reached,
                    limit=LIMIT if eta == 2 else None, rounds=SEEDS,
                )
            )  # fmt: skip
            results.append(Result("async", f"stale, {what}", "share", stale, rounds=SEEDS))
    return results
