"""Which domain is drawn next: largest remainder, so realised shares follow the target draw by draw."""

from collections.abc import Collection, Mapping

from broker.errors import BadConfiguration


def next_domain(
    target: Mapping[str, float],
    since_update: Mapping[str, int],
    *,
    available: Collection[str] | None = None,
) -> str:
    """The domain furthest behind its target after one more draw; ties to the earlier domain.

    target: share per domain, sums to 1, in the configured order. since_update: draws per domain
    under this target. [1/3]*3 gives 4, 3, 3 after ten draws. A domain that is not `available`
    (exhausted) is passed over and the others fill its place.
    """
    candidates = [d for d in target if available is None or d in available]
    if not candidates:
        raise ValueError("no domain is available")
    number = sum(since_update.values()) + 1

    def behind(domain: str) -> float:
        return target[domain] * number - since_update.get(domain, 0)

    # max() keeps the first of equals. Rounded, so that equal shares tie exactly.
    return max(candidates, key=lambda domain: round(behind(domain), 9))


def in_order(shares: Mapping[str, float], domains: Collection[str]) -> dict[str, float]:
    """A mixture update's targets in the configured order; BadConfiguration when they do not fit."""
    unknown = sorted(set(shares) - set(domains))
    total = sum(shares.values())
    if unknown or abs(total - 1.0) > 1e-6 or any(share < 0 for share in shares.values()):
        raise BadConfiguration(
            f"mixture {dict(shares)}: expected shares of {', '.join(domains)} that sum to 1"
        )
    return {domain: shares.get(domain, 0.0) for domain in domains}
