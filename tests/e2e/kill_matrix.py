"""Seeded runs, each with one kill at a random moment, and a table of how they ended.

python -m tests.e2e.kill_matrix [--runs N] [--seed S] [--first I] [--out FILE]

Run i kills the ith kind in turn; its seed gives the moment: so long after a step was committed, or,
for step 0, after its processes were started, so that starts and warm-ups are hit too. Results are
appended to FILE.jsonl run by run, and FILE is written anew from all of them: a sweep may be done in
pieces.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from broker import embedded
from broker.embedded import EmbeddedNats
from broker.settings import NatsSettings
from tests.e2e.cluster import ROLES, Cluster
from tests.e2e.kills import KINDS, Deployment, Postgres, examine

STEPS = 100
"""Several seconds' worth, so that a moment after a step is one in the middle of the run."""
OPTIONS: dict[str, object] = {
    "steps": STEPS,
    "warmup": 60,
    "checkpoint_every": 5,
    "eval_items": 4,
    # Postgres is away for 20 s, perhaps just when a process starts.
    "connect_wait_s": 60,
    # Every group counts, so that each run is as long as the last. A step of 20 ms outruns its weights on
    # their way: groups come too late without any kill, and a sample is not to be given up for it.
    "run_extra": "max_staleness = 2\nmax_attempts = 10\nno_progress_steps = 1000",
    "extra": "[policy]\nadmit = []",
}
EARLY = 0.25
"""Share of the runs that die before their first step."""
START_S = 6.0
"""Within this after its processes were started, those do."""
STEP_S = 0.2
"""Within this after a step was committed, a run dies that is to die there."""
END_LIMIT_S = 120.0
ALONE = {"rollout", "learner"}
"""They bring torch, and are always processes of their own."""


@dataclass(frozen=True)
class Case:
    """What is killed, and when."""

    number: int
    seed: int
    kind: str
    after_step: int
    delay_s: float


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    case: Case
    killed_at_step: int
    """The newest committed step at the kill."""
    next_step_s: float
    """From the kill to the next commit of a step."""
    redone: int
    groups: int
    trained: int
    wall_s: float
    problems: Sequence[str] = field(default=())


def case(number: int, seed: int) -> Case:
    """The ith case of a sweep. Pure: the same for the same numbers."""
    rng = random.Random(f"{seed}/{number}")
    after_step = 0 if rng.random() < EARLY else rng.randrange(1, STEPS - 1)
    delay_s = rng.uniform(0, STEP_S if after_step else START_S)
    return Case(number, seed, KINDS[number % len(KINDS)], after_step, delay_s)


def processes_for(kind: str) -> list[str]:
    """What is not killed alone need not cost a process of its own."""
    if kind == "all":
        return list(ROLES)
    apart = [role for role in ROLES if role in ALONE or role == kind]
    return [*apart, ",".join(role for role in ROLES if role not in apart)]


@contextmanager
def deployed(
    directory: Path, postgres: Postgres, run: str, **options: object
) -> Iterator[Deployment]:
    """A run on a NATS server of its own and a database of its own; nothing is started yet."""
    nats: EmbeddedNats = embedded.start(directory / "nats", NatsSettings(sync_interval="2m"))
    try:
        with (
            postgres.database(run.replace("-", "_")) as url,
            Cluster(directory, nats_url=nats.url, postgres_url=url, run=run, **options) as cluster,
        ):
            yield Deployment(cluster, nats, postgres)
    finally:
        nats.stop()


def try_out(one: Case, directory: Path, postgres: Postgres) -> Outcome:
    """One run with one kill. An error of the run is an outcome, not an exception."""
    started = time.monotonic()
    rng = random.Random(one.delay_s)
    with deployed(directory, postgres, f"kill-{one.number}", **OPTIONS) as deployment:
        run = deployment.run
        run.start(*processes_for(one.kind))
        reached, recovered, problems = 0, float("nan"), []
        try:
            deployment.wait_step(one.after_step, limit_s=END_LIMIT_S)
            time.sleep(one.delay_s)
            reached, killed_at = deployment.step(), time.monotonic()
            with deployment.striking(one.kind, rng):
                deployment.wait_step(min(reached + 1, STEPS), limit_s=END_LIMIT_S)
                recovered = time.monotonic() - killed_at
            run.wait_end(limit_s=END_LIMIT_S)
        except AssertionError as error:
            problems = [str(error)]
        wall_s = time.monotonic() - started
        if problems:
            return Outcome(one, reached, recovered, 0, 0, 0, wall_s, problems)
        found = examine(deployment, STEPS)
        return Outcome(
            one,
            reached,
            recovered,
            found.redone,
            found.groups,
            found.trained,
            wall_s,
            found.problems,
        )


