"""One event of every kind, every field filled: what the frozen bytes say.

`python -m tests.golden.samples` writes the files that are missing, and never changes one.
"""

from pathlib import Path

from broker.arrays import Array, logprob_array, pack, token_array
from broker.codec import encode
from broker.messages import (
    EVENTS,
    Annotation,
    ChatTurn,
    CheckpointWritten,
    DroppedGroup,
    EvaluationFinished,
    EvaluationItem,
    Event,
    Generation,
    GroupAnnotated,
    GroupGenerated,
    GroupKey,
    GroupRequested,
    GroupVerified,
    Incident,
    LogPurged,
    MixtureCounters,
    MixtureShare,
    MixtureUpdated,
    PlannedGroup,
    ReaderAdvanced,
    RunDraining,
    RunEnded,
    RunStarted,
    Sample,
    Sampling,
    ShadowDecided,
    StepCommitted,
    StepPlanned,
    SupervisionChanged,
    Verdict,
    VerdictRevised,
    VersionSpan,
    WeightsPublished,
)

FOLDER = Path(__file__).parent
BY = {"writer_id": "role@host:7:99", "at_us": 1_700_000_000_000_001}

GROUP = GroupKey(
    group_id="00000007-0-1", purpose="train", domain="math", request_seq=9, bundle="00000007", bundle_size=2
)  # fmt: skip
REQUEST = GroupRequested(
    **BY,
    group=GROUP,
    sample=Sample(
        key="sums:1:3",
        dataset="sums",
        dataset_version="1",
        item_index=3,
        domain="math",
        difficulty=0.5,
        prompt=(ChatTurn(role="user", content="1+1=☂"),),
        target="2",
        labeled=True,
        verifier={"name": "exact", "options": {"deep": [1, 2.5, None, True]}},
        options={"unit": "cm"},
    ),
    prompt_text="<user>1+1=☂",
    prompt_ids=token_array([1, 2, 70_000]),
    draw=7,
    pass_no=1,
    attempt=1,
    size=1,
    sampling=Sampling(temperature=1.0, max_tokens=8, top_p=0.9, top_k=5, min_p=0.1),
    requested_version=4,
    mixture=MixtureCounters(
        update_no=2,
        target={"math": 0.75, "logic": 0.25},
        owed={"math": 0.25, "logic": -0.25},
        requested={"math": 5, "logic": 4},
        positions={"math": 5, "logic": 3},
    ),
    benchmark="held_out",
    parent="00000001-0-0",
    role="solver",
    cohort=2,
    cohort_size=4,
)
GENERATION = Generation(
    index=0,
    token_ids=token_array([5, 6, 2]),
    logprobs=logprob_array([-0.5, -1.25, -0.1]),
    finish_reason="stop",
    spans=(VersionSpan(version=4, first=0, end=1), VersionSpan(version=5, first=1, end=3)),
    text="2\0",
    seed=11,
    started_at_us=1,
    finished_at_us=2,
    signals={"entropy": pack([0.5, 0.25, 0.0], "<f2"), "mask": pack([1, 0, 1], "|u1")},
)
VERDICT = Verdict(
    index=0,
    status="ok",
    score=1.0,
    extracted="2",
    answer_key="2",
    answer_class=0,
    components={"format": 0.5},
    detail="equal",
    verifier="exact",
    verifier_version="1",
    latency_ms=0.25,
)
ANNOTATION = Annotation(
    index=0,
    target="2",
    target_source="gold",
    admitted=True,
    reward=1.0,
    advantage=-0.5,
    weight=0.5,
    token_weights=Array(dtype="<f4", shape=(1,), data=b"\0\0\x80?"),
    token_advantages=Array(dtype="<f4", shape=(1,), data=b"\0\0\0\xbf"),
    reason="uniform",
    signals={"solve_rate": 0.25},
)
DROPPED = DroppedGroup(group_id="00000008-0-0", stream_seq=4, reason="stale", staleness=3)

