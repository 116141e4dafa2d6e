"""Which domain is drawn next: largest remainder, so realised shares follow the target draw by draw."""

from collections.abc import Collection, Mapping

from broker.errors import BadConfiguration


def next_domain(
    target: Mapping[str, float],
    owed: Mapping[str, float],
    *,
    available: Collection[str] | None = None,
) -> str:
    """The domain furthest behind its target after one more draw; ties to the earlier domain.

    target: share per domain, sums to 1, in the configured order. owed: draws that each domain is
    behind. [1/3]*3 gives 4, 3, 3 after ten draws. A domain that is not `available` (exhausted) is
    passed over and the others fill its place.
    """
    candidates = [d for d in target if available is None or d in available]
    if not candidates:
        raise ValueError("no domain is available")
    # max() keeps the first of equals. Rounded, so that equal shares tie exactly.
    return max(candidates, key=lambda domain: round(owed.get(domain, 0.0) + target[domain], 9))


def after_draw(
    target: Mapping[str, float], owed: Mapping[str, float], domain: str
) -> dict[str, float]:
    """What is owed once `domain` was drawn: carried on when the target moves, so no rounding is lost.

    Counts begun anew at every update would round in the same direction each time.
    """
    return {name: owed.get(name, 0.0) + share - (name == domain) for name, share in target.items()}


def in_order(shares: Mapping[str, float], domains: Collection[str]) -> dict[str, float]:
    """A mixture update's targets in the configured order; BadConfiguration when they do not fit."""
    unknown = sorted(set(shares) - set(domains))
    total = sum(shares.values())
    if unknown or abs(total - 1.0) > 1e-6 or any(share < 0 for share in shares.values()):
        raise BadConfiguration(
            f"mixture {dict(shares)}: expected shares of {', '.join(domains)} that sum to 1"
        )
    return {domain: shares.get(domain, 0.0) for domain in domains}
