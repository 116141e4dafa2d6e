"""What a policy takes over from the log when it starts again."""

from broker.bus import Stored
from broker.topology import Log, headers
from tests.builders import an_annotated
from workers.policies.ledger import LedgerView
from workers.policies.restart import recorded


def a_stored(sequence: int, found: dict[str, str]) -> Stored:
    return Stored(Log.ANNOTATED, sequence, "subject", found, b"", stored_at_us=0)


def test_decisions_that_no_policy_wrote_are_ignored():
    decision = an_annotated()
    damaged = {**headers(decision), "Sluice-Verified-Seq": "many"}
    log = [a_stored(1, {}), a_stored(2, damaged), a_stored(3, headers(decision))]

    found = recorded(log, LedgerView())

    assert list(found.groups) == [decision.group.group_id]
    assert found.groups[decision.group.group_id].verified_seq == decision.verified_seq