# --- the table ----------------------------------------------------------------------------------


HEAD = """\
# Kill matrix

One SIGKILL (Postgres: 20 s away) at a random moment of each run of real processes; {steps} steps of
4 groups of 4 answers, a checkpoint every {every} steps. {good} of {all} runs completed with all nine
proofs, no group lost or trained twice, and every redone step at its committed digest.

Made by `python -m tests.e2e.kill_matrix --runs N --seed 11 --out FILE`; the test suite with `--full`
runs the first 100 of this seed.

Groups under way at a kill go on, so the next step may come at once. What a killed rollout worker or
verifier held is delivered again after 30 s: that shows in the time of the whole run.

A start waits 60 s for its services, longer than Postgres is away. A sample has ten attempts: steps take
20 ms here, so groups come too late without any kill. Runs 0 to 99 of seed 11 had the usual three; in run
93 a sample was given up after them, as configured, and that run was repeated with ten.

| killed | runs | all holds | s to the next step, median | longest | run s, median | steps redone |
|---|---|---|---|---|---|---|
"""


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: the sum first, then a line a run."""
    ended = sorted(outcomes, key=lambda o: (o.case.seed, o.case.number))
    good = [o for o in ended if not o.problems]
    lines = HEAD.format(
        steps=STEPS, every=OPTIONS["checkpoint_every"], good=len(good), all=len(ended)
    ).splitlines()
    for kind in KINDS:
        of_kind = [o for o in ended if o.case.kind == kind]
        if of_kind:
            waits = [o.next_step_s for o in of_kind]
            lines.append(
                f"| {kind} | {len(of_kind)} | {sum(not o.problems for o in of_kind)} "
                f"| {statistics.median(waits):.1f} | {max(waits):.1f} "
                f"| {statistics.median(o.wall_s for o in of_kind):.1f} "
                f"| {sum(o.redone for o in of_kind)} |"
            )
    lines += [
        "",
        "A kill at step 0 falls in the start or the warm-up, which then is done again.",
        "",
        "| run | killed | at step | + s | next step after s | redone | groups | trained | run s | outcome |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {o.case.seed}/{o.case.number} | {o.case.kind} | {o.killed_at_step} | {o.case.delay_s:.2f} "
        f"| {o.next_step_s:.1f} | {o.redone} | {o.groups} | {o.trained} | {o.wall_s:.1f} "
        f"| {'; '.join(o.problems).replace(chr(10), ' ')[:200] or 'holds'} |"
        for o in ended
    ]
    return "\n".join(lines) + "\n"


def read(path: Path) -> list[Outcome]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [Outcome(**(row | {"case": Case(**row["case"])})) for row in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.kill_matrix", description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=len(KINDS), help="how many (default: each kind once)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--out", type=Path, help="the table; printed when not given")
    asked = parser.parse_args(arguments)
    results = asked.out.with_suffix(".jsonl") if asked.out else None
    outcomes = read(results) if results else []
    with tempfile.TemporaryDirectory(prefix="sluice-kills-") as folder:
        postgres = Postgres(Path(folder) / "postgres")
        try:
            for number in range(asked.first, asked.first + asked.runs):
                one = case(number, asked.seed)
                outcome = try_out(one, Path(folder) / f"run-{number}", postgres)
                outcomes.append(outcome)
                print(json.dumps(asdict(outcome)), file=sys.stderr, flush=True)
                if results is not None:
                    with results.open("a") as file:
                        file.write(json.dumps(asdict(outcome)) + os.linesep)
        finally:
            postgres.stop()
    if asked.out:
        asked.out.write_text(table(outcomes))
    else:
        print(table(outcomes))
    return int(any(outcome.problems for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
