"""One sandboxed program: started, spoken with under limits, killed with everything that it started.

Blocking, for a grader process. Its memory stays flat whatever the program says: a program that says more
than its limit is killed at once, and nothing is read after a kill.
"""

import json
import marshal
import os
import secrets
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from workers.verifiers.sandbox import bwrap, plain, seccomp, watch
from workers.verifiers.sandbox.limits import START_S, STRETCH, Limits
from workers.verifiers.sandbox.pipes import Flood, Pipes

TICK_S = 0.05
REAP_S = 10.0
_BOOT = """# The program's side of the sandbox.
import marshal, os, sys
fd = int(sys.argv[1])
left = int.from_bytes(os.read(fd, 4), "little")
parts = []
while left:
    parts.append(os.read(fd, left) or sys.exit(1))
    left -= len(parts[-1])
exec(marshal.loads(b"".join(parts)))
"""


def _inside() -> bytes:
    path = Path(__file__).with_name("inside.py")
    code = compile(path.read_text(encoding="utf-8"), "inside.py", "exec", dont_inherit=True)
    return marshal.dumps(code)


_INSIDE = _inside()
"""What runs on the other side, compiled before graders fork: there it would cost more than all the rest."""


class SandboxBroken(Exception):
    """The sandbox did not come up: no fault of the program's."""


class Starved(Exception):
    """The machine was too busy to run the program: no fault of the program's."""


class Stopped(Exception):
    """The program is over, with the reason: it ended, or was killed for what it did."""


class Raised(Exception):
    """The program goes on, but this request gave no value."""


