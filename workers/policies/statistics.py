"""What the policy knows about each domain: counts, and one mean per window for the mixer.

Counts follow the log, so they are the same whenever they are taken up to the same sequence.
A domain without any row in a window gets no value for it: unknown is not 0.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from broker.messages import GroupKey, Json, MixtureCounters, MixtureShare
from workers.policies.mixers import History


def slope(values: Sequence[float]) -> float:
    """Of the least-squares line through (position, value), per window; 0 under two points (A13, A14)."""
    if len(values) < 2:
        return 0.0
    at = np.arange(len(values), dtype=np.float64)
    centred = at - at.mean()
    return float(centred @ np.asarray(values, dtype=np.float64) / (centred @ centred))


class DomainState(BaseModel):
    """One domain's counts over the run, and its history, oldest first."""

    model_config = ConfigDict(extra="forbid")

    requested: int = 0
    generated: int = 0
    admitted: int = 0
    rows: int = 0
    """Graded answers."""
    rewards: list[float] = []
    """Mean score per window."""
    magnitudes: list[float] = []
    """Mean |advantage| per window, over the same rows; those of dropped groups count 0."""
    graded: list[int] = []
    """Graded answers per window."""
    solved: list[int] = []
    """Of them solved, on the raw outcome."""
    recent: list[float] = []
    """Scores of the newest answers, one each."""
    drops: dict[str, int] = {}
    """Groups not trained on over the run, by reason; failed ones by `failed`."""
    seen: int = 0
    """Groups that were answered, or failed."""
    expected: float = 0.0
    """How many of all groups seen would be its own by the target shares they were drawn under."""


class StatisticsState(BaseModel):
    """All of it, as it goes into a snapshot."""

    model_config = ConfigDict(extra="forbid")

    request_seq: int = 0
    """Of the newest request whose answers were seen; the requested counts are as of it."""
    domains: dict[str, DomainState]


class DomainStatistics:
    """Counts and histories per domain, in the order of the configuration."""

    def __init__(
        self, domains: Sequence[str], window: int, state: StatisticsState | None = None
    ) -> None:
        known = state.domains if state else {}
        self.state = StatisticsState(
            request_seq=state.request_seq if state else 0,
            domains={name: known.get(name, DomainState()) for name in domains},
        )
        self._window = window
        # Since the last window closed: (rows, sum of scores, solved) per domain.
        self._open: dict[str, tuple[int, float, int]] = {}

    def saw_request(self, group: GroupKey, counters: MixtureCounters | None) -> None:
        """Every request carries the counts with itself included, so the newest one has them all."""
        if counters is None:
            return
        newest = group.request_seq > self.state.request_seq
        self.state.request_seq = max(group.request_seq, self.state.request_seq)
        for name, domain in self.state.domains.items():
            domain.seen += name == group.domain
            domain.expected += counters.target.get(name, 0.0)
            if newest:
                domain.requested = counters.requested.get(name, 0)

    def saw_generated(self, name: str) -> None:
        if name in self.state.domains:
            self.state.domains[name].generated += 1

    def saw_scores(self, name: str, scores_R: np.ndarray, solved: int = 0) -> None:
        """(R,) finite scores of a decided group, whether it was kept or dropped."""
        rows, total, solved_before = self._open.get(name, (0, 0.0, 0))
        self._open[name] = (
            rows + len(scores_R), total + float(scores_R.sum()), solved_before + solved,
        )  # fmt: skip
        if name in self.state.domains:
            domain = self.state.domains[name]
            domain.recent = [*domain.recent, *scores_R.tolist()][-self._window :]

    def saw_end(self, name: str, reason: str) -> None:
        """A group that is not trained on."""
        if name in self.state.domains:
            drops = self.state.domains[name].drops
            drops[reason] = drops.get(reason, 0) + 1

    def close_window(self, magnitudes: Mapping[str, float], admitted: Mapping[str, int]) -> None:
        """End a window. magnitudes: per domain, the sum of |advantage| over the window's rows."""
        for name, domain in self.state.domains.items():
            domain.admitted += admitted.get(name, 0)
            rows, total, solved = self._open.get(name, (0, 0.0, 0))
            domain.rows += rows
            if rows:
                domain.rewards = [*domain.rewards, total / rows][-self._window :]
                magnitude = magnitudes.get(name, 0.0) / rows
                domain.magnitudes = [*domain.magnitudes, magnitude][-self._window :]
                domain.graded = [*domain.graded, rows][-self._window :]
                domain.solved = [*domain.solved, solved][-self._window :]
        self._open = {}

    def shares(self, target_D: np.ndarray) -> tuple[MixtureShare, ...]:
        """The mixture with its counts, as of the last closed window."""
        return tuple(
            MixtureShare(
                domain=name,
                target=float(target_D[i]),
                requested=d.requested,
                generated=d.generated,
                admitted=d.admitted,
                trained=0,
                reward_mean=float(np.mean(d.rewards)) if d.rewards else None,
                abs_advantage_mean=float(np.mean(d.magnitudes)) if d.magnitudes else None,
                slope=slope(d.rewards) if len(d.rewards) > 1 else None,
            )
            for i, (name, d) in enumerate(self.state.domains.items())
        )

    def history(
        self, prior_D: np.ndarray, current_D: np.ndarray, update_no: int, memory: Json | None = None
    ) -> History:
        found = self.state.domains.values()
        return History(
            domains=tuple(self.state.domains),
            prior_D=prior_D,
            current_D=current_D,
            update_no=update_no,
            rewards=tuple(tuple(d.rewards) for d in found),
            magnitudes=tuple(tuple(d.magnitudes) for d in found),
            rows_D=np.array([d.rows for d in found], dtype=np.int64),
            graded=tuple(tuple(d.graded) for d in found),
            solved=tuple(tuple(d.solved) for d in found),
            recent=tuple(tuple(d.recent) for d in found),
            memory={} if memory is None else memory,
        )
