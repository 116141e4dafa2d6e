"""Role processes of one machine: started, watched, started again when they die, and ended.

Each writes to a log file of its own, and dies with the supervisor.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from broker.errors import SluiceError

SETTLED_S = 60.0
"""A process that lived this long is not part of a crash loop."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
TAIL_LINES = 12

log = structlog.get_logger()


class RoleFailed(SluiceError):
    """A role dies again and again: the run cannot go on."""


@dataclass(frozen=True)
class Death:
    at_s: float
    code: int
    progress: int
    """How much the logs held by then."""


@dataclass
class CrashLoop:
    """Decides when dying again is hopeless: so many deaths in a minute, and nothing moved meanwhile.

    A refusal counts however long ago it was: on a slow machine a start alone takes a minute.
    """

    window_s: float = SETTLED_S
    limits: Mapping[int, int] = field(default_factory=lambda: {2: 2})
    """Exit code -> deaths; a refused configuration seldom mends itself."""
    limit: int = 5
    deaths: list[Death] = field(default_factory=list[Death])

    def record(self, death: Death) -> bool:
        """Whether this death closes a crash loop."""
        self.deaths.append(death)
        since = death.at_s - self.window_s
        self.deaths = [d for d in self.deaths if d.at_s >= since or d.code in self.limits]
        still = [d for d in self.deaths if d.progress == death.progress]
        return len(still) >= self.limits.get(death.code, self.limit)

    def pause_s(self) -> float:
        """Before the next start; doubles with each death of the last minute."""
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (len(self.deaths) - 1))


@dataclass(frozen=True)
class Job:
    """What to run."""

    role: str
    number: int
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str]
    first_arguments: Sequence[str] = ()
    """Only for the first start: a restarted process does not begin an ended run anew."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.number}"


def worker_job(
    role: str, number: int, config: Path, runs: Path, logs: Path, *,
    environment: Mapping[str, str], resume: bool = False,
) -> Job:  # fmt: skip
    command = [sys.executable, "-m", "ops.cli", "worker", role, str(config), "--runs", str(runs)]
    return Job(
        role=role,
        number=number,
        command=command,
        log=logs / f"{role}-{number}.log",
        environment={**os.environ, **environment, "SLUICE_PARENT": str(os.getpid())},
        first_arguments=("--resume",) if resume else (),
    )


class Changed(Protocol):
    def __call__(self) -> None: ...


class Child:
    """One job kept running until it is done."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.process: asyncio.subprocess.Process | None = None
        self.starts = 0
        self.done = False

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        process = self.process
        return process.pid if process is not None and process.returncode is None else None

    async def keep(
        self, *, progress: Callable[[], int], is_over: Callable[[int], bool], changed: Changed
    ) -> None:
        """Run it until `is_over` accepts its exit code; RoleFailed when it dies too often."""
        loop = CrashLoop()
        clock = asyncio.get_running_loop().time
        while True:
            code = await self._run_once(changed)
            if is_over(code):
                self.done = True
                changed()
                return
            log.warning("role_ended", role=self.job.name, code=code, starts=self.starts)
            if loop.record(Death(clock(), code, progress())):
                raise RoleFailed(
                    f"{self.job.name} ended {len(loop.deaths)} times without progress between, the last "
                    f"time with {describe(code)}; the end of {self.job.log}:\n{tail(self.job.log)}"
                )
            await asyncio.sleep(loop.pause_s())

    async def _run_once(self, changed: Changed) -> int:
        extra = self.job.first_arguments if self.starts == 0 else ()
        self.starts += 1
        with self.job.log.open("ab") as output:
            # A session of its own: Ctrl-C at the terminal is for the supervisor to hand on.
            self.process = await asyncio.create_subprocess_exec(
                *self.job.command,
                *extra,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(self.job.environment),
                start_new_session=True,
            )
        changed()
        try:
            return await self.process.wait()
        finally:
            self.signal(signal.SIGTERM)  # only when we are cancelled; else it has ended

    def signal(self, signum: int) -> None:
        if self.pid is not None and self.process is not None:
            self.process.send_signal(signum)

    async def end(self, limit_s: float) -> None:
        """Ask it to leave, then make it."""
        self.signal(signal.SIGTERM)
        if self.process is None:
            return
        try:
            await asyncio.wait_for(self.process.wait(), limit_s)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.process.wait()


def describe(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    meaning = {
        1: "a bug",
        2: "a refused configuration or an unreachable service",
        3: "replaced by another",
    }
    return f"code {code}" + (f" ({meaning[code]})" if code in meaning else "")


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"({error})"
