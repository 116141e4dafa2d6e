"""What a policy takes over from the log when it starts again."""

import pytest

from broker.bus import Stored
from broker.topology import H_CUT, H_GROUP, H_VERIFIED_SEQ, H_WINDOW, Log, headers
from tests.builders import an_annotated
from workers.policies.ledger import LedgerView
from workers.policies.restart import recorded


def a_stored(sequence: int, found: dict[str, str]) -> Stored:
    return Stored(Log.ANNOTATED, sequence, "subject", found, b"", stored_at_us=0)


@pytest.mark.parametrize(
    "damage",
    [
        {H_VERIFIED_SEQ: "many"},
        {H_GROUP: None},
        {H_WINDOW: "first", H_CUT: "1"},
        {H_WINDOW: "9", H_CUT: None},
    ],
)
def test_decisions_that_no_policy_wrote_are_ignored(damage: dict[str, str | None]):
    decision = an_annotated()
    changed = {**headers(decision), **damage}
    damaged = {name: value for name, value in changed.items() if value is not None}
    log = [a_stored(1, {}), a_stored(2, damaged), a_stored(3, headers(decision))]

    found = recorded(log, LedgerView())

    assert list(found.groups) == [decision.group.group_id]
    assert found.groups[decision.group.group_id].verified_seq == decision.verified_seq
    assert list(found.cuts) == [decision.window]
