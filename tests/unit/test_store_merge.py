"""Rows of one key merge to the same row in any order, however often each is told."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from broker.topology import Log
from store.merge import gather
from store.row import Row
from store.rows import rows_of
from tests.store_world import RUN, a_small_run

LOGS = (Log.REQUESTS, Log.GENERATED, Log.VERIFIED, Log.ANNOTATED, Log.LEDGER)
WORLD = a_small_run()
ROWS = {
    log: [rows_of(RUN, place, event) for place, event in enumerate(WORLD.logs[log], start=1)]
    for log in LOGS
}
MESSAGES = [(log, index) for log in LOGS for index in range(len(ROWS[log]))]


def merged(order: Sequence[tuple[Log, int]]) -> dict[str, list[dict[str, object]]]:
    rows = [row for log, index in order for row in ROWS[log][index]]
    # A column that was never told and one told as None are the same in the table.
    return {
        table: [{k: v for k, v in row.items() if v is not None} for row in found]
        for table, found in gather(rows).items()
    }


@given(st.permutations(MESSAGES), st.lists(st.sampled_from(MESSAGES), max_size=20))
def test_any_order_and_any_repetition_of_messages_gives_the_same_rows(
    order: list[tuple[Log, int]], again: list[tuple[Log, int]]
):
    assert merged([*order, *again]) == merged(MESSAGES)


def test_rows_come_sorted_by_their_key_and_once():
    rows = [Row("weights", {"run_id": "r", "version": v, "uri": uri}) for v, uri in
            ((3, "c"), (1, "a"), (3, "other"), (2, "b"))]  # fmt: skip

    found = gather(rows)["weights"]

    assert [(row["version"], row["uri"]) for row in found] == [(1, "a"), (2, "b"), (3, "c")]
