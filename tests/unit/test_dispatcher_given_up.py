"""Samples that cannot be asked for again are given up, told of once, and hold nothing up."""

from workers.dispatcher.groups import FAILED, Groups, Requested


def test_a_bundle_that_cannot_be_asked_for_again_is_given_up():
    groups = Groups(max_attempts=3)
    groups.requested(Requested("00000007-0-0", request_seq=1, sequence=1))
    groups.ended("00000007-0-0", FAILED)
    (due,) = groups.retries()

    groups.give_up(due, "unreadable")

    assert groups.retries() == []
    assert groups.given_up() == [due]
    assert due.ends == [FAILED, "unreadable"]
    groups.reported("00000007-0-0")
    assert groups.given_up() == []
    assert groups.unsettled() is None