class Program:
    """A program in a sandbox of its own, as a context manager. mode: `calls`, or `program` for a script."""

    def __init__(self, source: str, mode: str, limits: Limits) -> None:
        self._limits = limits
        self._token = secrets.token_hex(8)
        self._pid: int | None = None
        self._reaper = 0
        self._queued_s = 0.0
        self.used_s = 0.0
        """Its own time so far: waited for, less what it waited for a processor."""
        size = limits.output_bytes
        self._pipes = Pipes(
            {"output": size, "errors": size, "results": size, "info": 4096}, ("input", "requests")
        )
        try:
            self._process = self._spawn()
        except BaseException:
            self._pipes.close()
            raise
        self._pipes.started()
        confinement = {
            "memory_bytes": limits.memory_bytes,
            "cpu_seconds": limits.cpu_seconds,
            "disk_bytes": limits.disk_bytes,
        }
        self._pipes.send("requests", _framed(_INSIDE))
        self._tell({"source": source, "mode": mode, "token": self._token, **confinement})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    # --- what the checker asks -------------------------------------------------------------------

    def compiled(self) -> str:
        """What the compiler objects to, or empty. Raises SandboxBroken if the sandbox is not up."""
        try:
            self._reply("hello", START_S)
        except Stopped as stopped:
            raise SandboxBroken(
                f"the sandbox did not start: {stopped}: {self._said()}"
            ) from stopped
        self._reaper = json.loads(self._pipes.outputs["info"].said)["child-pid"]
        self._pid = watch.program_of(self._reaper)
        # What it has waited before is no part of its own time, and must not be taken off it.
        self._queued_s = watch.queued_s(self._pid)
        return self._problem("compiled")

    def loaded(self) -> str:
        """What the program's own statements raised, or empty. In mode `calls`."""
        return self._problem("loaded")

    def ask(self, request: dict[str, object]) -> object:
        """The value that one request gives. Raises Raised, Stopped, Starved."""
        self._token = secrets.token_hex(8)
        if self._pipes.outputs["results"].said:
            raise Stopped("said something that nobody had asked for")
        self._tell({**request, "token": self._token})
        reply = self._reply("result", self._limits.seconds)
        if "value" not in reply:
            raise Raised(str(reply.get("problem", "no value"))[:300])
        try:
            return plain.value(reply["value"])
        except plain.Malformed as error:
            raise Stopped(f"forged a result: {error}") from error

    def run(self, text: str) -> str:
        """Standard output for one standard input, in mode `program`. Raises Stopped unless it ends with 0."""
        self._pipes.send("input", text.encode("utf-8", "replace"), last=True)
        self._until(lambda: False, self._limits.seconds, ends=True)
        status = self._process.wait(timeout=REAP_S)
        if status != 0:
            raise Stopped(f"ended with {_status(status)}: {self._said()}")
        return bytes(self._pipes.outputs["output"].said).decode("utf-8", "replace")

    def kill(self) -> None:
        """End the sandbox; nothing more is read. Waits for the process that we started.

        The sandbox's first process dies with that one, and all others with it, a moment later.
        """
        self._process.kill()
        self._pipes.close()
        self._process.wait(timeout=REAP_S)

    # --- how -------------------------------------------------------------------------------------

    def _spawn(self) -> subprocess.Popen[bytes]:
        theirs = self._pipes.theirs
        filter_fd = _in_memory(seccomp.program())
        arguments = ["-c", _BOOT, str(theirs["requests"]), str(theirs["results"])]
        try:
            return subprocess.Popen(
                bwrap.command(
                    self._limits, filter_fd=filter_fd, info_fd=theirs["info"], arguments=arguments
                ),
                stdin=theirs["input"],
                stdout=theirs["output"],
                stderr=theirs["errors"],
                pass_fds=(theirs["requests"], theirs["results"], theirs["info"], filter_fd),
                env={},
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxBroken(f"bwrap cannot be started: {error}") from error
        finally:
            os.close(filter_fd)

    def _tell(self, request: dict[str, object]) -> None:
        self._pipes.send("requests", _framed(marshal.dumps(request)))

    def _problem(self, kind: str) -> str:
        return str(self._reply(kind, self._limits.seconds).get("problem", ""))[:300]

    def _reply(self, kind: str, seconds: float) -> dict[str, object]:
        """The next line of the results, which must be of that kind and carry the newest token."""
        results = self._pipes.outputs["results"]
        self._until(lambda: b"\n" in results.said, seconds)
        line, _, rest = bytes(results.said).partition(b"\n")
        results.said[:] = rest
        results.seen = len(rest)
        try:
            reply = plain.decode(line)
        except plain.Malformed as error:
            raise Stopped(f"forged a result: {error}") from error
        if reply["at"] != kind or reply["token"] != self._token:
            raise Stopped(f"forged a result: a {reply['at'][:20]!r} that nobody had asked for")
        return reply

    def _until(self, done: Callable[[], bool], seconds: float, *, ends: bool = False) -> None:
        """Exchange with the program until done, or, with ends, until it has closed all its outputs.

        Raises Stopped when it ends before, floods, fills its folder or takes too long; Starved when it hardly
        got a processor in many times its seconds.
        """
        started, queued = time.monotonic(), self._queued_s
        own_s = 0.0
        try:
            while not done():
                goes_on = self._pipes.turn(TICK_S)
                waited = time.monotonic() - started
                # Sampled while it lives: afterwards nobody knows.
                self._queued_s = max(self._queued_s, watch.queued_s(self._pid))
                own_s = waited - (self._queued_s - queued)
                if not goes_on and not done():
                    if ends:
                        return
                    raise Stopped(f"ended with {_status(self._process.wait(timeout=REAP_S))}")
                self._check_files()
                if own_s >= seconds:
                    raise Stopped(f"exceeded {seconds:g} s")
                if waited >= STRETCH * seconds:
                    raise Starved(f"had {own_s:.1f} of {waited:.1f} s")
        except Flood as flood:
            raise Stopped(str(flood)) from flood
        finally:
            self.used_s += own_s if self._pid is not None else 0.0

    def _check_files(self) -> None:
        if self._reaper and watch.files_of(self._reaper, bwrap.WORK) > self._limits.files:
            raise Stopped(f"more than {self._limits.files} files")

    def _said(self) -> str:
        """The last line on standard error."""
        said = bytes(self._pipes.outputs["errors"].said[-2000:])
        return said.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


def _status(code: int) -> str:
    # bubblewrap tells a signal as 128 and its number, as a shell does.
    number = -code if code < 0 else code - 128
    return f"signal {number}" if code < 0 or code > 128 else f"status {code}"


def _in_memory(body: bytes) -> int:
    """A readable file descriptor with that content."""
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    os.write(fd, body)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
