"""How many more bundles may be requested. Pure; the bound on what is under way is here alone."""


def room(*, outstanding: int, pace: int, bundles_per_step: int, steps_left: int) -> int:
    """Bundles that may be requested now.

    outstanding: requested bundles that have not ended. At most (pace + 1) steps' worth are under
    way, and never more than the remaining steps can train. No cumulative counter takes part, so
    a restart has nothing to repair.
    """
    ahead = min(pace + 1, max(steps_left, 0)) * bundles_per_step
    return max(ahead - outstanding, 0)
