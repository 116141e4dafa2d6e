"""Target stage: what a group's answers are held against, and the scores that follow from it."""

from typing import Protocol

from workers.policies.group import Group
from workers.policies.registry import Method, Registry


class Target(Protocol):
    def __call__(self, group: Group) -> Group:
        """The group with `target`, `target_source` and `scores_G` set."""
        ...


TARGETS: Registry[Target] = Registry("target")


@TARGETS.register("gold")
class Gold(Method):
    """The dataset's own answer; scores are the verifier's. Unlabelled rows have neither."""

    def __call__(self, group: Group) -> Group:
        source = "gold" if group.target is not None else "none"
        return group.with_target(group.target, source, group.outcomes_G)
