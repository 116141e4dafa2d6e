"""The learner's pen: compare-and-set on each subject it owns, so that only one learner ever writes."""

from broker.bus import Bus
from broker.errors import Conflict, Replaced
from broker.messages import Event, Incident, ReaderAdvanced
from broker.telemetry import now_us
from broker.topology import Log, subject


class Pen:
    """Publishes the learner's events, each after the last of its subject that this learner knows."""

    def __init__(self, bus: Bus, writer_id: str, sequences: dict[str, int]) -> None:
        self._bus = bus
        self.writer_id = writer_id
        self._sequences = dict(sequences)

    async def write(self, event: Event) -> None:
        """Store an event of a subject that only the learner writes. Raises Replaced."""
        expected = self._sequences.get(event.KIND, 0)
        try:
            sequence = await self._bus.publish(event, expect_subject=expected)
        except Conflict as conflict:
            last = await self._bus.last(Log.LEDGER, subject(self._bus.run, event))
            # A lost acknowledgement: what lies there is what we wrote.
            if last is None or last.event() != event:
                holder = last.event().writer_id if last is not None else "nobody"
                raise Replaced(
                    f"{event.KIND}: {conflict}; written by {holder}, this is {self.writer_id}"
                ) from conflict
            sequence = last.sequence
        self._sequences[event.KIND] = sequence

    async def incident(self, kind: str, detail: str, group_id: str | None = None) -> None:
        await self._bus.publish(
            Incident(
                writer_id=self.writer_id, at_us=now_us(), kind=kind, role="learner",
                detail=detail, group_id=group_id,
            )
        )  # fmt: skip

    async def advanced(self, sequence: int, snapshot_digest: str) -> None:
        """Everything in ANNOTATED up to `sequence` is in a checkpoint."""
        await self._bus.publish(
            ReaderAdvanced(
                writer_id=self.writer_id, at_us=now_us(), reader="learner", log=Log.ANNOTATED.value,
                sequence=sequence, snapshot_digest=snapshot_digest,
            )
        )  # fmt: skip
