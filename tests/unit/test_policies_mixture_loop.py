"""The mixture's loop: the mixer's targets, the dispatcher's draws, answers, and the reasons told."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from broker.messages import MixtureCounters
from tests.policy_builders import a_group_event, an_arrival
from workers.dispatcher.mixture import after_draw, next_domain
from workers.policies.decisions import Closed, Rules
from workers.policies.program import Program
from workers.policies.settings import PolicySettings
from workers.policies.windows import WindowMachine

DOMAINS = ("mastered", "learnable", "impossible")
GROUPS, SIZE = 8, 8


@dataclass
class Loop:
    """One dispatcher and one policy; the learnable domain is solved more often the more it was trained."""

    machine: WindowMachine
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))
    owed: dict[str, float] = field(default_factory=dict[str, float])
    requested: Counter[str] = field(default_factory=Counter[str])
    draws: list[tuple[str, dict[str, float]]] = field(
        default_factory=list[tuple[str, dict[str, float]]]
    )
    """Domain of each draw, and the target it was made under."""
    windows: list[Closed] = field(default_factory=list[Closed])

    def solve_rate(self, domain: str) -> float:
        learnt = 0.2 + 0.002 * self.requested["learnable"]
        return {"mastered": 1.0, "learnable": min(learnt, 0.8), "impossible": 0.0}[domain]

    def draw(self) -> None:
        target = {share.domain: share.target for share in self.machine.shares()}
        domain = next_domain(target, self.owed)
        self.owed = after_draw(target, self.owed, domain)
        self.requested[domain] += 1
        self.draws.append((domain, target))
        scores = (self.rng.random(SIZE) < self.solve_rate(domain)).astype(float).tolist()
        event = a_group_event(len(self.draws), scores, domain=domain)
        assert event.request is not None
        counted = MixtureCounters(
            update_no=self.machine.window, target=target, owed=self.owed,
            requested=dict(self.requested), positions=dict(self.requested),
        )  # fmt: skip
        request = event.request.model_copy(update={"mixture": counted})
        arrival = an_arrival(len(self.draws), event.model_copy(update={"request": request}))
        self.windows += [d for d in self.machine.feed(arrival) if isinstance(d, Closed)]

    def realised(self, groups: int) -> dict[str, tuple[float, float]]:
        """Per domain, (share, mean target) of the newest groups drawn."""
        newest = self.draws[-groups:]
        count = Counter(domain for domain, _ in newest)
        return {
            name: (count[name] / groups, sum(target[name] for _, target in newest) / groups)
            for name in DOMAINS
        }


def looped(groups: int, **policy: object) -> Loop:
    rules = Rules(groups_per_step=GROUPS, refill_limit=10 * GROUPS)
    program = Program(PolicySettings.model_validate(policy))
    loop = Loop(WindowMachine(program, rules, dict.fromkeys(DOMAINS, 1.0)))
    for _ in range(groups):
        loop.draw()
    return loop


DUMP = {"name": "dump_ucb", "temperature": 0.1, "floor": 0.05, "window": 50}


@pytest.mark.parametrize("mixer", [DUMP, "tscl"])
def test_the_learnable_domain_is_favoured_and_drawn_as_wanted(mixer):
    loop = looped(400, mixer=mixer)

    found = loop.realised(50)
    assert found["learnable"][0] > 0.5
    for name, (share, target) in found.items():
        assert abs(share - target) <= 0.05, name
        assert target >= 0.05 - 1e-9, name
    assert loop.windows[-1].reason == f"window {len(loop.windows)}"


def test_reward_gap_draws_by_its_formula_the_impossible_domain_most():
    loop = looped(400, mixer={"name": "reward_gap", "temperature": 1.0})

    shares = {s.domain: s for s in loop.windows[-1].shares}
    gaps = np.array([1.0 - (shares[name].reward_mean or 0.0) for name in DOMAINS])
    wanted = 0.05 + 0.85 * np.exp(gaps) / np.exp(gaps).sum()
    assert [shares[name].target for name in DOMAINS] == pytest.approx(wanted.tolist())
    found = loop.realised(50)
    assert max(found, key=lambda name: found[name][0]) == "impossible"
    assert all(abs(share - target) <= 0.05 for share, target in found.values())


def test_groups_that_are_filtered_are_a_shortfall_with_its_reason():
    loop = looped(400, mixer=DUMP, admit=["dynamic_sampling"])

    last = loop.windows[-1]
    admitted = {s.domain: s.admitted for s in last.shares}
    assert admitted["mastered"] == admitted["impossible"] == 0
    for name in ("mastered", "impossible"):
        assert f"{name} is 0% of the groups admitted" in last.reason
    assert "(filtered:dynamic_sampling " in last.reason


def test_the_published_mixers_favour_the_easiest_domain_or_the_hardest():
    shares = {
        name: {s.domain: s.target for s in looped(400, preset=f"dataflex:{name}").windows[-1].shares}
        for name in ("dump_ucb", "tscl", "reward_gap")
    }  # fmt: skip

    # DF-5: they are one function of the mean reward; only the sign of reward_gap differs.
    for name in ("dump_ucb", "tscl"):
        assert max(shares[name], key=lambda domain: shares[name][domain]) == "mastered"
    assert max(shares["reward_gap"], key=lambda d: shares["reward_gap"][d]) == "impossible"


def test_the_curriculum_opens_the_next_level_once_the_first_is_mastered():
    loop = looped(200, mixer={"name": "curriculum", "last_k": 20})

    assert {domain for domain, _ in loop.draws[:GROUPS]} == {"mastered"}
    targets = [[share.target for share in window.shares] for window in loop.windows]
    # The second level is closed as often as its answers are below 30 %, and opened again.
    assert [0.5, 0.5, 0.0] in targets
    assert [1.0, 0.0, 0.0] in targets
    assert all(target[2] == 0.0 for target in targets[:3])


def test_difficulty_control_halves_the_levels_that_teach_nothing():
    loop = looped(400, mixer={"name": "difficulty", "every": 4})

    shares = {s.domain: s.target for s in loop.windows[-1].shares}
    assert shares["learnable"] > 0.9
    assert min(shares.values()) >= 0.02 - 1e-9
