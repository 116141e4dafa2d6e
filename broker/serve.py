"""Running a stage: deliveries in, the handler's messages out, every group ended whatever happens.

A message is acknowledged only when its outputs are stored. A stage that gives up on one publishes its
own output with status failed and a copy to DEAD, so that the group ends and is replaced. This is the
only place that catches every exception of a handler.
"""

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence

import structlog

from broker.bus import Bus, Delivery, Handler
from broker.errors import Conflict, Poison, Replaced, Retry, Unasked, Unreachable
from broker.messages import Event, GroupKey
from broker.telemetry import Health, dead_letters_total, handle_seconds, messages_total
from broker.topology import MAX_DELIVERIES, Reader, group_from_headers

FETCH_WAIT_S = 0.5
STOP_WAIT_S = 5.0
"""In-flight work that takes longer after `stop` is handed back."""
LONGEST_RETRY_S = 30.0

Fail = Callable[[GroupKey, Event | None, str], Event]
"""The stage's own output for a group it gives up on; the event is None when it cannot be read."""

RetryDelay = Callable[[int], float]
"""Deliveries so far -> seconds before the next, after a handler's bug."""

RESULTS = ("ok", "retried", "error", "failed", "handed_back")

log = structlog.get_logger()


def retry_delay_s(deliveries: int) -> float:
    """Before the next delivery of a message whose handler failed unexpectedly."""
    return min(2.0 ** (deliveries - 1), LONGEST_RETRY_S)


class Stage:
    """One process's part in a role: what is in flight, and what becomes of a delivery."""

    def __init__(
        self, bus: Bus, reader: Reader, handler: Handler, fail: Fail, delay_s: RetryDelay
    ) -> None:
        self._bus = bus
        self._reader = reader
        self._handler = handler
        self._fail = fail
        self._delay_s = delay_s
        self.in_flight: dict[asyncio.Task[None], Delivery] = {}
        for result in RESULTS:
            messages_total.labels(reader.name, result)

    def begin(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._settle(delivery))
        self.in_flight[task] = delivery

    def collect(self) -> None:
        """Forget what is done; raises what ended a task, which ends the process."""
        for task in [task for task in self.in_flight if task.done()]:
            del self.in_flight[task]
            if not task.cancelled():
                task.result()

    async def heartbeat(self) -> None:
        """Keeps what is in flight from being delivered to somebody else."""
        while True:
            await asyncio.sleep(self._reader.ack_wait_s / 3)
            for delivery in list(self.in_flight.values()):
                await delivery.progress()

    async def hand_back(self, delivery: Delivery) -> None:
        await delivery.retry(0.0)
        self._count("handed_back")

    def _count(self, result: str) -> None:
        messages_total.labels(self._reader.name, result).inc()

    async def _settle(self, delivery: Delivery) -> None:
        started = time.monotonic()
        event: Event | None = None
        try:
            if delivery.deliveries > MAX_DELIVERIES:
                raise Poison(
                    f"delivered {delivery.deliveries} times; the limit is {MAX_DELIVERIES}"
                )
            event = delivery.stored.event()
            await self._publish(await self._handler(event))
        except asyncio.CancelledError:
            await self.hand_back(delivery)
            raise
        except Unasked as error:
            await self._bury(delivery, str(error), [])
        except Poison as error:
            await self._give_up(delivery, event, str(error))
        except Retry as error:
            await self._again(delivery, event, "retried", str(error), error.delay_s)
        except (Replaced, Unreachable):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._log_bug(delivery, error)
            delay_s = self._delay_s(delivery.deliveries)
            await self._again(delivery, event, "error", reason, delay_s)
        else:
            await delivery.ack()
            self._count("ok")
        handle_seconds.labels(self._reader.name).observe(time.monotonic() - started)

    def _log_bug(self, delivery: Delivery, error: Exception) -> None:
        """With its traceback once per message; redeliveries would only repeat it."""
        trace = "".join(traceback.format_exception(error)) if delivery.deliveries == 1 else None
        log.error(
            "handler_failed",
            role=self._reader.name,
            subject=delivery.stored.subject,
            deliveries=delivery.deliveries,
            error=f"{type(error).__name__}: {error}",
            traceback=trace,
        )

    async def _publish(self, events: Sequence[Event]) -> None:
        for event in events:
            try:
                await self._bus.publish(event, expect_subject=0)
            except Conflict:
                continue  # stored already, by an earlier delivery or another worker

    async def _again(
        self, delivery: Delivery, event: Event | None, result: str, reason: str, delay_s: float
    ) -> None:
        if delivery.deliveries >= MAX_DELIVERIES:
            await self._give_up(delivery, event, f"{reason} (delivery {delivery.deliveries})")
            return
        await delivery.retry(delay_s)
        self._count(result)

    async def _give_up(self, delivery: Delivery, event: Event | None, reason: str) -> None:
        group = _group_of(delivery, event)
        ends = [] if group is None else [self._fail(group, event, reason)]
        await self._bury(delivery, reason, ends)

    async def _bury(self, delivery: Delivery, reason: str, ends: Sequence[Event]) -> None:
        """Each record is stored once however often this is repeated; then the message is done."""
        log.error("gave_up", role=self._reader.name, subject=delivery.stored.subject, reason=reason)
        await self._bus.dead_letter(delivery.stored, reason)
        await self._publish(ends)
        await delivery.ack()
        dead_letters_total.labels(self._reader.name).inc()
        self._count("failed")


def _group_of(delivery: Delivery, event: Event | None) -> GroupKey | None:
    """From the body, or from the headers when it cannot be read; None when neither says."""
    group = getattr(event, "group", None)
    if isinstance(group, GroupKey):
        return group
    try:
        return group_from_headers(delivery.stored.headers)
    except (KeyError, ValueError):
        return None


async def serve(
    bus: Bus,
    reader: Reader,
    handler: Handler,
    *,
    fail: Fail,
    slots: int,
    health: Health,
    stop: asyncio.Event,
    delay_s: RetryDelay = retry_delay_s,
) -> None:
    """Handle messages, `slots` at a time, until `stop` is set.

    Returns within about STOP_WAIT_S of `stop`: what is done by then is published and acknowledged,
    the rest is handed back for immediate redelivery. Raises Replaced or Unreachable.
    """
    stage = Stage(bus, reader, handler, fail, delay_s)
    consumer = await bus.consumer(reader)
    heartbeat = asyncio.create_task(stage.heartbeat())
    try:
        while not stop.is_set():
            health.beat()
            stage.collect()
            free = slots - len(stage.in_flight)
            if free <= 0:
                with health.waiting_for("a free slot", None):
                    await asyncio.wait(
                        stage.in_flight, timeout=FETCH_WAIT_S, return_when=asyncio.FIRST_COMPLETED
                    )
                continue
            with health.waiting_for(f"messages for {reader.name}", None):
                deliveries = await consumer.fetch(free, FETCH_WAIT_S)
            for delivery in deliveries:
                if stop.is_set():
                    await stage.hand_back(delivery)
                else:
                    stage.begin(delivery)
        if stage.in_flight:
            with health.waiting_for("work in flight before stopping", STOP_WAIT_S):
                await asyncio.wait(stage.in_flight, timeout=STOP_WAIT_S)
    finally:
        heartbeat.cancel()
        for task in stage.in_flight:
            task.cancel()
        if stage.in_flight:
            await asyncio.wait(stage.in_flight)
        await consumer.close()
    stage.collect()
