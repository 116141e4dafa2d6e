"""Groups of one step as rows, and rows as micro-batches: a pure, deterministic arrangement.

Masks come from lengths, never from token ids, so an end token is trained like any other and a pad
token that equals it does no harm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from broker.arrays import unpack
from broker.messages import (
    Annotation,
    Generation,
    GroupAnnotated,
    GroupRequested,
    VersionSpan,
)


@dataclass(frozen=True)
class Row:
    """One answer with its prompt, as the loss sees it. T answer tokens, P prompt tokens."""

    group: int
    """Position of its group within the step."""
    prompt_ids_P: np.ndarray
    answer_ids_T: np.ndarray
    rollout_logprobs_T: np.ndarray
    """float32, under the distribution that was sampled from."""
    advantage: float
    weight: float
    """0 masks the row."""
    token_weights_T: np.ndarray | None
    """Multiplies `weight`; None: all 1."""
    temperature: float
    max_tokens: int
    """L_max of its request."""
    token_advantages_T: np.ndarray | None = None
    """Takes the place of `advantage`; None: the same for all tokens."""
    spans: tuple[VersionSpan, ...] = ()
    """Which version sampled which tokens; empty: all by `version`."""
    version: int = 0
    """The one that the step starts from."""

    @property
    def tokens(self) -> int:
        return len(self.answer_ids_T)

    @property
    def length(self) -> int:
        """Prompt and answer tokens."""
        return len(self.prompt_ids_P) + len(self.answer_ids_T)

    def weights_T(self) -> np.ndarray:
        """Row weight times token weight, float64."""
        if self.token_weights_T is None:
            return np.full(self.tokens, self.weight)
        return self.weight * self.token_weights_T.astype(np.float64)

    def advantages_T(self) -> np.ndarray:
        """float32, per token."""
        if self.token_advantages_T is None:
            return np.full(self.tokens, self.advantage, np.float32)
        return self.token_advantages_T

    def ages(self) -> np.ndarray:
        """(T,) float32: versions between the one that sampled a token and the one the step starts from."""
        ages_T = np.zeros(self.tokens, np.float32)
        for span in self.spans:
            ages_T[span.first : span.end] = self.version - span.version
        return ages_T

    def signal(self) -> float:
        """Sum over its tokens of |weight * advantage|; 0: the policy gradient of this row is zero."""
        advantages = self.advantage if self.token_advantages_T is None else self.token_advantages_T
        return float(np.abs(self.weights_T() * advantages).sum())


def _row(
    group: int, request: GroupRequested, generation: Generation, annotation: Annotation,
) -> Row:  # fmt: skip
    weights, advantages = annotation.token_weights, annotation.token_advantages
    return Row(
        group=group,
        prompt_ids_P=unpack(request.prompt_ids),
        answer_ids_T=unpack(generation.token_ids),
        rollout_logprobs_T=unpack(generation.logprobs),
        advantage=annotation.advantage,
        weight=annotation.weight,
        token_weights_T=None if weights is None else unpack(weights),
        temperature=request.sampling.temperature,
        max_tokens=request.sampling.max_tokens,
        token_advantages_T=None if advantages is None else unpack(advantages),
        spans=generation.spans,
    )


Prepared = Mapping[str, Sequence[Row]]
"""Rows by group id, made before it is known which groups a step trains and from which version."""


def rows_of_group(group: GroupAnnotated) -> list[Row]:
    """All answers of a group, as they are whatever step they get into."""
    request = group.request
    if request is None:
        raise ValueError(f"group {group.group.group_id}: admitted without its request")
    return [
        _row(0, request, generation, annotation)
        for generation, annotation in zip(group.generations, group.annotations, strict=True)
    ]


def rows_of(
    groups: Sequence[GroupAnnotated], *, version: int, ready: Prepared | None = None
) -> list[Row]:
    """All answers of a step in training order, those of weight 0 included: denominators count them.

    version: the one that the step starts from. ready: rows made earlier, for some or all groups.
    """
    known = ready or {}
    return [
        replace(row, group=index, version=version)
        for index, group in enumerate(groups)
        for row in (known.get(group.group.group_id) or rows_of_group(group))
    ]


def parts_of(rows: Sequence[Row], parts: int) -> list[list[Row]]:
    """Whole groups in order, as evenly as their number allows, for several updates a step; none is empty."""
    groups = sorted({row.group for row in rows})
    found = [
        [row for row in rows if row.group in set(some.tolist())]
        for some in np.array_split(np.array(groups), min(parts, max(len(groups), 1)))
    ]
    return [part for part in found if part]


def micro_batches(lengths_B: Sequence[int], token_budget: int) -> list[list[int]]:
    """Row indices per micro-batch, rows of similar length together, longest first.

    A micro-batch costs rows x its longest row, as attention sees it, and stays within `token_budget`;
    a single row above the budget gets one of its own. Ties go by row index, so the same rows
    always make the same micro-batches.
    """
    batches: list[list[int]] = []
    limit = 0
    for index in sorted(range(len(lengths_B)), key=lambda i: (-lengths_B[i], i)):
        if batches and len(batches[-1]) < limit:
            batches[-1].append(index)
        else:
            batches.append([index])
            limit = token_budget // max(lengths_B[index], 1)
    return batches
