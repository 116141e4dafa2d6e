"""Losses, corrections and regularisers once more, in float64, a token at a time, sharing no code with ours.

A row is a dict of plain lists: new (scalars with gradients), old, rollout, advantages, weights, ages.
"""

import math
from collections.abc import Sequence

import torch

Scalar = torch.Tensor


def _anchor(row, t, options):
    return row["rollout"][t] if options.get("anchor", "rollout") == "rollout" else row["old"][t]


def _kept(row):
    informative = any(w * a for w, a in zip(row["weights"], row["advantages"], strict=True))
    return [t for t, w in enumerate(row["weights"]) if w > 0 and informative]


def _clip(ratio: Scalar, low: float, high: float) -> Scalar:
    return ratio if 1 - low <= ratio.item() <= 1 + high else torch.tensor(
        1 - low if ratio.item() < 1 - low else 1 + high, dtype=torch.float64
    )  # fmt: skip


def _ppo(ratio: Scalar, advantage: float, options) -> Scalar:
    found = min(
        ratio * advantage,
        _clip(ratio, options["clip_low"], options["clip_high"]) * advantage,
        key=lambda x: x.item(),
    )
    dual = options.get("dual_clip")
    if dual is not None and advantage < 0 and found.item() < dual * advantage:
        return torch.tensor(dual * advantage, dtype=torch.float64)
    return found


def token_loss(name: str, row, t: int, options) -> Scalar:
    """The loss of one kept token."""
    new, advantage = row["new"][t], row["advantages"][t]
    ratio = torch.exp(new - _anchor(row, t, options))
    if name in ("ppo_clip", "dr_grpo"):
        return -_ppo(ratio, advantage, options)
    if name == "gspo":
        kept = _kept(row)
        total = sum(row["new"][u] - _anchor(row, u, options) for u in kept)
        return -_ppo(torch.exp(total / len(kept)), advantage, options)
    if name == "cispo":
        weight = min(max(ratio.item(), options["low"]), options["high"])
        return -weight * advantage * new
    if name == "sapo":
        tau = options["tau_positive"] if advantage > 0 else options["tau_negative"]
        return -(4 / tau) / (1 + torch.exp(-tau * (ratio - 1))) * advantage
    if name == "dppo_tv":
        moved = math.exp(new.item()) - math.exp(row["rollout"][t])
        outside = (advantage > 0 and moved > options["limit"]) or (
            advantage < 0 and -moved > options["limit"]
        )
        penalty = options["penalty"] * (new - row["rollout"][t]) ** 2
        return penalty if outside else penalty - ratio * advantage
    if name == "decoupled":
        rollout, age = row["rollout"][t], row["ages"][t]
        proximal = row["old"][t]
        if options["proximal"] == "loglinear":
            proximal = rollout + age / (age + 1) * (new.item() - rollout)
        rho = math.exp(proximal - rollout)
        cap = options.get("behavior_cap")
        if cap is not None and rho > cap:
            return 0 * new
        return -rho * _ppo(torch.exp(new - proximal), advantage, options)
    assert name == "reinforce"
    return -advantage * new


def factor(name: str, row, t: int, options) -> float:
    """Of a correction that looks at one row only."""
    kept = _kept(row)
    logs = {u: row["old"][u] - row["rollout"][u] for u in kept}
    rho = math.exp(logs[t])
    if name == "tis":
        whole = math.exp(sum(logs.values()))
        return min(whole if options["level"] == "sequence" else rho, options["cap"])
    if name == "icepop":
        inside = rho if options["inside"] == "ratio" else 1.0
        return inside if options["low"] <= rho <= options["high"] else 0.0
    if name == "sequence_mask":
        found = {
            "geometric_mean": math.exp(sum(logs.values()) / len(kept)),
            "product": math.exp(sum(logs.values())),
            "k3": sum(math.exp(x) - 1 - x for x in logs.values()) / len(kept),
        }[options["statistic"]]
        return float(options["low"] <= found <= options["high"])
    assert name == "opsm"
    drift = sum(row["rollout"][u] - row["new"][u].item() for u in kept) / len(kept)
    return 0.0 if row["advantages"][t] < 0 and drift > options["threshold"] else 1.0


def m2po_kept(rows: Sequence, threshold: float) -> set[tuple[int, int]]:
    """(row, token) left when the largest square is taken away until the mean is below the threshold."""
    left = {
        (i, t): (row["old"][t] - row["rollout"][t]) ** 2
        for i, row in enumerate(rows)
        for t in _kept(row)
    }
    while left and sum(left.values()) / len(left) >= threshold:
        del left[max(left, key=lambda at: (left[at], at))]
    return set(left)


def divergence(name: str, new: Scalar, reference: float) -> tuple[float, Scalar]:
    """Value, and a scalar with the gradient that is wanted."""
    delta = new - reference
    if name == "k1":
        return delta.item(), delta.item() * delta
    if name == "k2":
        return delta.item() ** 2 / 2, delta**2 / 2
    return math.exp(-delta.item()) + delta.item() - 1, torch.exp(-delta) + delta - 1


def total(rows: Sequence, scales: Sequence[float], loss, corrections=()) -> Scalar:
    """Sum over rows and tokens of weight x factors x loss x scale."""
    found = torch.zeros((), dtype=torch.float64)
    whole = [c for c in corrections if c["name"] == "m2po"]
    left = [m2po_kept(rows, c["threshold"]) for c in whole]
    for i, (row, scale) in enumerate(zip(rows, scales, strict=True)):
        for t in _kept(row):
            product = row["weights"][t] * scale * all((i, t) in some for some in left)
            for one in corrections:
                if one["name"] != "m2po":
                    product *= factor(one["name"], row, t, one)
            found = found + product * token_loss(loss["name"], row, t, loss)
    return found
