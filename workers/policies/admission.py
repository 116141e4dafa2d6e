"""Admission stage: whether a whole group may be trained on. Sees raw outcomes, never shaped rewards."""

from typing import Protocol

from workers.policies.group import Group
from workers.policies.registry import Method, Registry


class Admission(Protocol):
    def __call__(self, group: Group) -> bool:
        """True keeps the group; False drops it as `filtered:NAME`."""
        ...


ADMISSIONS: Registry[Admission] = Registry("admit")


@ADMISSIONS.register("all")
class All(Method):
    """Keeps every group, also those without any signal."""

    def __call__(self, group: Group) -> bool:
        return True


def is_mixed(solved: int, graded: int) -> bool:
    """0 < c < K: some answers right, some wrong. Integers, so no rounding can decide (P8)."""
    return 0 < solved < graded


@ADMISSIONS.register("dynamic_sampling")
class DynamicSampling(Method):
    """Keeps groups that are neither solved nor missed by all (DAPO, arXiv:2503.14476) [TEXT].

    On the raw outcome: a shaped reward differs within an all-wrong group and would let it pass.
    The window is refilled by further requests; `policy.refill_rounds` is the limit.
    """

    def __call__(self, group: Group) -> bool:
        return is_mixed(*group.successes())
