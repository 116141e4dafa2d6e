"""Program runs a second on one core: a sandbox of its own for each, started, fed, read and ended.

The peer is the same program under the same interpreter without any sandbox: what isolation costs.
"""

import subprocess
import sys
import time

from tests.bench.result import Result, side_by_side
from workers.verifiers.code import Code
from workers.verifiers.sandbox.process import Program

ROUNDS, RUNS = 5, 20
LIMIT = 20.0
SOURCE = "n = int(input())\nprint(sum(range(n)))\n"


def sandboxed() -> float:
    limits = Code().limits()
    started = time.perf_counter()
    for number in range(RUNS):
        with Program(SOURCE, "program", limits) as program:
            problem = program.compiled()
            found = program.run(f"{number}\n")
        if problem or found != f"{sum(range(number))}\n":
            raise ValueError(f"run {number}: {problem} {found!r}")
    return RUNS / (time.perf_counter() - started)


def bare() -> float:
    started = time.perf_counter()
    for number in range(RUNS):
        subprocess.run(
            [sys.executable, "-sSP", "-c", SOURCE],
            input=f"{number}\n".encode(),
            capture_output=True,
            check=True,
            timeout=60,
        )
    return RUNS / (time.perf_counter() - started)


def measure() -> list[Result]:
    ours, peer = side_by_side(sandboxed, bare, rounds=ROUNDS)
    return [Result("sandbox", "program runs", "runs/s", ours, peer, LIMIT, ROUNDS)]
