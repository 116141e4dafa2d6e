"""Why realised shares are not the target's: the text of a mixture update."""

from collections.abc import Mapping

from workers.policies.statistics import DomainState

POINTS = 0.05
"""Shares that are nearer than this need no reason."""
LEAST_GROUPS = 20
"""Shares of fewer groups say little."""
REASONS = 2


def shortfall(window: int, domains: Mapping[str, DomainState]) -> str:
    """`window N`, and each domain whose share of the admitted groups is far from its target, with the causes.

    The target is what the groups were drawn under, averaged over all of them. Groups are lost on the
    way for the reasons counted; a share that was not even drawn is the sources' (one is exhausted, or
    its groups are asked for again).
    """
    seen = sum(d.seen for d in domains.values())
    admitted = sum(d.admitted for d in domains.values())
    if seen < LEAST_GROUPS or not admitted:
        return f"window {window}"
    parts = []
    for name, domain in domains.items():
        target, drawn = domain.expected / seen, domain.seen / seen
        trained = domain.admitted / admitted
        if abs(drawn - target) > POINTS:
            parts.append(f"{name} is {drawn:.0%} of the groups drawn, target {target:.0%}")
        if abs(trained - drawn) > POINTS:
            parts.append(
                f"{name} is {trained:.0%} of the groups admitted, {drawn:.0%} of those drawn"
                f"{_causes(domain)}"
            )
    return "; ".join([f"window {window}", *parts])


def _causes(domain: DomainState) -> str:
    most = sorted(domain.drops.items(), key=lambda pair: (-pair[1], pair[0]))[:REASONS]
    return f" ({', '.join(f'{reason} {count}' for reason, count in most)})" if most else ""
