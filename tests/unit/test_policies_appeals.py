"""Noise correction whose rate of missed answers comes from appeals."""

from dataclasses import replace

import pytest

from broker.messages import Json
from tests.policy_builders import a_group
from workers.policies.appeals import PgbcAppeals
from workers.policies.judged import Judged
from workers.policies.program import Memory, Program
from workers.policies.settings import PolicySettings


def appealed(program: Program, count: int, *, flips: int = 0, looked: int = 1):
    """Groups of 10 with 7 right ones; of 3 wrong ones `looked` are heard, `flips` of them right after all."""
    memory: Memory = {}
    judged: list[Judged] = []
    for number in range(count):
        group = a_group((1.0,) * 7 + (0.0,) * 3, number=number + 1)
        heard = [{"appeal": float(n < flips)} for n in range(looked)]
        parts = ({},) * 7 + tuple(heard) + ({},) * (3 - looked)
        judged.append(program.judge(replace(group, components=parts), memory))
    return program.decide(judged).annotations


APPEALS = {"name": "pgbc_appeals", "share": 0.5, "keep": 1.0, "rho1": 0.1}


def test_the_missed_share_follows_from_appeals_once_enough_is_known():
    rows = appealed(Program(PolicySettings(advantage=APPEALS)), 5, flips=1)

    # 1 of 7 + 2 in each group: by the third group there are 27 right answers.
    assert [group[0].signals.get("rho1") for group in rows[:2]] == [None, None]
    assert [group[0].signals["rho1"] for group in rows[2:]] == pytest.approx([2 / 9] * 3, abs=1e-6)
    first, last = rows[0][0].advantage, rows[-1][0].advantage
    assert (first * 0.9, last * 7 / 9) == pytest.approx((1 / 3, 1 / 3), abs=1e-5)


def test_without_appeals_the_stated_rate_holds_and_with_none_granted_it_is_nothing():
    program = Program(PolicySettings(advantage=APPEALS))

    unheard, refused = appealed(program, 9, looked=0), appealed(program, 9, flips=0)

    assert "rho1" not in unheard[-1][0].signals
    assert unheard[-1][0].advantage * 0.9 == pytest.approx(1 / 3)
    assert refused[-1][0].signals["rho1"] == pytest.approx(0.0, abs=1e-6)


def test_an_estimate_never_leaves_less_than_can_be_corrected():
    advantage = {**APPEALS, "name": "pgfc_appeals", "share": 0.01, "rho0": 0.3}

    rows = appealed(Program(PolicySettings(advantage=advantage)), 3, flips=3, looked=3)

    assert rows[-1][0].signals["rho1"] == pytest.approx(0.65)
    assert rows[-1][0].advantage == pytest.approx(0.65)


def test_old_appeals_are_forgotten():
    memory: Json = {}
    method = PgbcAppeals(share=1.0, keep=0.5, least=1.0)
    group = a_group((1.0, 1.0, 0.0))
    right_after_all = replace(group, components=({}, {}, {"appeal": 1.0}))
    not_right = replace(group, components=({}, {}, {"appeal": 0.0}))

    found = [method.observe(memory, one)["rho1"] for one in (right_after_all, not_right)]

    assert found == pytest.approx([1 / 3, 0.5 / 3.5], abs=1e-5)
