"""Difficulty control and the reasons of a mixture's shortfall."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BadConfiguration
from tests.unit.test_policies_mixers import a_history
from workers.policies.mixers_levels import Curriculum, Difficulty, controlled, stepped
from workers.policies.program import Program
from workers.policies.settings import PolicySettings
from workers.policies.shortfall import shortfall
from workers.policies.statistics import DomainState

STATIC = np.array([0.20, 0.45, 0.30, 0.05])
NAMES = dict(zip("abcd", STATIC.tolist(), strict=True))


def rates(*solved: int, graded: int = 20, **changes: object):
    """A history of one window a domain, with so many of its answers solved."""
    return a_history(
        tuple((s / graded,) for s in solved),
        solved=tuple((s,) for s in solved),
        graded=tuple((graded,) for _ in solved),
        rows_D=np.full(len(solved), graded),
        **changes,
    )


def test_shares_after_a_look_are_as_worked_out_in_c6():
    found = controlled(STATIC, np.array([0.95, 0.6, 0.08, 0.0]), STATIC)

    np.testing.assert_allclose(found, [0.1379, 0.6207, 0.2069, 0.0345], atol=1e-4)


def test_all_levels_too_easy_or_too_hard_change_nothing_and_neither_do_unknown_ones():
    for rate in ([1.0, 0.95, 0.0, 0.05], [np.nan] * 4, [0.6] * 4):
        assert controlled(STATIC, np.array(rate), STATIC).tolist() == STATIC.tolist()


def test_a_level_worth_learning_gets_back_a_quarter_up_to_its_static_share():
    shares = np.array([0.5, 0.1, 0.4])
    found = controlled(shares, np.array([0.6, 0.3, 0.6]), np.array([0.5, 0.11, 0.39]))

    np.testing.assert_allclose(found, np.array([0.5, 0.11, 0.4]) / 1.01)


def test_a_rate_at_a_threshold_is_not_beyond_it():
    shares = np.array([0.4, 0.3, 0.3])

    at = controlled(shares, np.array([0.6, 0.1, 0.9]), shares)
    beyond = controlled(shares, np.array([0.6, 0.0999, 0.9001]), shares)

    assert at.tolist() == shares.tolist()
    np.testing.assert_allclose(beyond, np.array([0.4, 0.15, 0.15]) / 0.7)


def test_a_floor_that_the_levels_cannot_all_have_is_refused():
    with pytest.raises(BadConfiguration, match=r"floor 0\.5: expected below 1/2 for 2 domains"):
        Difficulty(floor=0.5)(rates(1, 2))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=6),
    st.integers(0, 30),
)
def test_difficulty_control_always_gives_shares_and_never_less_than_the_floor(levels, times):
    static_D = np.full(len(levels), 1 / len(levels))
    shares_D = static_D
    for _ in range(times):
        shares_D = controlled(shares_D, np.array([rate for rate, _ in levels]), static_D)

    assert shares_D.sum() == pytest.approx(1.0)
    assert (shares_D >= 0.02 - 1e-9).all()


def test_the_mixer_looks_every_so_many_windows_and_only_with_answers_enough():
    mixer = Difficulty(shares=NAMES, every=2, least=20)
    start = mixer(rates(19, 12, 1, 0, update_no=0))

    assert start.tolist() == pytest.approx(STATIC.tolist())
    odd = rates(19, 12, 1, 0, update_no=3, current_D=STATIC)
    assert mixer(odd).tolist() == STATIC.tolist()
    found = mixer(rates(19, 12, 1, 0, update_no=4, current_D=STATIC))
    np.testing.assert_allclose(found, [0.1379, 0.6207, 0.2069, 0.0345], atol=1e-4)
    few = rates(19, 12, 1, 0, graded=19, update_no=4, current_D=STATIC)
    assert mixer(few).tolist() == STATIC.tolist()


def test_shares_of_levels_that_are_no_domains_are_refused():
    with pytest.raises(BadConfiguration, match=r"shares name \['a', 'b', 'c', 'd'\]"):
        Difficulty(shares=NAMES)(rates(1, 2))


@pytest.mark.parametrize(
    ("level", "rate", "expected"),
    [(0, 0.71, 1), (0, 0.7, 0), (2, 0.9, 2), (1, 0.29, 0), (1, 0.3, 1), (0, 0.0, 0)],
)
def test_a_level_moves_by_one_and_stays_in_range(level, rate, expected):
    assert stepped(level, rate, 3) == expected


def test_the_curriculum_opens_a_level_when_the_newest_is_solved_and_clears_the_board():
    mixer, memory = Curriculum(last_k=20), {}

    start = mixer(rates(0, 0, 0, update_no=0, memory=memory))
    opened = mixer(rates(20, 0, 0, update_no=1, memory=memory))
    # Nothing of the second level has been graded since it was opened.
    kept = mixer(rates(20, 20, 0, update_no=2, memory=memory, current_D=opened))
    closed = mixer(
        a_history(
            ((1.0,), (0.0,), ()),
            solved=((20,), (0,), ()), graded=((20,), (20,), ()),
            rows_D=np.array([20, 40, 0]), update_no=3, memory=memory,
        )
    )  # fmt: skip

    assert start.tolist() == [1.0, 0.0, 0.0]
    assert opened.tolist() == kept.tolist() == [0.5, 0.5, 0.0]
    assert closed.tolist() == [1.0, 0.0, 0.0]
    assert memory == {"level": 0, "cleared": 20}


def test_limits_out_of_order_are_refused():
    with pytest.raises(ValueError, match="expected down < up"):
        Curriculum(up=0.3, down=0.7)
    with pytest.raises(ValueError, match="expected in ascending order"):
        Difficulty(low=0.3)


# --- why realised shares are not the target's -------------------------------------------------


def a_domain(seen: int, expected: float, admitted: int, **drops: int) -> DomainState:
    return DomainState(seen=seen, expected=expected, admitted=admitted, drops=drops)


def test_a_domain_whose_groups_are_filtered_is_named_with_the_reason():
    found = shortfall(
        7, {"easy": a_domain(50, 50.0, 2, filtered=46, failed=2), "hard": a_domain(50, 50.0, 48)}
    )

    assert found == (
        "window 7; easy is 4% of the groups admitted, 50% of those drawn (filtered 46, failed 2); "
        "hard is 96% of the groups admitted, 50% of those drawn"
    )


def test_a_domain_that_was_not_drawn_enough_is_named_too():
    found = shortfall(3, {"a": a_domain(30, 50.0, 30), "b": a_domain(70, 50.0, 70)})

    assert "a is 30% of the groups drawn, target 50%" in found


def test_near_enough_shares_and_few_groups_need_no_reason():
    assert shortfall(3, {"a": a_domain(52, 50.0, 20), "b": a_domain(48, 50.0, 20)}) == "window 3"
    assert shortfall(1, {"a": a_domain(1, 5.0, 1), "b": a_domain(9, 5.0, 9)}) == "window 1"


def test_the_static_mix_of_the_chapter_is_a_table_of_shares():
    policy = PolicySettings.model_validate({"mixer": {"name": "static", "shares": NAMES}})

    found = Program(policy).mixer.method(rates(1, 2, 3, 4))

    np.testing.assert_allclose(found, STATIC)
