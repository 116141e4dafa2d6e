"""Who acts for a role that has one writer: one process holds its lease, the others stand by.

A lease makes a replacement start in time; it does not make it safe. Safety is the compare-and-set of
every publication: a holder that was stopped and comes back is refused, whatever it believes.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import structlog

from broker.bus import Bus
from broker.errors import Conflict, Replaced, SluiceError
from broker.telemetry import Health, writer_id

log = structlog.get_logger()

RELEASED = b""
"""What a holder that leaves in order writes: nobody need wait for the lease to expire."""
RELEASE_LIMIT_S = 1.0
BEGIN_AGAIN = 3
"""How often a holder may be refused by the one that it replaced, before that is no accident any more."""


@dataclass(frozen=True)
class Timing:
    lease_s: float = 10.0
    """A lease that was not renewed for so long, by the standby's own clock, may be taken over."""
    renew_s: float = 2.0
    poll_s: float = 0.5


@dataclass(frozen=True)
class Holder:
    """Who holds a lease; enough for a process on the same machine to see that it is dead."""

    writer_id: str
    machine: str
    """Where its process id means something; empty when unknown."""
    pid: int
    process_start: str
    """In the kernel's ticks since the machine started: a process id may be used again."""

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, value: bytes) -> "Holder | None":
        """None for what no holder of this version wrote: it can only expire."""
        try:
            return cls(**orjson.loads(value))
        except (ValueError, TypeError):
            return None

    def is_dead(self, *, machine: str) -> bool:
        """Certainly dead: its process ran where `machine` says and is gone, or is another one by now."""
        if not machine or self.machine != machine:
            return False
        return _process_start(self.pid) != self.process_start


def this_process(role: str) -> Holder:
    pid = os.getpid()
    return Holder(writer_id(role), this_machine(), pid, _process_start(pid))


def this_machine() -> str:
    """Names the process ids that this process sees.

    A host name would not do: two containers may share one while process 1 of each is its own. The
    kernel's boot id tells machines and their restarts apart, the pid namespace tells containers.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    """Empty when there is no such process, or only what its parent has not yet cleared away."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The command's name may hold spaces and brackets; the rest follows its last bracket.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


