"""Presets, masks and matched controls: each preset decides, controls keep exactly as much."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.arrays import unpack
from broker.errors import BadConfiguration
from broker.messages import Annotation
from tests.policy_builders import a_group
from workers.policies.controls import keep_tokens, rng_of
from workers.policies.presets import PRESETS, SELECTORS
from workers.policies.program import Memory, Program
from workers.policies.settings import PolicySettings

Windows = list[tuple[tuple[Annotation, ...], ...]]


def a_program(**table: object) -> Program:
    return Program(PolicySettings.model_validate(table))


def a_recorded_window(seed: int) -> list[tuple[float, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(float(x) for x in rng.random(6) < p) for p in (0.0, 0.2, 0.5, 0.8, 1.0)]


def decide(program: Program, windows: list[list[tuple[float, ...]]]) -> Windows:
    """Several windows in turn, their lengths differing by row."""
    memory: Memory = {}
    found: Windows = []
    for number, groups in enumerate(windows, start=1):
        judged = [
            program.judge(
                a_group(
                    scores,
                    number=10 * number + n,
                    key=f"m:1:{n}",
                    lengths=[3 + (7 * n + 5 * row) % 11 for row in range(len(scores))],
                    classes=[int(s) for s in scores],
                ),
                memory,
            )
            for n, scores in enumerate(groups)
        ]
        found.append(
            program.decide([j for j in judged if not j.reason], number, memory).annotations
        )
    assert json.loads(json.dumps(memory)) == memory
    return found


WINDOWS = [a_recorded_window(seed) for seed in range(3)]


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_decides_the_same_window_the_same_way_twice(preset):
    program = a_program(preset=preset)

    first, second = decide(program, WINDOWS), decide(program, WINDOWS)

    assert first == second
    assert all(np.isfinite([row.weight for group in w for row in group]).all() for w in first)
    assert program.name == preset


def test_presets_differ_in_their_version_unless_they_decide_alike():
    versions: dict[str, list[str]] = {}
    for name in PRESETS:
        versions.setdefault(a_program(preset=name).version, []).append(name)

    shared = sorted(sorted(names) for names in versions.values() if len(names) > 1)

    assert ["dataflex:static", "dataflex:uniform", "static", "uniform"] in shared
    assert all(
        len({n.removeprefix("dataflex:") for n in names}) == 1 or "uniform" in names
        for names in shared
    )


def test_what_is_stated_takes_precedence_over_the_preset():
    program = a_program(preset="difffilter", advantage="rloo")

    assert (program.advantage.name, program.weight.name) == (
        "rloo", "group_solve_rate-threshold_band",
    )  # fmt: skip


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(BadConfiguration, match=r"policy.preset 'difffilte'.*difffilter"):
        a_program(preset="difffilte")


def test_uniform_is_bit_identical_to_no_policy_at_all():
    assert decide(a_program(preset="uniform"), WINDOWS) == decide(a_program(), WINDOWS)


# --- masks ------------------------------------------------------------------------------------


def test_an_answer_cut_off_at_the_limit_counts_in_the_baseline_but_not_in_the_loss():
    plain, masked = a_program(), a_program(mask=["overlong_filter"])
    group = a_group((1.0, 0.0, 0.0), truncated=[False, False, True])

    ((*_, without),) = plain.decide([plain.judge(group, {})]).annotations
    ((right, wrong, cut),) = masked.decide([masked.judge(group, {})]).annotations

    assert (cut.weight, cut.reason) == (0.0, "masked:overlong_filter")
    assert cut.advantage == without.advantage != 0
    assert [right.weight, wrong.weight] == [1.0, 1.0]


def test_weights_average_one_over_the_rows_a_mask_leaves():
    program = a_program(
        mask=["overlong_filter"],
        weight={"scorer": "advantage_magnitude", "actuator": "softmax"},
    )
    group = a_group((1.0, 0.0, 0.0), truncated=[False, True, False])

    (rows,) = program.decide([program.judge(group, {})]).annotations

    assert rows[1].weight == 0
    assert rows[0].weight + rows[2].weight == pytest.approx(2.0)


# --- matched controls -------------------------------------------------------------------------


def weights_of(window: tuple[tuple[Annotation, ...], ...]) -> list[list[float]]:
    return [[row.weight for row in group] for group in window]


@pytest.mark.parametrize("selector", sorted(SELECTORS))
@given(seed=st.integers(0, 50))
@settings(max_examples=10, deadline=None)
def test_random_retention_keeps_as_many_rows_as_its_selector_window_by_window(selector, seed):
    windows = [a_recorded_window(seed), a_recorded_window(seed + 1)]
    selected = decide(a_program(preset=selector), windows)
    by_batch = decide(a_program(preset=f"matched_batch:{selector}"), windows)
    by_group = decide(a_program(preset=f"matched_group:{selector}"), windows)

    for chosen, anywhere, within in zip(selected, by_batch, by_group, strict=True):
        chosen, anywhere, within = weights_of(chosen), weights_of(anywhere), weights_of(within)
        assert sum(map(sum, anywhere)) == sum(map(sum, chosen))
        if selector == "difffilter":
            assert sorted(map(sum, within)) == sorted(map(sum, chosen))
        else:
            assert [sum(g) for g in within] == [sum(g) for g in chosen]


def test_random_retention_is_not_the_selection_itself_and_depends_on_the_seed():
    selected = decide(a_program(preset="topk"), WINDOWS)
    control = decide(a_program(preset="matched_batch:topk"), WINDOWS)
    weight = {**PRESETS["matched_batch:topk"]["weight"], "seed": 5}  # pyright: ignore[reportGeneralTypeIssues]
    other = decide(a_program(weight=weight), WINDOWS)

    assert [weights_of(w) for w in control] != [weights_of(w) for w in selected]
    assert [weights_of(w) for w in control] != [weights_of(w) for w in other]


def test_matched_tokens_never_exceed_the_selectors_sum_and_carry_what_is_left():
    selected = decide(a_program(preset="maxvar"), WINDOWS)
    control = decide(a_program(preset="matched_tokens:maxvar"), WINDOWS)

    def tokens(windows: Windows) -> list[float]:
        lengths = [[3 + (7 * n + 5 * row) % 11 for row in range(6)] for n in range(5)]
        return [float(np.sum(np.array(weights_of(w)) * lengths)) for w in windows]

    allowed, used = np.cumsum(tokens(selected)), np.cumsum(tokens(control))
    assert (used <= allowed).all()
    # What was left over is less than the shortest answer that was still to be had.
    assert (allowed - used < 13).all()


@pytest.mark.parametrize("selector", ["difffilter", "maxvar", "gfpo", "topk"])
def test_a_selector_with_extra_rollouts_has_no_more_tokens_than_uniform_without_them(selector: str):
    selected = decide(a_program(preset=selector), WINDOWS)
    found = decide(a_program(preset=f"matched_rollouts:{selector}"), WINDOWS)

    lengths = np.array([[3 + (7 * n + 5 * row) % 11 for row in range(6)] for n in range(5)])
    # Three of a window's five groups are what uniform has.
    uniform = lengths[:3].sum()
    owed = 0.0
    for chosen, kept in zip(map(weights_of, selected), map(weights_of, found), strict=True):
        chosen, kept = np.array(chosen), np.array(kept)
        assert ((kept == 0) | (kept == chosen)).all()
        owed += uniform - float(((kept > 0) * lengths).sum())
        assert owed >= 0
        left_out = lengths[(chosen > 0) & (kept == 0)]
        assert not left_out.size or owed < left_out.min()


def test_token_budgets_are_filled_with_rows_that_fit():
    lengths_B = np.array([5, 5, 2])

    kept_B = keep_tokens(lengths_B, np.ones(3, bool), 7.0, rng_of(0, 1))

    assert lengths_B[kept_B].sum() == 7


def test_a_control_needs_a_selector():
    with pytest.raises(BadConfiguration, match="expected a selector"):
        a_program(weight={"name": "matched_random", "of": {"name": "uniform"}})


# --- properties over all presets --------------------------------------------------------------

BY_PLACE = (
    "matched_", "spurious:majority", "spurious:incorrect", "spurious:random",
    "topk", "dataflex:topk", "strength:top",
)  # fmt: skip
"""What they do depends on places or names, be it only where rows tie: as |A| does in a group of two."""
UNSEEDED = [name for name in sorted(PRESETS) if not name.startswith(BY_PLACE)]


def by_row(program: Program, groups: list[list[tuple[float, int]]], names: list[int]):
    """(weight, advantage, admitted) of each answer, known by group and score."""
    judged = [
        program.judge(
            a_group(
                [score for score, _ in rows], number=name, key=f"m:1:{name}",
                lengths=[length for _, length in rows],
                logprobs=[[-score - 0.01 * t for t in range(length)] for score, length in rows],
                classes=[int(score > 0.5) for score, _ in rows],
            ),
            {},
        )
        for rows, name in zip(groups, names, strict=True)
    ]  # fmt: skip
    admitted = [one for one in judged if not one.reason]
    annotations = program.decide(admitted, 1, {}).annotations if admitted else ()
    found = {}
    for one, decided in zip(admitted, annotations, strict=True):
        for score, row in zip(one.group.outcomes_G.tolist(), decided, strict=True):
            weights = None if row.token_weights is None else unpack(row.token_weights).tolist()
            found[one.group.group_id, score] = (row.admitted, row.weight, row.advantage, weights)
    return found


@settings(max_examples=60, deadline=None)
@given(preset=st.sampled_from(UNSEEDED), data=st.data())
def test_the_order_of_groups_and_rows_changes_nothing_but_the_order(preset, data):
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    # Distinct scores and lengths: which of two equal rows is kept depends on their order (P5).
    numbers = data.draw(st.permutations(range(1, sum(sizes) + 1)))
    scores = [(n / len(numbers), 2 + n) for n in numbers]
    ends = np.cumsum(sizes)
    groups = [scores[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    names = list(range(1, len(groups) + 1))
    order = data.draw(st.permutations(range(len(groups))))
    shuffled = [data.draw(st.permutations(groups[at])) for at in order]
    program = a_program(preset=preset)

    straight = by_row(program, groups, names)
    other = by_row(program, shuffled, [names[at] for at in order])

    assert straight.keys() == other.keys()
    for key, (admitted, weight, advantage, tokens) in straight.items():
        again = other[key]
        assert (admitted, weight) == (again[0], pytest.approx(again[1], rel=1e-6))
        assert advantage == pytest.approx(again[2], rel=1e-6, abs=1e-9)
        assert tokens is None or tokens == pytest.approx(again[3], rel=1e-5)


@pytest.mark.parametrize(
    ("scores", "reasons"),
    [
        ([], set()),
        ([(1.0,)], {"too_small"}),
        ([(0.0, 0.0), (1.0, 1.0)], {"filtered:dynamic_sampling"}),
        ([(None, None), (None, 1.0)], {"ungraded"}),
        ([(1.0, None, 0.0)], set()),
    ],
    ids=["empty", "singleton", "all-equal", "ungraded", "one-missing"],
)
def test_awkward_windows_give_finite_decisions_and_leave_the_ungraded_out(scores, reasons):
    for preset in PRESETS:
        program, memory = a_program(preset=preset), {}
        judged = [program.judge(a_group(s, number=n + 1), memory) for n, s in enumerate(scores)]
        admitted = [one for one in judged if not one.reason]

        found = program.decide(admitted, 1, memory).annotations

        for one, rows in zip(admitted, found, strict=True):
            for outcome, row in zip(one.group.outcomes_G, rows, strict=True):
                assert np.isfinite([row.weight, row.advantage]).all()
                if np.isnan(outcome):
                    assert (row.admitted, row.weight, row.advantage) == (False, 0.0, 0.0)
        assert {one.reason for one in judged if one.reason} <= reasons, preset
