"""Groups of one step as rows, and rows as micro-batches: a pure, deterministic arrangement.

Masks come from lengths, never from token ids, so an end token is trained like any other and a pad
token that equals it does no harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from broker.arrays import unpack
from broker.messages import Annotation, Generation, GroupAnnotated


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

    def signal(self) -> float:
        """Sum over its tokens of |weight * advantage|; 0: the policy gradient of this row is zero."""
        return float(np.abs(self.weights_T() * self.advantage).sum())


def row_of(
    group: int, request_temperature: float, max_tokens: int, prompt_ids_P: np.ndarray,
    generation: Generation, annotation: Annotation,
) -> Row:  # fmt: skip
    weights = annotation.token_weights
    return Row(
        group=group,
        prompt_ids_P=prompt_ids_P,
        answer_ids_T=unpack(generation.token_ids),
        rollout_logprobs_T=unpack(generation.logprobs),
        advantage=annotation.advantage,
        weight=annotation.weight,
        token_weights_T=None if weights is None else unpack(weights),
        temperature=request_temperature,
        max_tokens=max_tokens,
    )


def rows_of(groups: Sequence[GroupAnnotated]) -> list[Row]:
    """All answers of a step in training order, those of weight 0 included: denominators count them."""
    rows: list[Row] = []
    for index, group in enumerate(groups):
        request = group.request
        if request is None:
            raise ValueError(f"group {group.group.group_id}: admitted without its request")
        prompt_ids_P = unpack(request.prompt_ids)
        rows.extend(
            row_of(
                index, request.sampling.temperature, request.sampling.max_tokens, prompt_ids_P,
                generation, annotation,
            )
            for generation, annotation in zip(group.generations, group.annotations, strict=True)
        )  # fmt: skip
    return rows


def micro_batches(lengths_B: Sequence[int], token_budget: int) -> list[list[int]]:
    """Row indices per micro-batch, rows of similar length together, longest first.

    A micro-batch costs rows x its longest row, padding included, and stays within `token_budget`;
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
