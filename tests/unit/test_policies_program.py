"""A policy program: built from a table or refused with the reason; finite for every input."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BadConfiguration
from tests.policy_builders import a_group
from workers.policies.program import Program
from workers.policies.settings import PolicySettings


def a_program(**table: object) -> Program:
    return Program(PolicySettings.model_validate(table))


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ({"advantage": "gpro"}, ["policy.advantage", "gpro", "grpo"]),
        ({"advantage": {"name": "grpo", "stdev": "none"}}, ["stdev", "std, eps"]),
        ({"advantage": {"name": "grpo", "std": "some"}}, ["std", "some", "unbiased"]),
        ({"advantage": {"name": "grpo", "eps": math.nan}}, ["eps", "nan"]),
        ({"admit": [{"min": 1}]}, ["policy.admit", "expected a name"]),
        ({"reward": []}, ["policy.reward", "at least one"]),
        ({"weight": "./nowhere.py:Mine"}, ["policy.weight", "nowhere.py", "cannot be loaded"]),
    ],
)
def test_a_table_that_cannot_work_is_refused_with_key_value_and_expectation(table, names):
    with pytest.raises(BadConfiguration) as refusal:
        a_program(**table)

    for name in names:
        assert name in str(refusal.value)


MINE = '''
class KeepLong:
    """Keeps groups whose answers are all long enough."""
    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
    def __call__(self, group) -> bool:
        return bool((group.lengths_G >= self.tokens).all())

class Telepathic:
    needs = frozenset({"hidden_states"})
    def __call__(self, group) -> bool:
        return True
'''


def test_a_method_in_a_file_of_ones_own_works_like_a_built_in_one(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    program = a_program(admit=[{"name": f"{tmp_path}/mine.py:KeepLong", "tokens": 4}])

    short, long = a_group(lengths=[3, 5]), a_group(lengths=[4, 5])

    assert program.judge(short, {}).reason == "filtered:KeepLong"
    assert program.judge(long, {}).reason == ""


def test_the_version_changes_with_an_option_and_with_the_text_of_ones_own_file(tmp_path):
    table = {"admit": [{"name": f"{tmp_path}/mine.py:KeepLong", "tokens": 4}]}
    (tmp_path / "mine.py").write_text(MINE)
    first = a_program(**table).version
    (tmp_path / "mine.py").write_text(MINE.replace(">=", ">"))
    second = a_program(**table).version

    assert first != second
    assert a_program(advantage={"name": "grpo", "eps": 1e-4}).version != a_program().version
    assert a_program(advantage={"name": "grpo", "eps": 1e-6}).version == a_program().version


def test_a_method_whose_signal_nobody_provides_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    settings = PolicySettings(admit=(f"{tmp_path}/mine.py:Telepathic",))

    with pytest.raises(
        BadConfiguration,
        match="'Telepathic' needs hidden_states, which nobody provides; provided are answer, length",
    ):
        Program(settings)

    assert Program(settings, frozenset({"hidden_states"})).admit[0].name == "Telepathic"


def test_a_control_needs_the_signals_of_its_selector(tmp_path):
    (tmp_path / "mine.py").write_text(MINE + SCORER)
    selector = {"scorer": f"{tmp_path}/mine.py:Norm", "actuator": "top_fraction"}

    with pytest.raises(BadConfiguration, match="needs hidden_states, which nobody provides"):
        a_program(weight={"name": "matched_random", "of": selector})


SCORER = """
class Norm:
    grain = "response"
    needs = frozenset({"hidden_states"})
    def __call__(self, batch, advantages_B):
        return batch.rewards_B
"""


def test_a_group_without_two_usable_rows_is_dropped_with_the_reason():
    program = a_program()

    nan = a_group((1.0, 0.0), logprobs=[[-1.0], [float("nan")]])
    late = a_group((1.0, None))
    single = a_group((1.0,))

    assert program.judge(nan, {}).reason == "nonfinite"
    assert program.judge(late, {}).reason == "ungraded"
    assert program.judge(single, {}).reason == "too_small"


def test_an_excluded_row_is_recorded_with_its_reason_and_moves_nothing():
    program = a_program()
    with_late = program.judge(a_group((1.0, None, 0.0)), {})
    without = program.judge(a_group((1.0, 0.0)), {})

    ((right, late, wrong),) = program.decide([with_late]).annotations
    ((right_alone, wrong_alone),) = program.decide([without]).annotations

    assert (late.admitted, late.weight, late.advantage, late.reward) == (False, 0.0, 0.0, None)
    assert late.reason == "ungraded"
    assert (right.advantage, wrong.advantage) == (right_alone.advantage, wrong_alone.advantage)


def test_a_reward_of_ones_own_that_is_not_finite_leaves_its_row_out(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "class Hole:\n"
        "    def __call__(self, group, rewards_G):\n"
        "        return np.where(np.arange(len(rewards_G)) == 0, np.inf, rewards_G)\n"
    )
    program = a_program(reward=["verified", f"{tmp_path}/mine.py:Hole"])

    judged = program.judge(a_group((1.0, 1.0, 0.0)), {})
    ((first, *others),) = program.decide([judged]).annotations

    assert (first.reason, first.weight, first.reward) == ("nonfinite", 0.0, None)
    assert [round(o.advantage, 3) for o in others] == [0.707, -0.707]


SCORES = st.lists(st.sampled_from([0.0, 0.3, 1.0, None]), max_size=9)


@settings(max_examples=60, deadline=None)
@given(st.lists(SCORES, max_size=6), st.sampled_from(["grpo", "dr_grpo"]))
def test_every_input_gives_finite_decisions_for_every_row(windows, advantage):
    program = a_program(advantage=advantage)
    judged = [program.judge(a_group(scores, number=n + 1), {}) for n, scores in enumerate(windows)]
    admitted = [j for j in judged if not j.reason]

    annotations = program.decide(admitted).annotations

    assert [len(rows) for rows in annotations] == [j.group.size for j in admitted]
    for judged_group, rows in zip(admitted, annotations, strict=True):
        assert all(np.isfinite([row.advantage, row.weight]).all() for row in rows)
        usable = judged_group.group.usable_G
        assert [row.admitted for row in rows] == list(usable)
        assert abs(sum(row.advantage for row in rows)) < 1e-6 * max(1, len(rows))
