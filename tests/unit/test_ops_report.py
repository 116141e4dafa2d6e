"""report.html: complete, self-contained, and safe against what a model writes."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.charts import bar_chart, line_chart, ticks
from ops.report import Example, MixtureLine, ReportData, clip, render

HOSTILE = "</pre><script>alert('x')</script><img src=x onerror=alert(1)>{{ 7*7 }}\0"

SUMMARY = {
    "status": "finished",
    "reason": "all steps done",
    "steps": 40,
    "wall_s": 123.4,
    "eval_first": 0.25,
    "eval_last": 0.75,
    "reward_first": 0.2,
    "reward_last": 0.6,
    "trained_groups": 320,
    "samples_per_s": 210.0,
    "staleness_max": 2,
}


def some_data(**changes: object) -> ReportData:
    fields: dict[str, object] = {
        "run_id": "demo-1",
        "summary": SUMMARY,
        "proofs": {
            "no trained token was older than eta": True,
            "no group was trained twice": False,
        },
        "reward": {
            "add": [(s, s / 50) for s in range(1, 41)],
            "sort": [(s, 0.5) for s in range(1, 41)],
        },
        "accuracy": {"add": [(0, 0.2), (20, 0.5), (40, 0.8)], "sort": [(0, 0.3), (40, 0.7)]},
        "staleness": {0: 40, 1: 200, 2: 80},
        "mixture": [
            MixtureLine("add", 0.5, 200, 198, 170, 160),
            MixtureLine("sort", 0.5, 200, 200, 165, 160),
        ],
        "drops": {"filtered:dynamic_sampling": 60, "stale": 5},
        "throughput": [(s, 200 + s) for s in range(1, 41)],
        "examples": [
            Example("add", 1, True, "12+7=", "19", "91", "19"),
            Example("add", 1, False, HOSTILE, HOSTILE, HOSTILE, HOSTILE),
            Example("add", 40, True, "3+4=", "7", "7", "7"),
        ],
        "config": "[run]\nname = 'x'\n",
    }
    return ReportData(**(fields | changes))  # pyright: ignore[reportArgumentType]


class Elements(HTMLParser):
    """Names and attributes of everything a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_hostile_text_stays_text():
    mixture = [MixtureLine(HOSTILE, 1.0, 1, 1, 1, 1)]
    page = render(
        some_data(run_id=HOSTILE, drops={HOSTILE: 3}, reward={HOSTILE: [(1, 0.5)]}, mixture=mixture)
    )

    seen = Elements(page)

    assert not seen.names & {"script", "img", "iframe", "link", "object"}
    assert not {name for name in seen.attributes if name.startswith("on")} | (
        seen.attributes & {"src"}
    )
    assert "{{ 7*7 }}" in page


def test_nothing_is_loaded_from_elsewhere():
    page = render(some_data())

    assert "http://" not in page
    assert "https://" not in page
    assert "default-src 'none'" in page


def test_every_part_is_there():
    page = render(some_data())

    for part in (
        "Reward by domain", "Held-out accuracy", "Staleness", "Dropped groups by reason", "Throughput",
        "Mixture", "25.0 % → 75.0 %", "filtered:dynamic_sampling", "FAILS", "step 40", "2 versions old",
    ):  # fmt: skip
        assert part in page


def test_a_run_without_a_single_step_still_has_a_report():
    empty = ReportData(
        run_id="r", summary=SUMMARY | {"eval_first": None, "samples_per_s": None}, proofs={}
    )

    page = render(empty)

    assert "none recorded" in page
    assert "not checked" in page


def test_long_answers_are_cut_and_say_so():
    shown = clip("x" * 10_000)

    assert len(shown) < 5_000
    assert "10,000 characters" in shown


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_span_the_values_and_are_few(low: float, width: float):
    found = ticks(low, low + width)

    rounding = 1e-6 * max(1, abs(low), width)
    assert found[0] <= low + rounding
    assert found[-1] >= low + width - rounding
    assert 2 <= len(found) <= 9


@pytest.mark.parametrize("points", [[], [(1, 0.0)], [(1, -2.0), (2, -1.0)], [(3, 5.0), (3, 5.0)]])
def test_a_chart_of_any_points_has_only_finite_coordinates(points: list[tuple[float, float]]):
    drawn = line_chart({"a": points}, x_name="step", y_name="value")

    assert "nan" not in drawn
    assert "inf" not in drawn


def test_bars_of_nothing_but_zeros_are_drawn():
    assert "<rect" in bar_chart({"stale": 0}, name="drops")
