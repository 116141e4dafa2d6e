"""Single events of the run in tests.store_world, for tests of the store."""

import orjson

from broker.messages import (
    Event,
    GroupRequested,
    MixtureShare,
    MixtureUpdated,
    RunStarted,
    ShadowDecided,
    SupervisionChanged,
    WeightsPublished,
)
from tests.builders import AT_US, WRITER, an_annotated, an_annotation

RUN = "run"
COMMON = {"writer_id": WRITER, "at_us": AT_US + 5_000_000}
SIZE, TOKENS = 2, 3


def started(*, resumed: bool = False) -> RunStarted:
    config = {"run": {"max_staleness": 2, "steps": 3}}
    return RunStarted(
        **COMMON,
        name="small",
        config=orjson.dumps(config).decode(),
        config_sha256="c",
        seed=7,
        versions={"sluice": "1"},
        resumed=resumed,
    )


def undecided(request: GroupRequested, outcome: str, reason: str, verified_seq: int) -> Event:
    return an_annotated(
        request,
        outcome=outcome,
        reason=reason,
        generations=(),
        window=None,
        window_size=None,
        window_index=None,
        cut=None,
        verified_seq=verified_seq,
        annotations=tuple(
            an_annotation(index, admitted=False, advantage=0.0, reason=reason)
            for index in range(SIZE)
        )
        if outcome == "dropped"
        else (),
    )


def weights(version: int, *, step: int = 0) -> WeightsPublished:
    return WeightsPublished(
        **COMMON,
        version=version,
        step=step,
        digest=f"d{version}",
        uri=f"object:w{version}",
        bytes=9,
    )


def mixture(
    update_no: int, *, step: int, request_seq: int, cut: int, counts: tuple[int, int, int, int]
) -> MixtureUpdated:
    requested, generated, admitted, trained = counts
    share = MixtureShare(
        domain="math",
        target=1.0,
        requested=requested,
        generated=generated,
        admitted=admitted,
        trained=trained,
        reward_mean=0.5,
        abs_advantage_mean=None,
        slope=None,
    )
    return MixtureUpdated(
        **COMMON,
        update_no=update_no,
        mixer="static",
        window=update_no,
        step=step,
        request_seq=request_seq,
        cut=cut,
        domains=(share,),
        reason="static",
    )


def supervision(sample_key: str, name: str, old: str | None, new: str | None) -> SupervisionChanged:
    return SupervisionChanged.model_validate(
        COMMON
        | {
            "sample_key": sample_key,
            "step": 1,
            "method": "counts",
            "lifetime": "run",
            "field": name,
            "old": old,
            "new": new,
            "evidence": {"scores": [1, 0]},
            "actor": "policy",
        }
    )


def shadow(request: GroupRequested, *, window: int) -> ShadowDecided:
    return ShadowDecided(
        **COMMON,
        group=request.group,
        outcome="admitted",
        reason="admitted",
        annotations=(an_annotation(0), an_annotation(1)),
        window=window,
        verified_seq=1,
        policy="other",
        policy_version="2",
    )
