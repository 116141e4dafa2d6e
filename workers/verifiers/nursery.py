"""Where graders are born: a process that has imported what they need and forks one in milliseconds.

What few answers need (sympy) it imports in its first quiet second, so that starting is quick. It keeps its
children as zombies until told to end them, so a process id is never signalled after it was given to somebody
else. It dies with its owner, and its children die with it.
"""

import asyncio
import ctypes
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from broker import frames
from workers.verifiers import registry
from workers.verifiers.grader import start_in_fork
from workers.verifiers.protocol import GraderBroken

START_S = 60.0
"""Limit for importing; one for the rest of the control channel is below."""
CONTROL_S = 10.0
PRELOAD = tuple(path.partition(":")[0] for path in registry.BUILTIN.values())
PRELOAD_LATER = ("math_verify",)
QUIET_S = 1.0
_PR_SET_PDEATHSIG = 1
_ROOT = Path(__file__).resolve().parents[2]
_KNOWN = frozenset({"PATH", "HOME", "TMPDIR", "TZ", "LANG", "LD_LIBRARY_PATH"})
_KNOWN_PREFIXES = ("LC_", "PYTHON")


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    """A grader's: enough to find its programs, and none of the addresses and secrets of its worker."""
    kept = {k: v for k, v in ours.items() if k in _KNOWN or k.startswith(_KNOWN_PREFIXES)}
    path = os.pathsep.join(filter(None, (str(_ROOT), ours.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


class Grader:
    """One grader process and the connection to it."""

    def __init__(
        self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = pid
        self.reader = reader
        self.writer = writer
        self.calls = 0
        self.ready: dict[bytes, frames.Frame] = {}
        """What it has told of verifiers that it has built, by specification: it need not say so again."""
        self.told_cpu_s = 0.0
        """Processor time it had used when it sent its last frame."""
        self.told_at_s = 0.0
        """When that came, or the call began."""

    def cpu_s(self) -> float:
        """Processor time used so far; 0 when the process is gone."""
        fields = self._stat()
        ticks = int(fields[11]) + int(fields[12]) if fields else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def wants_processor(self) -> bool:
        """Whether it is computing, or would be if the machine were less busy."""
        fields = self._stat()
        return bool(fields) and fields[0] == "R"

    def _stat(self) -> list[str]:
        """Fields of /proc/PID/stat from the state on (see proc(5)); empty when the process is gone."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return []


class Nursery:
    """Owner's end: starts the process, asks it for graders, ends them."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int:
        """Of the nursery process; 0 when there is none."""
        return self._process.pid if self._process else 0

    async def spawn(self) -> Grader:
        """A fresh grader. A nursery that has died is replaced once; GraderBroken when that fails too."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                reply = await self._ask({"fork": True}, theirs)
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return Grader(cast(int, reply["pid"]), reader, writer)

    async def end(self, grader: Grader) -> int | None:
        """Kill and reap; the wait status (negative signal or exit code), None when it cannot be known."""
        grader.writer.close()
        try:
            reply = await self._ask({"end": grader.pid}, None, restart=False)
        except GraderBroken:
            return None
        return cast("int | None", reply["status"])

    async def close(self) -> None:
        async with self._lock:
            await asyncio.to_thread(self._stop)

    async def _ask(
        self, frame: frames.Frame, passed: socket.socket | None, *, restart: bool = True
    ) -> frames.Frame:
        # Shielded: a caller's cancellation must not leave half a conversation on the channel.
        return await asyncio.shield(self._locked(frame, passed and passed.dup(), restart))

    async def _locked(
        self, frame: frames.Frame, passed: socket.socket | None, restart: bool
    ) -> frames.Frame:
        try:
            async with self._lock:
                return await asyncio.to_thread(self._converse, frame, passed, restart)
        finally:
            if passed:
                passed.close()

    def _converse(
        self, frame: frames.Frame, passed: socket.socket | None, restart: bool
    ) -> frames.Frame:
        for _ in range(2 if restart else 1):
            try:
                if self._control is None:
                    if not restart:
                        break
                    self._start()
                return self._exchange(frame, passed)
            except OSError:
                self._stop()
        raise GraderBroken(
            "the grader nursery does not answer; is there memory for another process?"
        )

    def _exchange(self, frame: frames.Frame, passed: socket.socket | None) -> frames.Frame:
        control = self._control
        if control is None:
            raise ConnectionError("nursery is gone")
        body = json.dumps(frame).encode()
        socket.send_fds(control, [body], [passed.fileno()] if passed else [])
        reply = control.recv(4096)
        if not reply:
            raise ConnectionError("nursery is gone")
        return json.loads(reply)

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(self._memory_bytes)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment(os.environ),
                # Ctrl-C is for the worker, which then ends its graders in order.
                start_new_session=True,
            )
        self._control = ours
        ours.settimeout(START_S)
        if ours.recv(16) != b"ready":
            raise ConnectionError("nursery did not start")
        ours.settimeout(CONTROL_S)

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=CONTROL_S)
        self._control = self._process = None


# --- inside the nursery process -----------------------------------------------------------------


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    memory_bytes = int(sys.argv[2])
    for noisy in ("math_verify", "latex2sympy2_extended"):
        # They warn on every call that their timeouts are off, which is what a killable process is for.
        logging.getLogger(noisy).setLevel(logging.ERROR)
    _preload(PRELOAD)
    libc = ctypes.CDLL(None)
    control.send(b"ready")
    children: set[int] = set()
    waiting = list(PRELOAD_LATER)
    while True:
        if waiting and not select.select([control], [], [], QUIET_S)[0]:
            _preload(tuple(waiting))
            waiting.clear()
        body, passed, _, _ = socket.recv_fds(control, 4096, 1)
        if not body:
            return
        frame = json.loads(body)
        if "fork" in frame:
            pid = _fork(control, passed[0], memory_bytes, libc)
            children.add(pid)
            reply = {"pid": pid}
        else:
            # None: born in an earlier nursery, which took its children along.
            known = frame["end"] in children
            children.discard(frame["end"])
            reply = {"status": _end(frame["end"]) if known else None}
        control.send(json.dumps(reply).encode())


def _preload(modules: tuple[str, ...]) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            # An extra that is not installed; what needs it says so in its verdicts.
            print(f"nursery: {module} is not available: {error}", file=sys.stderr)
    gc.collect()
    gc.freeze()


def _fork(control: socket.socket, passed: int, memory_bytes: int, libc: ctypes.CDLL) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(passed)
        return pid
    control.close()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    start_in_fork(socket.socket(fileno=passed), memory_bytes)
    os._exit(0)


def _end(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    main()
