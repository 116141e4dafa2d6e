"""The numbers of summary.json from rows of the store."""

import pytest

from store.summary import accuracy, reward_by_domain, summarise, throughput


def a_step(step: int, **changes: object) -> dict[str, object]:
    fields = {
        "step": step, "status": "trained", "groups": 2, "generations": 4, "tokens": 40,
        "staleness_max": 0, "reward_mean": step / 100, "metrics": {"reward/math": step / 100},
        "at": 100.0 + step,
    }  # fmt: skip
    return fields | changes


def test_first_and_last_reward_are_means_over_a_tenth_of_the_trained_steps():
    steps = [a_step(step) for step in range(1, 21)] + [
        a_step(21, status="skipped", reward_mean=9.0)
    ]

    found = summarise("run", steps, [], [], [], {})

    assert found["reward_first"] == pytest.approx(0.015)
    assert found["reward_last"] == pytest.approx(0.195)
    assert (found["steps"], found["samples"], found["tokens"]) == (21, 80, 800)


def test_rates_count_from_the_first_request_to_the_last_commit():
    span = {"first_request": 92.0, "started": 90.0, "ended": 110.0, "status": "finished"}

    found = summarise("run", [a_step(1), a_step(2)], [], [], [], span)

    assert found["samples_per_s"] == pytest.approx(0.8)
    assert found["tokens_per_s"] == pytest.approx(8.0)
    assert found["wall_s"] == 20.0


def test_pauses_count_in_no_duration_and_no_rate():
    """Three seconds within the training, and five of which only the last two are the run's."""
    span = {"first_request": 92.0, "started": 90.0, "ended": 110.0, "status": "finished"}

    found = summarise(
        "run", [a_step(1), a_step(2)], [], [], [], span, pauses=[(87.0, 92.0), (95.0, 98.0)]
    )

    assert found["wall_s"] == 15.0
    assert found["samples_per_s"] == pytest.approx(8 / 7)


def test_a_run_without_steps_has_no_numbers_rather_than_zeros():
    found = summarise("run", [], [], [], [], {})

    assert found["reward_first"] is found["eval_last"] is found["samples_per_s"] is None
    assert found["staleness_max"] is None
    assert found["trained_groups"] == 0


def test_accuracy_weighs_items_and_is_unknown_when_a_benchmark_has_no_score():
    rows = [
        {"version": 0, "benchmark": "a", "items": 100, "score": 0.2, "step": 0},
        {"version": 0, "benchmark": "b", "items": 300, "score": 0.6, "step": 0},
        {"version": 5, "benchmark": "a", "items": 100, "score": None, "step": 5},
    ]

    assert accuracy(rows, 0) == pytest.approx(0.5)
    assert accuracy(rows, 5) is None


def test_points_of_reward_and_throughput_follow_the_steps():
    steps = [a_step(1), a_step(2, at=104.0), a_step(3, metrics=None, at=104.0)]

    assert reward_by_domain(steps) == {"math": [(1, 0.01), (2, 0.02)]}
    assert throughput(steps) == [(2, pytest.approx(4 / 3))]
