"""One group, from its request to the rows that tell of it."""

from collections.abc import Mapping

import numpy as np

from broker.arrays import unpack
from broker.bus import Bus
from broker.messages import (
    Event,
    GroupAnnotated,
    GroupGenerated,
    GroupRequested,
    GroupVerified,
    StepCommitted,
    StepPlanned,
)
from broker.topology import Log, kind_subjects, log_of
from tests.e2e.cluster import Cluster

KINDS = (GroupRequested, GroupGenerated, GroupVerified, GroupAnnotated)


def read_messages(run: Cluster, group_id: str, step: int) -> dict[type, Event]:
    """What the logs hold about a group and its step, by kind."""

    async def read(bus: Bus) -> dict[type, Event]:
        found: dict[type, Event] = {}
        for kind in KINDS:
            stored = await bus.last(
                log_of(kind.KIND), f"sluice.{bus.run}.{kind.KIND}.*.*.{group_id}"
            )
            assert stored is not None, kind
            found[kind] = stored.event()
        ledger = [kind_subjects(bus.run, kind.KIND) for kind in (StepPlanned, StepCommitted)]
        cursor = await bus.cursor(Log.LEDGER, 0, ledger)
        for stored in await cursor.read(1000, 5.0):
            event = stored.event()
            if isinstance(event, StepPlanned | StepCommitted) and event.step == step:
                found[type(event)] = event
        await cursor.close()
        return found

    return run.with_bus(read)


def test_a_trained_group_is_on_record_from_its_request_to_its_step(finished_run: Cluster):
    run = finished_run
    member = run.query("select * from batch_member order by step desc, position limit 1")[0]
    group_id, step = member["group_id"], member["step"]
    found = read_messages(run, group_id, step)
    requested, verified, annotated = (
        found[k] for k in (GroupRequested, GroupVerified, GroupAnnotated)
    )
    planned, committed = found[StepPlanned], found[StepCommitted]

    def rows(table: str, order: str = "1") -> list[Mapping]:
        return run.query(
            f"select * from {table} where group_id = %(group)s order by {order}", group=group_id
        )

    (group,) = rows("prompt_group")
    assert (group["state"], group["trained_step"], group["drop_reason"]) == ("trained", step, None)
    assert group["sample_key"] == requested.sample.key
    assert group["request_seq"] == requested.group.request_seq
    assert group["requested_version"] == requested.requested_version
    assert group["window_no"] == annotated.window == step
    (sample,) = run.query(
        "select * from sample where sample_key = %(key)s", key=group["sample_key"]
    )
    assert (sample["target"], sample["domain"]) == (requested.sample.target, requested.group.domain)

    generations = rows("generation", "generation_index")
    assert len(generations) == requested.size == 4
    for row, told in zip(generations, found[GroupGenerated].generations, strict=True):
        assert row["token_ids"] == unpack(told.token_ids).astype("<i4").tobytes()
        assert row["tokens"] == row["logprob_count"] == len(told.token_ids)
        assert row["text"] == told.text
        assert (row["version_min"], row["version_max"]) == (told.version_min, told.version_max)
        mean = np.mean(unpack(told.logprobs).astype(float))
        assert abs(row["logprob_mean"] - mean) < 1e-6

    verdicts = rows("verdict", "generation_index")
    for row, told in zip(verdicts, verified.verdicts, strict=True):
        assert (row["verifier"], row["status"]) == (told.verifier, told.status)
        assert (row["score"], row["extracted"]) == (told.score, told.extracted)
        assert row["score"] == float(generations[told.index]["text"] == sample["target"])

    annotations = rows("annotation", "generation_index")
    for row, told in zip(annotations, annotated.annotations, strict=True):
        assert (row["reward"], row["target"]) == (verdicts[told.index]["score"], sample["target"])
        assert (row["advantage"], row["weight"]) == (told.advantage, told.weight)
    assert abs(sum(row["advantage"] for row in annotations)) < 1e-6

    (mine,) = [one for one in planned.groups if one.group_id == group_id]
    assert (member["staleness"], member["stream_seq"]) == (mine.staleness, mine.stream_seq)
    assert member["staleness"] == planned.version - min(row["version_min"] for row in generations)
    (learned,) = run.query("select * from learner_step where step = %(step)s", step=step)
    assert (learned["digest"], learned["weights_version"]) == (committed.digest, committed.version)
    assert learned["groups"] == len(planned.groups)
