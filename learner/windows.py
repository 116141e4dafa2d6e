"""Windows of admitted groups, and the plan made of one. Pure.

The sweep here is what guarantees that no token older than the bound is ever trained: pacing only
makes drops rare.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from broker.arrays import unpack
from broker.messages import (
    Annotation,
    DroppedGroup,
    Generation,
    GroupAnnotated,
    PlannedGroup,
    StepPlanned,
)
from learner.staleness import NOT_FRESH, excess, word


@dataclass(frozen=True)
class Member:
    """One group of a window, where it lies in ANNOTATED."""

    group_id: str
    bundle: str
    domain: str
    stream_seq: int
    group: GroupAnnotated | None
    """None: the message could not be read."""


@dataclass(frozen=True)
class Window:
    """All groups that a policy admitted to one step, in its order."""

    number: int
    members: tuple[Member, ...]
    cursor: int
    """Sequence in ANNOTATED of its last message."""


@dataclass(frozen=True)
class Swept:
    kept: tuple[tuple[Member, int], ...]
    """Groups to train, each with its staleness."""
    dropped: tuple[DroppedGroup, ...]


def version_min(group: GroupAnnotated) -> int:
    """Oldest model version among all tokens of all answers, whatever their weight."""
    return min(generation.version_min for generation in group.generations)


def fault(group: GroupAnnotated, *, version: int, vocabulary: int) -> str | None:
    """Why a group cannot be trained, whatever its age; None when it can.

    The stages before have checked most of this; a trained mistake would be for good.
    """
    request = group.request
    if request is None or not group.generations or not len(request.prompt_ids):
        return "malformed"
    if [g.index for g in group.generations] != [a.index for a in group.annotations]:
        return "malformed"
    sampling = request.sampling
    cut = (sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty)
    if sampling.temperature <= 0 or cut != (1.0, 0, 0.0, 1.0):
        # The trainer's softmax would be another distribution than the one sampled from.
        return "sampling"
    if max(generation.version_max for generation in group.generations) > version:
        return "unknown_version"
    packed = [request.prompt_ids, *(g.token_ids for g in group.generations)]
    if any(array.dtype != "<i4" for array in packed):
        return "malformed"
    ids = np.concatenate([unpack(array).reshape(-1) for array in packed])  # at once, not each alone
    if ids.min(initial=0) < 0 or ids.max(initial=0) >= vocabulary:
        return "malformed"
    answers = list(zip(group.generations, group.annotations, strict=True))
    if _all_plain_and_finite(answers):
        return None
    return next((reason for one in answers if (reason := _answer_fault(*one))), None)


def _all_plain_and_finite(answers: Sequence[tuple[Generation, Annotation]]) -> bool:
    """What nearly every group is, seen at once: nothing per token, and finite where it counts."""
    if any(a.token_weights is not None or a.token_advantages is not None for _, a in answers):
        return False
    values = [unpack(generation.logprobs).reshape(-1) for generation, a in answers if a.weight > 0]
    return not values or bool(np.isfinite(np.concatenate(values)).all())


def _answer_fault(generation: Generation, annotation: Annotation) -> str | None:
    weights, advantages = annotation.token_weights, annotation.token_advantages
    per_token = [unpack(array) for array in (weights, advantages) if array is not None]
    if any(len(values) != len(generation.token_ids) for values in per_token):
        return "malformed"
    numbers = [unpack(generation.logprobs), *per_token]
    if annotation.weight > 0 and not all(np.isfinite(values).all() for values in numbers):
        return "nonfinite"
    if weights is not None and unpack(weights).min(initial=0.0) < 0:
        return "malformed"
    return None


@dataclass(frozen=True)
class Rules:
    """What a step may train."""

    max_staleness: int
    """Eta."""
    vocabulary: int
    """Token ids below this are the model's."""
    min_fresh_share: float = 0.0
    """Of a step's groups, at least this share is as new as the version it starts from."""
    ended_verified: int = 0
    """Groups verified up to here ended with a run that was resumed since."""


def judge(member: Member, rules: Rules, *, version: int) -> tuple[str, int | None]:
    """Why a group must be dropped (empty: it need not be), and its staleness where it has one."""
    if member.group is None:
        return "undecodable", None
    if member.group.verified_seq <= rules.ended_verified:
        return "run_ended", None
    reason = fault(member.group, version=version, vocabulary=rules.vocabulary)
    if reason is not None:
        return reason, None
    staleness = version - version_min(member.group)
    stale = word(staleness, rules.max_staleness) == "stale"
    return ("stale" if stale else ""), staleness


def sweep(members: Sequence[Member], rules: Rules, *, version: int) -> Swept:
    """Split a window into what a step from `version` may train and what it must drop, with reasons.

    A bundle is kept or dropped whole: the fault of one member ends the rest as `bundle`.
    """
    judged = [(member, *judge(member, rules, version=version)) for member in members]
    broken = {member.bundle for member, reason, _ in judged if reason}
    kept: list[tuple[Member, int]] = []
    dropped: list[DroppedGroup] = []
    for member, reason, staleness in judged:
        if member.bundle not in broken and staleness is not None:
            kept.append((member, staleness))
            continue
        dropped.append(
            DroppedGroup(
                group_id=member.group_id,
                stream_seq=member.stream_seq,
                reason=reason or "bundle",
                staleness=staleness,
            )
        )
    too_many = _too_many_old(kept, rules.min_fresh_share)
    dropped += [
        DroppedGroup(
            group_id=member.group_id,
            stream_seq=member.stream_seq,
            reason=NOT_FRESH,
            staleness=age,
        )
        for member, age in kept
        if member.bundle in too_many
    ]
    return Swept(tuple(pair for pair in kept if pair[0].bundle not in too_many), tuple(dropped))


def _too_many_old(kept: Sequence[tuple[Member, int]], min_fresh_share: float) -> set[str]:
    """Bundles that must go for the fresh share."""
    if not min_fresh_share:
        return set()
    bundles: dict[str, tuple[int, int]] = {}
    for member, age in kept:
        groups, oldest = bundles.get(member.bundle, (0, 0))
        bundles[member.bundle] = groups + 1, max(oldest, age)
    names = list(bundles)
    return {names[at] for at in excess(list(bundles.values()), min_fresh_share)}


def make_plan(
    window: Window, swept: Swept, *, version: int, writer_id: str, at_us: int
) -> StepPlanned:
    """The step to take: what is trained, in which order, from which version, and what is dropped."""
    return StepPlanned(
        writer_id=writer_id,
        at_us=at_us,
        step=window.number,
        version=version,
        groups=tuple(
            PlannedGroup(
                group_id=member.group_id,
                domain=member.domain,
                stream_seq=member.stream_seq,
                staleness=age,
            )
            for member, age in swept.kept
        ),
        dropped=swept.dropped,
        cursor=window.cursor,
    )


def dropped_by_skip(planned: Sequence[PlannedGroup], reason: str) -> tuple[DroppedGroup, ...]:
    """How the groups of a step that was not taken end."""
    return tuple(
        DroppedGroup(
            group_id=group.group_id,
            stream_seq=group.stream_seq,
            reason=reason,
            staleness=group.staleness,
        )
        for group in planned
    )
