import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.rollout.runs import WORTH_A_RUN, Run, runs_of

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=40)


def slots(runs: list[Run]) -> int:
    return sum((run.end - run.first) * run.length for run in runs)


@given(LENGTHS)
def test_runs_hold_every_row_and_are_as_long_as_their_longest(lengths: list[int]):
    runs = runs_of(np.array(lengths))

    assert [row for run in runs for row in range(run.first, run.end)] == list(range(len(lengths)))
    assert all(run.length == max(lengths[run.first : run.end]) for run in runs)


@given(LENGTHS)
def test_a_second_run_leaves_fewest_slots_and_noticeably_fewer(lengths: list[int]):
    rows, longest = len(lengths), max(lengths)
    cuts = [i * max(lengths[:i]) + (rows - i) * max(lengths[i:]) for i in range(1, rows)]

    runs = runs_of(np.array(lengths))

    if min(cuts, default=np.inf) <= WORTH_A_RUN * rows * longest:
        assert slots(runs) == min(cuts)
    else:
        assert runs == [Run(0, rows, longest)]


def test_those_that_began_together_are_a_run():
    assert runs_of(np.array([80, 78, 79, 20, 22])) == [Run(0, 3, 80), Run(3, 5, 22)]
