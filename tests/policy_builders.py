"""Verified groups in log order, for tests of the policy."""

from collections.abc import Sequence

import numpy as np

from broker.arrays import logprob_array
from broker.messages import GroupVerified, MixtureCounters
from tests.builders import a_generation, a_key, a_request, a_verdict, a_verified
from workers.policies.batch import Batch, make_batch
from workers.policies.decisions import Closed, Decision, Ended
from workers.policies.group import Group, from_event
from workers.policies.order import Arrival


def a_group_event(
    number: int,
    scores: Sequence[float | None] = (1.0, 0.0),
    *,
    domain: str = "math",
    lengths: Sequence[int] | None = None,
    logprobs: Sequence[Sequence[float]] | None = None,
    truncated: Sequence[bool] | None = None,
    classes: Sequence[int | None] | None = None,
    key: str | None = None,
    requested: dict[str, int] | None = None,
    bundle: str | None = None,
    bundle_size: int = 1,
    cohort: tuple[int, int] | None = None,
    failed: bool = False,
    **changes: object,
) -> GroupVerified:
    """Group `number` of a run; `scores` of None are timeouts."""
    group = a_key(
        f"{number:08d}-0-0",
        domain=domain,
        bundle=bundle or f"{number:08d}",
        bundle_size=bundle_size,
    )
    counts = requested or {domain: number}
    request = a_request(
        group=group,
        size=max(1, len(scores)),
        cohort=cohort[0] if cohort else None,
        cohort_size=cohort[1] if cohort else None,
        mixture=MixtureCounters(
            update_no=0,
            target={domain: 1.0},
            owed={},
            requested=counts,
            positions=counts,
        ),
    )
    if key:
        sample = request.sample.model_copy(update={"key": key})
        request = request.model_copy(update={"sample": sample})
    if failed:
        return a_verified(
            request, (), status="failed", reason="engine", generations=(), verdicts=()
        )
    generations = []
    for row in range(len(scores)):
        tokens = lengths[row] if lengths else len(logprobs[row]) if logprobs else 3
        more: dict[str, object] = {}
        if logprobs:
            more["logprobs"] = logprob_array(np.asarray(logprobs[row]))
        if truncated and truncated[row]:
            more["finish_reason"] = "length"
        generations.append(a_generation(row, tokens=tokens, **more))
    verdicts = []
    for row, score in enumerate(scores):
        verdict: dict[str, object] = {} if score is not None else {"status": "timeout"}
        if classes:
            verdict["answer_class"] = classes[row]
            verdict["answer_key"] = None if classes[row] is None else f"answer{classes[row]}"
        verdicts.append(a_verdict(row, score, **verdict))
    return a_verified(
        request,
        tuple(s or 0.0 for s in scores),
        generations=tuple(generations),
        verdicts=tuple(verdicts),
        **changes,
    )


def an_arrival(sequence: int, event: GroupVerified) -> Arrival:
    return Arrival(sequence, event)


def a_group(scores: Sequence[float | None] = (1.0, 0.0), **changes: object) -> Group:
    number = changes.pop("number", 1)
    assert isinstance(number, int)
    return from_event(a_group_event(number, scores, **changes))  # pyright: ignore[reportArgumentType]


def a_batch(*scores: Sequence[float], **changes: object) -> Batch:
    """A window of groups rewarded with their scores."""
    groups = [a_group(s, number=n + 1, **changes) for n, s in enumerate(scores)]
    return make_batch(groups, [g.scores_G for g in groups])


def told(decisions: Sequence[Decision]) -> list[tuple[object, ...]]:
    """Decisions as comparable values, everything that would be published included."""
    found: list[tuple[object, ...]] = []
    for decision in decisions:
        match decision:
            case Ended():
                group_id = decision.arrival.event.group.group_id
                found.append((decision.outcome, group_id, decision.reason, decision.annotations))
            case Closed():
                members = tuple(
                    (arrival.event.group.group_id, rows) for arrival, rows in decision.members
                )
                found.append(
                    ("closed", decision.window, decision.cut, members, decision.request_seq,
                     decision.shares, decision.snapshot)
                )  # fmt: skip
    return found
