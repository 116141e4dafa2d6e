"""Builders for tests of the learner: rows, groups with ragged answers, and a model small enough to train."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from broker.arrays import Array, logprob_array, pack, token_array
from broker.messages import GroupAnnotated, Sampling, VersionSpan
from learner.batch import Row
from learner.model import load_model
from learner.settings import TinyModel
from learner.tiny import write_model_folder
from tests.builders import a_generation, a_key, a_request, an_annotated, an_annotation

CHARACTERS = "0123456789+-=abcdefgh"
VOCABULARY = len(CHARACTERS) + 3
TINY = TinyModel(
    characters=CHARACTERS, hidden=16, layers=2, heads=2, kv_heads=1, intermediate=32, positions=64
)


def a_model_folder(folder: Path) -> Path:
    write_model_folder(TINY, folder)
    return folder


def a_model(folder: Path, *, seed: int = 0) -> PreTrainedModel:
    """Small; its start is wide enough that its answers are not all alike."""
    torch.set_num_threads(1)
    return load_model(a_model_folder(folder), device="cpu", seed=seed)


def a_row(
    answer: int = 4,
    *,
    prompt: int = 3,
    group: int = 0,
    advantage: float = 1.0,
    weight: float = 1.0,
    token_weights: np.ndarray | None = None,
    temperature: float = 1.0,
    max_tokens: int = 32,
    rng: np.random.Generator | None = None,
) -> Row:
    rng = rng or np.random.default_rng(answer * 31 + prompt)
    return Row(
        group=group,
        prompt_ids_P=rng.integers(3, VOCABULARY, prompt).astype(np.int32),
        answer_ids_T=rng.integers(3, VOCABULARY, answer).astype(np.int32),
        rollout_logprobs_T=(-3.0 + rng.normal(0, 0.3, answer)).astype(np.float32),
        advantage=advantage,
        weight=weight,
        token_weights_T=token_weights,
        temperature=temperature,
        max_tokens=max_tokens,
    )


def ragged_rows(seed: int, count: int = 12) -> list[Row]:
    """Rows of all lengths, weights, token weights, token advantages, ages and temperatures; some masked."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        answer = int(rng.integers(0, 14))
        weighted = index % 3 == 0
        rows.append(
            a_row(
                answer,
                prompt=int(rng.integers(1, 9)),
                group=index // 4,
                advantage=0.0 if index == 1 else float(rng.normal()),
                weight=float(rng.choice([0.0, 0.5, 1.0, 2.0])),
                token_weights=rng.choice([0.0, 0.3, 1.0], answer).astype(np.float32)
                if weighted
                else None,
                temperature=float(rng.choice([0.7, 1.0, 1.3])),
                rng=rng,
            )
        )
        if answer > 4:
            old, new = (
                VersionSpan(version=2, first=0, end=3),
                VersionSpan(version=4, first=3, end=answer),
            )
            rows[-1] = replace(rows[-1], spans=(old, new), version=4)
        if index % 5 == 2:
            values = np.random.default_rng(seed + index).normal(size=answer).astype(np.float32)
            rows[-1] = replace(rows[-1], token_advantages_T=values)
    return rows


def a_group(
    group_id: str,
    *,
    rewards: tuple[float, ...] = (1.0, 0.0),
    advantages: tuple[float, ...] | None = None,
    spans: tuple[tuple[VersionSpan, ...], ...] | None = None,
    version: int = 0,
    window: int = 1,
    window_size: int = 1,
    window_index: int = 0,
    domain: str = "math",
    bundle: str | None = None,
    **changes: object,
) -> GroupAnnotated:
    """An admitted group whose answers differ, deterministic in its id."""
    rng = np.random.default_rng(int(group_id.split("-")[0]))
    if advantages is None:
        mean = sum(rewards) / len(rewards)
        advantages = tuple(reward - mean for reward in rewards)
    lengths = [int(n) for n in rng.integers(2, 9, len(rewards))]
    generations = []
    for index, tokens in enumerate(lengths):
        found = (VersionSpan(version=version, first=0, end=tokens),)
        if spans is not None:
            found = spans[index]
            tokens = found[-1].end
        generations.append(
            a_generation(
                index,
                tokens=tokens,
                token_ids=token_array(rng.integers(3, VOCABULARY, tokens)),
                logprobs=logprob_array(rng.normal(-3.0, 0.2, tokens)),
                spans=found,
            )
        )
    request = a_request(
        group_id,
        size=len(rewards),
        group=a_key(group_id, domain=domain, bundle=bundle or group_id),
        prompt_ids=token_array(rng.integers(3, VOCABULARY, 4)),
        sampling=Sampling(temperature=1.0, max_tokens=16),
    )
    annotations = tuple(
        an_annotation(i, advantage=a, reward=r)
        for i, (a, r) in enumerate(zip(advantages, rewards, strict=True))
    )
    fields: dict[str, object] = {
        "generations": tuple(generations),
        "annotations": annotations,
        "window": window,
        "window_size": window_size,
        "window_index": window_index,
    }
    return an_annotated(request, advantages, **(fields | changes))


def bytes_array(values: object) -> Array:
    """float32 as it travels."""
    return pack(values, "<f4")
