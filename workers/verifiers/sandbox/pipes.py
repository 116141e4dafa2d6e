"""The pipes to a sandboxed program: never blocking, each output read in chunks up to its limit."""

import os
import selectors
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CHUNK = 1 << 16


class Flood(Exception):
    """An output went beyond its limit."""


@dataclass
class Output:
    """What the program has said on one pipe."""

    fd: int
    limit: int
    said: bytearray = field(default_factory=bytearray)
    seen: int = 0


@dataclass
class Input:
    """What is still to be told on one pipe."""

    fd: int
    left: memoryview = field(default_factory=lambda: memoryview(b""))
    last: bool = False
    """Close it once all is told."""


class Pipes:
    """Both ends of a program's pipes, by name; the program's ends are `theirs` until it is started."""

    def __init__(self, outputs: Mapping[str, int], inputs: Sequence[str]) -> None:
        """outputs: limit in bytes, by name."""
        self.theirs: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        self.outputs: dict[str, Output] = {}
        self._inputs: dict[str, Input] = {}
        for name, limit in outputs.items():
            ours, self.theirs[name] = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(ours, False)
            self.outputs[name] = Output(ours, limit)
            self._selector.register(ours, selectors.EVENT_READ, name)
        for name in inputs:
            self.theirs[name], ours = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(ours, False)
            self._inputs[name] = Input(ours)

    def started(self) -> None:
        """The program has its ends: ours of them are closed, so that its end shows."""
        for fd in self.theirs.values():
            os.close(fd)
        self.theirs.clear()

    def send(self, name: str, body: bytes, *, last: bool = False) -> None:
        """Tell it as the program takes it, in later turns."""
        told = self._inputs.get(name)
        if told is None:
            return  # the program closed it: its end will show
        told.left = memoryview(bytes(told.left) + body)
        told.last = last
        if told.fd not in self._selector.get_map():
            self._selector.register(told.fd, selectors.EVENT_WRITE, name)

    def turn(self, timeout_s: float) -> bool:
        """Read and write what is possible now. False when no output is open any more. Raises Flood."""
        for key, events in self._selector.select(timeout_s):
            if events & selectors.EVENT_WRITE:
                self._tell(key.data)
            else:
                self._hear(key.data)
        return any(output.fd >= 0 for output in self.outputs.values())

    def close(self) -> None:
        self.started()
        for output in self.outputs.values():
            self._shut(output)
        for name in list(self._inputs):
            self._drop(name)
        self._selector.close()

    def _hear(self, name: str) -> None:
        output = self.outputs[name]
        try:
            got = os.read(output.fd, CHUNK)
        except BlockingIOError:
            return
        if not got:
            self._selector.unregister(output.fd)
            self._shut(output)
            return
        output.seen += len(got)
        if output.seen > output.limit:
            raise Flood(f"more than {output.limit} bytes of {name}")
        output.said += got

    def _tell(self, name: str) -> None:
        told = self._inputs[name]
        try:
            told.left = told.left[os.write(told.fd, told.left[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._selector.unregister(told.fd)
            self._drop(name)
            return
        if not told.left:
            self._selector.unregister(told.fd)
            if told.last:
                self._drop(name)

    def _drop(self, name: str) -> None:
        os.close(self._inputs.pop(name).fd)

    def _shut(self, output: Output) -> None:
        if output.fd >= 0:
            os.close(output.fd)
            output.fd = -1
