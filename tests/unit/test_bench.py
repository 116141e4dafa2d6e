"""The benchmarks' own accounting: what is compared, and when a limit is missed."""

import json

import pytest

from tests.bench.__main__ import known, main, table
from tests.bench.result import Result, side_by_side


def test_medians_are_of_rounds_that_take_turns():
    order: list[str] = []
    ours, peers = iter([5.0, 1.0, 3.0]), iter([2.0, 8.0, 4.0])

    def measure_ours() -> float:
        order.append("ours")
        return next(ours)

    def measure_peer() -> float:
        order.append("peer")
        return next(peers)

    assert side_by_side(measure_ours, measure_peer, rounds=3) == (3.0, 4.0)
    assert order == ["ours", "peer", "peer", "ours", "ours", "peer"]


@pytest.mark.parametrize(
    ("ours", "more_is_better", "kept"),
    [(9, True, False), (10, True, True), (10, False, True), (11, False, False)],
)
def test_a_limit_is_missed_on_the_wrong_side_of_it(ours: float, more_is_better: bool, kept: bool):
    result = Result("a", "m", "s", ours, limit=10.0, more_is_better=more_is_better)

    assert result.kept == kept
    assert ("missed" in table([result])[1]) == (not kept)


def test_json_has_the_fields_that_were_promised():
    tree = Result("a", "m", "s", 3.0, peer=2.0, rounds=5).tree()

    assert json.loads(json.dumps(tree)) == {
        "name": "a", "metric": "m", "unit": "s", "ours": 3.0, "peer": 2.0, "ratio": 1.5,
        "limit": None, "rounds": 5,
    }  # fmt: skip


def test_an_unknown_benchmark_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["nosuch"])

    said = capsys.readouterr().err
    assert "nosuch" in said
    assert all(name in said for name in known())
