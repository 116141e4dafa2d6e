"""Messages that nobody can read: their groups fail, a copy is kept, and the run goes on."""

import asyncio
import signal
from collections.abc import Callable, Mapping

import msgpack
import nats

from broker.bus import Bus
from broker.messages import GroupKey, GroupRequested
from broker.packing import H_DEAD_REASON, H_DEAD_SUBJECT
from broker.topology import (
    H_BUNDLE,
    H_BUNDLE_SIZE,
    H_DOMAIN,
    H_GROUP,
    H_KIND,
    H_PURPOSE,
    H_REQUEST_SEQ,
    Log,
)
from store.audit import CLAIMS
from tests.e2e.cluster import ENDLESS, PASSED, Cluster

REPLACED = 3
GARBAGE = b"\xff\x00 no envelope \xc1"


def publish_by_hand(run: Cluster, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
    async def publish() -> None:
        client = await nats.connect(run.nats_url)
        try:
            await client.jetstream().publish(
                f"sluice.{run.run}.{subject}", data, headers=dict(headers)
            )
        finally:
            await client.close()

    asyncio.run(publish())


def of_a_later_version(run: Cluster) -> tuple[GroupKey, bytes, dict[str, str]]:
    """A request like the last one, as a program that is a version ahead might write it."""

    async def read(bus: Bus) -> GroupRequested:
        stored = await bus.last(Log.REQUESTS, f"sluice.{bus.run}.group_requested.train.>")
        assert stored is not None
        event = stored.event()
        assert isinstance(event, GroupRequested)
        return event

    last = run.with_bus(read)
    key = last.group.model_copy(
        update={"group_id": "99999999-0-0", "request_seq": last.group.request_seq + 1}
    )
    body = last.model_dump() | {"group": key.model_dump(), "hint": "unheard of"}
    envelope = {"kind": last.KIND, "schema": last.SCHEMA + 1, "body": body}
    headers = {
        H_KIND: last.KIND,
        H_GROUP: key.group_id,
        H_PURPOSE: key.purpose,
        H_DOMAIN: key.domain,
        H_REQUEST_SEQ: str(key.request_seq),
        H_BUNDLE: key.bundle,
        H_BUNDLE_SIZE: str(key.bundle_size),
    }
    return key, msgpack.packb(envelope), headers


def dead_letters(run: Cluster) -> dict[str, str]:
    """Reason by the subject of the message that could not be handled."""

    async def read(bus: Bus) -> dict[str, str]:
        cursor = await bus.cursor(Log.DEAD, 0)
        found = await cursor.read(100, 5.0)
        await cursor.close()
        start = f"sluice.{bus.run}."
        return {
            stored.headers[H_DEAD_SUBJECT].removeprefix(start): stored.headers[H_DEAD_REASON]
            for stored in found
        }

    return run.with_bus(read)


def test_requests_that_nobody_can_read_end_and_the_run_goes_on(start_run: Callable[..., Cluster]):
    run = start_run("alien", **ENDLESS)
    run.start("dispatcher", "rollout", "verifier,policy,recorder", "learner")
    run.wait_step(1)

    # Halted, lest its next request has the same number as ours.
    dispatcher = run.processes["dispatcher"]
    dispatcher.send_signal(signal.SIGSTOP)
    key, data, headers = of_a_later_version(run)
    subject = f"group_requested.train.{key.domain}.{key.group_id}"
    publish_by_hand(run, subject, data, headers)
    publish_by_hand(run, "group_requested.train.short.garbage", GARBAGE, {})
    dispatcher.send_signal(signal.SIGCONT)
    # Somebody else writes requests: the dispatcher cannot know better than to give way.
    assert run.wait_exit("dispatcher", limit_s=60) == REPLACED
    run.start("dispatcher")
    run.wait_step(run.newest_step() + PASSED)

    run.stop()
    assert run.incidents() == {"sample_skipped", "stop_requested"}
    (group,) = run.query("select * from prompt_group where group_id = %(id)s", id=key.group_id)
    assert group["state"] == "failed"
    ours, later = GroupRequested.SCHEMA, GroupRequested.SCHEMA + 1
    assert f"schema {later}, this process speaks {ours}" in group["drop_reason"]
    (skipped,) = run.query("select group_id from incident where kind = 'sample_skipped'")
    assert skipped["group_id"] == key.group_id
    dead = dead_letters(run)
    assert f"schema {later}" in dead[subject]
    assert "not a msgpack envelope" in dead["group_requested.train.short.garbage"]
    # What nobody could read, nobody asked for: the audit says so of this group, and of no other.
    against = run.proofs()
    assert against.keys() == {CLAIMS["one_end"], CLAIMS["mixture_counts"]}
    assert against[CLAIMS["one_end"]].startswith("1 against it")
    assert key.group_id in against[CLAIMS["one_end"]]


def test_garbage_in_every_other_log_is_passed_over(start_run: Callable[..., Cluster]):
    run = start_run("garbage", **ENDLESS)
    run.start("dispatcher", "rollout", "verifier,recorder", "policy", "learner")
    run.wait_step(1)

    subjects = [
        f"group_{done}.train.short.garbage" for done in ("generated", "verified", "annotated")
    ]
    for subject in (*subjects, "incident.someone.garbage"):
        publish_by_hand(run, subject, GARBAGE, {})
    # Somebody else writes decisions: the policy cannot know better than to give way.
    assert run.wait_exit("policy", limit_s=60) == REPLACED
    run.start("policy")
    run.wait_step(run.newest_step() + PASSED)

    run.stop()
    assert run.incidents() == {"unreadable", "stop_requested"}
    assert run.proofs() == {}
    assert "not a msgpack envelope" in dead_letters(run)["group_generated.train.short.garbage"]
