"""Milliseconds a policy takes for a window of 64 x 8 answers of 1,024 tokens, by preset, on one core.

From verified groups as they come from the log to annotations as they are published: arrays unpacked,
groups judged, the window decided, token weights packed; with the garbage collector as a worker has it.
The peer is `uniform`, the least there is to do.
"""

import statistics
import time

import numpy as np

from broker.arrays import logprob_array
from broker.messages import GroupVerified
from ops.worker import tame_collector
from tests.bench.result import Result
from tests.builders import a_generation
from tests.policy_builders import a_group_event
from workers.policies.group import from_event
from workers.policies.presets import PRESETS
from workers.policies.program import Memory, Program
from workers.policies.settings import PolicySettings

GROUPS, SIZE, TOKENS = 64, 8, 1024
ROUNDS = 9
LIMIT_MS = 20.0


def measure() -> list[Result]:
    window = a_window()
    tame_collector()
    programs = {name: Program(PolicySettings(preset=name)) for name in sorted(PRESETS)}
    for program in programs.values():
        decide(program, window, 0, {})
    took: dict[str, list[float]] = {name: [] for name in programs}
    memories: dict[str, Memory] = {name: {} for name in programs}
    for number in range(1, ROUNDS + 1):
        # In turn, so that a change of the machine's pace meets all of them.
        for name, program in programs.items():
            took[name].append(decide(program, window, number, memories[name]))
    peer = statistics.median(took["uniform"])
    return [
        Result(
            "policy", f"{name}: window of {GROUPS} x {SIZE} x {TOKENS} tokens", "ms",
            statistics.median(times), peer, limit=LIMIT_MS, rounds=ROUNDS, more_is_better=False,
        )
        for name, times in took.items()
    ]  # fmt: skip


def a_window(seed: int = 0) -> list[GroupVerified]:
    """Verified groups, solved at every rate, of answers of one length."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(1, GROUPS + 1):
        scores = (rng.random(SIZE) < number / GROUPS).astype(float).tolist()
        classes = [0 if score else int(rng.integers(1, 4)) for score in scores]
        event = a_group_event(number, scores, classes=classes, key=f"m:1:{number}")
        answers = [
            a_generation(row, tokens=TOKENS, logprobs=logprob_array(-rng.exponential(0.5, TOKENS)))
            for row in range(SIZE)
        ]
        found.append(event.model_copy(update={"generations": tuple(answers)}))
    return found


def decide(program: Program, window: list[GroupVerified], number: int, memory: Memory) -> float:
    """Processor time, in milliseconds, on the one thread that there is."""
    began = time.process_time()
    judged = [program.judge(from_event(event), memory) for event in window]
    program.decide([one for one in judged if not one.reason], number, memory)
    return 1000 * (time.process_time() - began)