class Lease:
    """One process's claim to one role's lease."""

    def __init__(self, bus: Bus, role: str, *, timing: Timing) -> None:
        self._bus = bus
        self._role = role
        self._timing = timing
        self._me = this_process(role)
        self._revision = 0
        self._lost = False
        self._holder = ""
        self._may_begin_again = 0

    async def acquire(self, health: Health, stop: asyncio.Event) -> bool:
        """Stand by until the lease is ours; False when asked to stop before."""
        seen, unrenewed_since = -1, 0.0
        with health.waiting_for(f"the lease of {self._role}", None):
            while not stop.is_set():
                health.beat()
                asked = time.monotonic()
                value, revision = await self._bus.read_lease(self._role)
                now = time.monotonic()
                # While the broker did not answer us, the holder could not renew either.
                if revision != seen or now - asked > self._timing.renew_s:
                    seen, unrenewed_since = revision, now
                expired = now - unrenewed_since >= self._timing.lease_s
                if (expired or self._is_free(value)) and await self._take(revision):
                    self._may_begin_again = BEGIN_AGAIN if value else 0
                    return True
                if holder := self._news_of(value):
                    log.info("stands_by", lease=self._role, holder=holder)
                await self._pause(stop)
        return False

    def _news_of(self, value: bytes | None) -> str:
        """Who holds the lease, when it is somebody else than at the last look."""
        holder = Holder.decode(value) if value else None
        known, self._holder = self._holder, holder.writer_id if holder else ""
        return self._holder if self._holder != known else ""

    def _is_free(self, value: bytes | None) -> bool:
        if not value:  # never held, or RELEASED
            return True
        holder = Holder.decode(value)
        return holder is not None and holder.is_dead(machine=self._me.machine)

    async def _take(self, revision: int) -> bool:
        """Whether it is ours now. A broker without room makes us try again, like its holder."""
        try:
            async with asyncio.timeout(self._timing.renew_s):
                self._revision = await self._bus.write_lease(
                    self._role, self._me.encode(), expect=revision
                )
        except Conflict:
            return False  # another standby was faster, or the holder has renewed it
        except TimeoutError:
            # It may have been stored all the same.
            value, self._revision = await self._bus.read_lease(self._role)
            return value == self._me.encode()
        return True

    async def _pause(self, stop: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self._timing.poll_s):
                await stop.wait()
        except TimeoutError:
            return

    async def renew(self) -> None:
        """Again and again, until somebody else holds the lease; then raises Replaced."""
        while True:
            await asyncio.sleep(self._timing.renew_s)
            try:
                self._revision = await self._bus.write_lease(
                    self._role, self._me.encode(), expect=self._revision
                )
            except Conflict as error:
                value, self._revision = await self._bus.read_lease(self._role)
                # Ours, or none: the broker's host died and forgot what it had not yet on disk.
                if value not in (self._me.encode(), None):
                    self._lost = True
                    holder = Holder.decode(value)
                    name = holder.writer_id if holder else "nobody"
                    raise Replaced(
                        f"the lease of {self._role} is held by {name}, not by {self._me.writer_id}"
                    ) from error

    async def outlasts(self) -> bool:
        """Whether a writer that was refused holds the lease all the same, and should begin again.

        The one that it took the lease from may have been stopped, and come back just in time to
        publish once more; or have died with a publication under way. It cannot stay: it finds its
        lease gone when it next looks. A holder that took nobody's place was refused by somebody who
        has no business here, and gives way.
        """
        if self._lost or self._may_begin_again == 0:
            return False
        self._may_begin_again -= 1
        await asyncio.sleep(self._timing.renew_s)
        value, self._revision = await self._bus.read_lease(self._role)
        self._lost = value not in (self._me.encode(), None)
        return not self._lost

    async def taken_by(self) -> str:
        """Who holds the lease in our place; empty when nobody does, or when the broker does not say."""
        try:
            async with asyncio.timeout(RELEASE_LIMIT_S):
                value, _ = await self._bus.read_lease(self._role)
        except (SluiceError, TimeoutError):
            return ""
        holder = Holder.decode(value) if value and value != self._me.encode() else None
        self._lost = self._lost or holder is not None
        return holder.writer_id if holder else ""

    async def release(self) -> None:
        """So that a standby takes over at once. Failing to do so costs it the wait and nothing else."""
        if self._lost:
            return
        try:
            async with asyncio.timeout(RELEASE_LIMIT_S):
                await self._bus.write_lease(self._role, RELEASED, expect=self._revision)
        except (SluiceError, TimeoutError) as error:
            log.info("lease_not_released", lease=self._role, reason=repr(error))


async def hold(
    bus: Bus,
    role: str,
    work: Callable[[], Awaitable[None]],
    *,
    health: Health,
    stop: asyncio.Event,
    timing: Timing | None = None,
) -> None:
    """Stand by until the lease of `role` is ours, then do `work` to its end.

    Returns without having worked when asked to stop before. Cancels the work and raises Replaced
    when another process has taken the lease over. `work` is done anew, from the logs, when the one
    whose lease we took over was faster with its last publication.
    """
    lease = Lease(bus, role, timing=timing or Timing())
    if not await lease.acquire(health, stop):
        return
    log.info("lease_held", lease=role)
    try:
        while True:
            try:
                return await _while_held(lease, work)
            except Replaced as refusal:
                if not await lease.outlasts():
                    raise
                log.warning("begins_again", lease=role, reason=str(refusal))
            except Exception as error:
                # Whoever took our place tidies up, maybe under our feet.
                if holder := await lease.taken_by():
                    raise Replaced(f"the lease of {role} is held by {holder}; {error!r}") from error
                raise
    finally:
        await lease.release()


async def _while_held(lease: Lease, work: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            renewal = group.create_task(lease.renew())
            try:
                await work()
            finally:
                renewal.cancel()
    except BaseExceptionGroup as errors:
        # The first cause, not the tree of tasks that it passed through.
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