SAMPLES: tuple[Event, ...] = (
    REQUEST,
    GroupGenerated(
        **BY,
        group=GROUP,
        status="ok",
        reason="",
        request=REQUEST,
        generations=(GENERATION,),
        engine="torch",
        worker="w1",
    ),
    GroupVerified(
        **BY,
        group=GROUP,
        status="ok",
        reason="",
        request=REQUEST,
        generations=(GENERATION,),
        verdicts=(VERDICT,),
        engine="torch",
        worker="w1",
    ),
    GroupAnnotated(
        **BY,
        group=GROUP,
        outcome="admitted",
        reason="admitted",
        request=REQUEST,
        generations=(GENERATION,),
        annotations=(ANNOTATION,),
        window=3,
        window_size=8,
        window_index=1,
        cut=40,
        verified_seq=39,
        policy="live",
        policy_version="2",
        cohort_end=True,
    ),
    ShadowDecided(
        **BY,
        group=GROUP,
        outcome="dropped",
        reason="filtered:x",
        annotations=(ANNOTATION,),
        window=None,
        verified_seq=39,
        policy="shadow",
        policy_version="1",
    ),
    RunStarted(
        **BY,
        name="demo",
        config="{}",
        config_sha256="0" * 64,
        seed=7,
        versions={"torch": "2.13.0"},
        resumed=True,
    ),
    RunDraining(**BY, reason="steps", open_groups=("00000009-0-0",)),
    RunEnded(**BY, reason="steps", status="finished", last_sequences={"LEDGER": 12}),
    MixtureUpdated(
        **BY,
        update_no=2,
        mixer="static",
        window=2,
        step=1,
        request_seq=9,
        cut=30,
        domains=(
            MixtureShare(
                domain="math",
                target=0.75,
                requested=5,
                generated=4,
                admitted=3,
                trained=2,
                reward_mean=0.5,
                abs_advantage_mean=0.25,
                slope=None,
            ),
        ),
        reason="window",
    ),
    SupervisionChanged(
        **BY,
        sample_key="sums:1:3",
        step=3,
        method="vote",
        lifetime="run",
        field="target",
        old=None,
        new="2",
        evidence={"votes": 5},
        actor="policy",
    ),
    VerdictRevised(**BY, group_id="00000007-0-1", verdict=VERDICT),
    EvaluationFinished(
        **BY,
        version=4,
        step=4,
        benchmark="math",
        items=2,
        score=None,
        missing=("sums:1:9",),
        scores=(
            EvaluationItem(
                sample_key="sums:1:9", group_id="v000004-math-00001-0", domain="math", score=None
            ),
        ),
    ),
    Incident(
        **BY,
        kind="sample_skipped",
        role="dispatcher",
        detail="three attempts",
        group_id="00000007-0-1",
    ),
    StepPlanned(
        **BY,
        step=3,
        version=2,
        groups=(PlannedGroup(group_id="00000007-0-1", domain="math", stream_seq=3, staleness=1),),
        dropped=(DROPPED,),
        cursor=4,
    ),
    StepCommitted(
        **BY,
        step=3,
        status="trained",
        reason="",
        version=3,
        digest="1" * 64,
        dropped=(DROPPED,),
        metrics={"loss": 0.5, "kl": None},
    ),
    WeightsPublished(**BY, version=3, step=3, digest="1" * 64, uri="object:weights/x", bytes=9),
    CheckpointWritten(**BY, step=3, version=3, uri="file:/x", digest="1" * 64, cursor=4),
    ReaderAdvanced(**BY, reader="policy", log="VERIFIED", sequence=40, snapshot_digest="2" * 64),
    LogPurged(**BY, floor=5),
)


def golden_file(kind: str, schema: int) -> Path:
    return FOLDER / f"{kind}.v{schema}.bin"


if __name__ == "__main__":
    for sample in SAMPLES:
        path = golden_file(sample.KIND, EVENTS[sample.KIND].SCHEMA)
        if not path.exists():
            path.write_bytes(encode(sample))
