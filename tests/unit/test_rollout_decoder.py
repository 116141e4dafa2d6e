"""Continuous batching gives what transformers' own full forward gives, whatever happens around a row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from broker.messages import VersionSpan
from tests.rollout_models import (
    CONFIGS,
    END,
    VOCABULARY,
    a_decoder,
    a_folder,
    a_job,
    a_model,
    a_pair,
    answers,
    check_against,
    decode,
    own_logprobs,
    save_weights,
    swap,
)
from workers.rollout import attention
from workers.rollout import decoder as decoder_module
from workers.rollout.decoder import Ticket
from workers.rollout.engine import Refused
from workers.rollout.kv_cache import BLOCK_SLOTS, KvCache

torch.set_num_threads(1)
RAGGED = [[5], [6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16], [17, 18, 19], [20, 21, 22, 23, 24, 25]]


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_answers_agree_with_the_full_forward(tmp_path: Path, family: str, temperature: float):
    decoder, model = a_pair(tmp_path, family, max_rows=7)
    # Seven rows for fifteen answers of different lengths: rows end, are replaced and move.
    jobs = [
        a_job(p, (10 * i, 10 * i + 1, 10 * i + 2), temperature=temperature, max_tokens=5 + 9 * (i % 3))
        for i, p in enumerate(RAGGED)
    ]  # fmt: skip

    results = decode(decoder, jobs)

    for job, result in zip(jobs, results, strict=True):
        for answer in answers(result):
            check_against(model, job, answer)
    assert decoder.rows == 0


@pytest.mark.parametrize("whole_blocks", [True, False])
@pytest.mark.parametrize("family", CONFIGS)
def test_answers_that_outgrow_a_block_of_the_cache_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, whole_blocks: bool
):
    def a_cache(*args: Any, **settings: Any) -> KvCache:
        return KvCache(*args, **{**settings, "whole_blocks": whole_blocks})

    monkeypatch.setattr(decoder_module, "KvCache", a_cache)
    if not whole_blocks:  # as on a GPU
        monkeypatch.setattr(attention, "_products", attention._fused)
    decoder, model = a_pair(tmp_path, family, max_rows=5, ends=frozenset())
    # Prompts within the first block, at its end and beyond it; rows end, are replaced and move.
    lengths = [(3, 50), (BLOCK_SLOTS - 1, 30), (BLOCK_SLOTS, 20), (BLOCK_SLOTS + 1, 31), (9, 10)]
    jobs = [
        a_job([5 + i] * prompt, (10 * i, 10 * i + 1), max_tokens=tokens)
        for i, (prompt, tokens) in enumerate(lengths)
    ]

    results = decode(decoder, jobs)

    for job, result in zip(jobs, results, strict=True):
        for answer in answers(result):
            expected = own_logprobs(model, job.prompt_ids, answer.token_ids)
            chosen = expected[np.arange(job.sampling.max_tokens), answer.token_ids]
            np.testing.assert_allclose(answer.logprobs, chosen, atol=1e-4)


def test_an_answer_does_not_depend_on_its_neighbours(tmp_path: Path):
    decoder, _ = a_pair(tmp_path)
    jobs = [a_job(p, (100 + i,), max_tokens=20) for i, p in enumerate(RAGGED)]

    together = decode(decoder, jobs)
    alone = [decode(decoder, [job])[0] for job in jobs]

    for left, right in zip(together, alone, strict=True):
        assert answers(left)[0].token_ids.tolist() == answers(right)[0].token_ids.tolist()
        np.testing.assert_allclose(answers(left)[0].logprobs, answers(right)[0].logprobs, atol=1e-5)


def test_answers_of_a_group_differ_by_their_seeds_alone(tmp_path: Path):
    decoder, _ = a_pair(tmp_path)

    (result,) = decode(decoder, [a_job(seeds=(1, 2, 3, 4, 1), max_tokens=20)])

    texts = [tuple(a.token_ids.tolist()) for a in answers(result)]
    assert texts[0] == texts[4]
    assert len(set(texts)) == 4


def test_the_same_jobs_again_give_the_same_bits(tmp_path: Path):
    used, _ = a_pair(tmp_path, max_rows=5)
    fresh, _ = a_pair(tmp_path, max_rows=5)
    jobs = [a_job(p, (7 * i, 7 * i + 1), max_tokens=16) for i, p in enumerate(RAGGED)]
    decode(used, [a_job([9] * 40, tuple(range(5)), max_tokens=20)])  # grows its cache

    first, again, other = decode(used, jobs), decode(used, jobs), decode(fresh, jobs)

    for results in zip(first, again, other, strict=True):
        for one, *rest in zip(*map(answers, results), strict=True):
            for same in rest:
                assert one.token_ids.tobytes() == same.token_ids.tobytes()
                assert one.logprobs.tobytes() == same.logprobs.tobytes()


def test_a_group_larger_than_the_engine_runs_alone(tmp_path: Path):
    decoder, model = a_pair(tmp_path, max_rows=2)
    jobs = [a_job([5, 6], (1,)), a_job([7, 8], (1, 2, 3, 4)), a_job([9], (1, 2))]

    results = decode(decoder, jobs)

    for job, result in zip(jobs, results, strict=True):
        assert len(answers(result)) == len(job.seeds)
        for answer in answers(result):
            check_against(model, job, answer)


def test_weights_swapped_in_flight_rule_from_the_next_token_on(tmp_path: Path):
    old, new = a_model(seed=0), a_model(seed=1)
    old_file, new_file = save_weights(old, tmp_path / "old"), save_weights(new, tmp_path / "new")
    # An end token would cut the scenario short.
    decoder = a_decoder(a_folder(tmp_path), old_file, version=4, ends=frozenset())
    first, second = (a_job([5, 6, 7], (s,), temperature=0, max_tokens=12) for s in (1, 2))
    tickets = [Ticket(first), Ticket(second)]
    decoder.submit(tickets[0])
    with torch.inference_mode():
        for _ in range(3):
            decoder.advance()
        decoder.submit(tickets[1])
        for _ in range(2):
            decoder.advance()
        swap(decoder, new_file, 5)
        done = {}
        while decoder.busy:
            done.update(decoder.advance())

    (early,), (late,) = answers(done[tickets[0]]), answers(done[tickets[1]])

    span = VersionSpan
    assert early.spans == (span(version=4, first=0, end=5), span(version=5, first=5, end=12))
    assert late.spans == (span(version=4, first=0, end=2), span(version=5, first=2, end=12))
    for answer, kept in ((early, 5), (late, 2)):
        under_old = own_logprobs(old, first.prompt_ids, answer.token_ids)
        under_new = own_logprobs(new, first.prompt_ids, answer.token_ids)
        at = np.arange(12)
        np.testing.assert_allclose(
            answer.logprobs[:kept], under_old[at, answer.token_ids][:kept], atol=1e-4
        )
        # Old keys and values are kept, so later tokens follow neither model alone.
        assert abs(answer.logprobs[kept:] - under_old[at, answer.token_ids][kept:]).max() > 1e-2
        assert abs(answer.logprobs[kept:] - under_new[at, answer.token_ids][kept:]).max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "llama-tied", "qwen2", "qwen3"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_answer_that_spans_a_swap_equals_transformers_own_cached_forward(
    tmp_path: Path, family: str, temperature: float
):
    old, new = a_model(family, seed=0), a_model(family, seed=1)
    decoder = a_decoder(
        a_folder(tmp_path, family),
        save_weights(old, tmp_path / "old"),
        max_rows=3,
        ends=frozenset(),
    )
    # Ragged, more rows than there is room for, so that the last begins after the swap.
    jobs = [
        a_job(p, (i,), temperature=temperature, max_tokens=9 + i) for i, p in enumerate(RAGGED[1:])
    ]
    tickets = [Ticket(job) for job in jobs]
    with torch.inference_mode():
        for ticket in tickets:
            decoder.submit(ticket)
        for _ in range(4):
            decoder.advance()
        swap(decoder, save_weights(new, tmp_path / "new"), 1)
        done = {}
        while decoder.busy:
            done.update(decoder.advance())

    for ticket in tickets:
        (answer,) = answers(done[ticket])
        begun = sum(s.end - s.first for s in answer.spans if s.version == 0)
        models = [old] * begun + [new] * (len(answer.token_ids) - begun)
        cache, logprobs = DynamicCache(), []
        prompt = torch.tensor(ticket.job.prompt_ids, dtype=torch.int64)
        fed = [prompt, *torch.tensor(answer.token_ids[:-1], dtype=torch.int64)[:, None]]
        with torch.no_grad():
            for model, ids in zip(models, fed, strict=True):
                logits = model(input_ids=ids[None], cache=cache, use_cache=True).logits
                logprobs.append(torch.log_softmax(logits[0, -1] / (temperature or 1.0), -1))
        found = np.array([x[t] for x, t in zip(logprobs, answer.token_ids, strict=True)])
        np.testing.assert_allclose(answer.logprobs, found, atol=1e-4)
        if temperature == 0:
            np.testing.assert_allclose(found, [x.max() for x in logprobs], atol=1e-4)
    assert {len(answers(done[t])[0].spans) for t in tickets} == {1, 2}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_tokens_come_as_often_as_transformers_own_distribution_says(
    tmp_path: Path, family: str, temperature: float
):
    rows = 6000
    decoder, model = a_pair(tmp_path, family, max_rows=rows)
    job = a_job([5, 6, 7], tuple(range(rows)), temperature=temperature, max_tokens=1)

    (result,) = decode(decoder, [job])

    counts = np.bincount([int(a.token_ids[0]) for a in answers(result)], minlength=VOCABULARY)
    own = own_logprobs(model, job.prompt_ids, np.array([END]), temperature)[0]
    expected = np.exp(own.astype(np.float64)) * rows
    # Rare tokens together, so that every bin expects at least five.
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    chi_square = ((observed - wanted) ** 2 / np.maximum(wanted, 1e-9)).sum()
    degrees = len(wanted) - 1
    assert degrees >= 5
    # Wilson and Hilferty's approximation of the 99.9 % quantile.
    assert chi_square < degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3


def test_after_a_swap_new_prompts_follow_the_new_weights_alone(tmp_path: Path):
    old, new = a_model(seed=0), a_model(seed=1)
    decoder = a_decoder(a_folder(tmp_path), save_weights(old, tmp_path / "old"), version=4)
    job = a_job([5, 6, 7], temperature=0)
    decode(decoder, [job])

    swap(decoder, save_weights(new, tmp_path / "new"), 5)
    (result,) = decode(decoder, [job])

    for answer in answers(result):
        check_against(new, job, answer)
        assert {span.version for span in answer.spans} == {5}


def test_spans_stay_right_over_many_swaps(tmp_path: Path):
    model = a_model()
    file = save_weights(model, tmp_path / "w")
    decoder = a_decoder(a_folder(tmp_path), file, max_rows=3, version=0, ends=frozenset())
    tickets = [Ticket(a_job(seeds=(i,), max_tokens=4 + i)) for i in range(8)]
    began: dict[Ticket, int] = {}
    done = {}
    for ticket in tickets:
        decoder.submit(ticket)

    step = 0
    with torch.inference_mode():
        while decoder.busy:
            # The version of a token is the step in which it is sampled.
            swap(decoder, file, step)
            done.update(decoder.advance())
            for ticket in tickets:
                if ticket.started_at_us and ticket not in began:
                    began[ticket] = step
            step += 1

    for ticket in tickets:
        (answer,) = answers(done[ticket])
        versions = [span.version for span in answer.spans]
        assert versions == list(range(began[ticket], began[ticket] + len(answer.token_ids)))
        assert [(s.first, s.end) for s in answer.spans] == [
            (t, t + 1) for t in range(len(versions))
        ]
    assert len(decoder._versions) <= 12


def test_a_group_with_logits_that_are_not_finite_is_refused_and_harms_no_other(tmp_path: Path):
    decoder, model = a_pair(tmp_path, max_rows=4)
    healthy = a_job([5, 6], (1, 2), max_tokens=3)
    seen = np.concatenate([a.token_ids for a in answers(decode(decoder, [healthy])[0])])
    # A prompt token whose embedding is not finite, until it is mended.
    poisoned = next(token for token in range(10, VOCABULARY) if token not in seen)
    weight = decoder.model.get_input_embeddings().weight
    saved = weight[poisoned].clone()
    weight.data[poisoned] = float("nan")

    bad, good = decode(decoder, [a_job([5] * 9 + [poisoned, 6], (1, 2), max_tokens=10), healthy])

    assert isinstance(bad, Refused)
    assert "not finite" in bad.reason
    assert "version 0" in bad.reason
    weight.data[poisoned] = saved
    # The next group in those rows has longer neighbours: it looks, masked, at what the rows held.
    short, long = a_job([7, 8], (3, 4), max_tokens=10), a_job([9] * 20, (5, 6), max_tokens=10)
    tickets = [Ticket(short), Ticket(long)]
    done = {}
    with torch.inference_mode():
        for ticket in tickets:
            decoder.submit(ticket)
            done.update(decoder.advance())
        while decoder.busy:
            done.update(decoder.advance())
    for job, result in ((healthy, good), *((t.job, done[t]) for t in tickets)):
        for answer in answers(result):
            check_against(model, job, answer)


def test_withdrawn_jobs_leave_no_rows_and_the_others_go_on(tmp_path: Path):
    decoder, model = a_pair(tmp_path, max_rows=4)
    stays, goes, waits = (a_job([5 + i], (1, 2), max_tokens=20, temperature=0) for i in range(3))
    tickets = [Ticket(goes), Ticket(stays), Ticket(waits)]
    for ticket in tickets:
        decoder.submit(ticket)
    done = {}
    with torch.inference_mode():
        done.update(decoder.advance())
        decoder.withdraw(tickets[0])
        decoder.withdraw(tickets[2])
        assert decoder.rows == 2
        while decoder.busy:
            done.update(decoder.advance())

    assert set(done) == {tickets[1]}
    for answer in answers(done[tickets[1]]):
        check_against(model, stays, answer)
