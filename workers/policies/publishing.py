"""The policy's publications: each compare-and-set, so that a replaced worker is refused and exits."""

from collections.abc import Container, Sequence
from contextlib import suppress

from broker.bus import Bus
from broker.errors import Conflict, Replaced
from broker.messages import Event, GroupAnnotated, MixtureShare, MixtureUpdated, ReaderAdvanced
from broker.telemetry import messages_total, now_us
from broker.topology import H_GROUP, H_WRITER, Log, kind_subjects
from workers.policies.decisions import Author, Closed, Decision, Ended, events, shadow_events
from workers.policies.ledger import READER, LedgerFollower
from workers.policies.restart import delete_other_snapshots, snapshot_digest, snapshot_name
from workers.policies.shadows import Shadowed

ROLE = "policy"
SHADOW_BATCH = 500
"""Shadow decisions stored at once."""


class Publisher:
    """Puts decisions on record: drops at once, a window as one batch right after its mixture."""

    def __init__(
        self, bus: Bus, ledger: LedgerFollower, author: Author, mixer: str, *, after: int
    ) -> None:
        self._bus, self._ledger, self._author, self._mixer = bus, ledger, author, mixer
        self._after = after
        """Sequence in ANNOTATED that the next publication must follow."""
        self._snapshot: str | None = None
        """Digest of the snapshot that this process wrote last."""
        self._counted = 0
        """Sequence in LEDGER up to which the newest mixture has counted."""

    async def settle(self, decisions: Sequence[Decision], on_record: Container[str]) -> None:
        """Publish what is not on record yet. on_record: ids of groups that are."""
        for decision in decisions:
            if isinstance(decision, Shadowed):
                await self._shadowed(decision)
                continue
            fresh = self._fresh(decision, on_record)
            if isinstance(decision, Closed):
                await self._window(decision)
                if fresh:
                    await self._batch(fresh)
                await self._after_window(decision, advance=bool(fresh))
            elif fresh:
                await self._single(fresh[0])

    async def settle_cohort(self, decisions: Sequence[Decision], on_record: Container[str]) -> None:
        """The same in one batch; its end is marked."""
        windows = [decision for decision in decisions if isinstance(decision, Closed)]
        for window in windows:
            await self._window(window)
        live = [decision for decision in decisions if not isinstance(decision, Shadowed)]
        fresh = [event for decision in live for event in self._fresh(decision, on_record)]
        if fresh:
            fresh[-1] = fresh[-1].model_copy(update={"cohort_end": True})
            await self._batch(fresh)
        for window in windows:
            await self._after_window(window, advance=bool(fresh))
        for decision in decisions:
            if isinstance(decision, Shadowed):
                await self._shadowed(decision)

    def _fresh(self, decision: Ended | Closed, on_record: Container[str]) -> list[GroupAnnotated]:
        """Its messages that are not on record: of a batch on a full server its beginning alone may be."""
        told = events(decision, self._author, now_us())
        return [event for event in told if event.group.group_id not in on_record]

    async def _after_window(self, closed: Closed, *, advance: bool) -> None:
        # Before the snapshot: the groups of a window are not judged again from one that closed it.
        for shadowed in closed.shadowed:
            await self._shadowed(shadowed)
        if advance:
            await self._advance(closed)

    async def _shadowed(self, found: Shadowed) -> None:
        """What is on record already stays as it is."""
        told = shadow_events(found, self._author, now_us())
        for first in range(0, len(told), SHADOW_BATCH):
            some = told[first : first + SHADOW_BATCH]
            try:
                await self._bus.publish_batch(some)
            except Conflict:
                # An earlier life has stored them, all or nothing, or a part with an earlier window.
                for event in some:
                    with suppress(Conflict):
                        await self._bus.publish(event, expect_subject=0)

    # --- ANNOTATED -----------------------------------------------------------------------------

    async def _single(self, event: GroupAnnotated) -> None:
        try:
            self._after = await self._bus.publish(event, expect_subject=0, expect_log=self._after)
        except Conflict as conflict:
            self._after = await self._own_or_replaced(conflict, event)
        messages_total.labels(ROLE, event.outcome).inc()

    async def _batch(self, batch: Sequence[GroupAnnotated]) -> None:
        try:
            self._after = await self._bus.publish_batch(batch, expect_log=self._after)
        except Conflict as conflict:
            self._after = await self._own_or_replaced(conflict, batch[-1])
        for event in batch:
            messages_total.labels(ROLE, event.outcome).inc()

    async def _own_or_replaced(self, conflict: Conflict, event: GroupAnnotated) -> int:
        """The last sequence of ANNOTATED when it is our own: a lost acknowledgement."""
        every = kind_subjects(self._bus.run, GroupAnnotated.KIND)
        last = await self._bus.last(Log.ANNOTATED, every)
        writer = last.headers.get(H_WRITER) if last else None
        if last is None or writer != self._author.writer_id:
            raise Replaced(
                f"ANNOTATED was last written by {writer}, not by {self._author.writer_id}"
            ) from conflict
        if last.headers.get(H_GROUP) != event.group.group_id:
            raise Replaced(
                f"ANNOTATED ends with group {last.headers.get(H_GROUP)}; expected to follow "
                f"sequence {self._after} with group {event.group.group_id}"
            ) from conflict
        return last.sequence

    # --- LEDGER --------------------------------------------------------------------------------

    async def mixture(
        self,
        shares: Sequence[MixtureShare],
        *,
        update_no: int,
        cut: int,
        request_seq: int,
        reason: str,
    ) -> None:
        """With LEDGER read to its end before, so that the trained counts are exact."""
        await self._ledger.refresh()
        view, counted = self._ledger.view, self._ledger.position
        if view.mixture is not None and view.mixture.update_no >= update_no:
            return
        event = MixtureUpdated(
            writer_id=self._author.writer_id,
            at_us=now_us(),
            update_no=update_no,
            mixer=self._mixer,
            window=update_no,
            step=view.step,
            request_seq=request_seq,
            cut=cut,
            domains=tuple(
                share.model_copy(update={"trained": view.trained.get(share.domain, 0)})
                for share in shares
            ),
            reason=reason,
        )
        view.apply(await self._publish_own(event, view.mixture_seq), event)
        self._counted = counted

    async def _window(self, closed: Closed) -> None:
        await self.mixture(
            closed.shares,
            update_no=closed.window,
            cut=closed.cut,
            request_seq=closed.request_seq,
            reason=closed.reason,
        )

    async def _advance(self, closed: Closed) -> None:
        """Make the state after a window durable and say so; the logs up to it may then be purged."""
        if closed.snapshot is None:
            return
        digest = snapshot_digest(closed.snapshot)
        await self._bus.put_object(snapshot_name(digest), closed.snapshot)
        verified = min([closed.cut, *(held - 1 for held in closed.pending)])
        await self._advanced(Log.VERIFIED, verified, digest)
        await self._forget_older(digest)
        # A restart takes over the records that are newer than its snapshot: they must be kept.
        await self._advanced(Log.ANNOTATED, self._after, None)
        await self._advanced(Log.LEDGER, self._counted, None)

    async def _forget_older(self, digest: str) -> None:
        """Only after our own word was accepted: a rival's newest snapshot must not be deleted."""
        if self._snapshot is None:
            await delete_other_snapshots(self._bus, digest)
        elif self._snapshot != digest:
            await self._bus.delete_object(snapshot_name(self._snapshot))
        self._snapshot = digest

    async def _advanced(self, log: Log, sequence: int, digest: str | None) -> None:
        event = ReaderAdvanced(
            writer_id=self._author.writer_id,
            at_us=now_us(),
            reader=READER,
            log=log,
            sequence=sequence,
            snapshot_digest=digest,
        )
        _, after = self._ledger.view.advanced.get(log, (None, 0))
        self._ledger.view.apply(await self._publish_own(event, after), event)

    async def _publish_own(self, event: Event, after: int) -> int:
        try:
            return await self._bus.publish(event, expect_subject=after)
        except Conflict as conflict:
            raise Replaced(f"another policy worker has published {event.KIND}") from conflict
