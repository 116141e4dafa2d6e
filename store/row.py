"""The shape of a row on its way to the audit store."""

from collections.abc import Mapping
from enum import IntFlag
from typing import NamedTuple

Values = dict[str, object]


class Row(NamedTuple):
    """What one event says about one row: its table, and the columns the event knows, key included."""

    table: str
    values: Mapping[str, object]


class End(IntFlag):
    """How a group was seen to end. A group ends once: prompt_group.ends holds exactly one of these."""

    TRAINED = 1
    DROPPED_BY_POLICY = 2
    DROPPED_BY_STEP = 4
    FAILED = 8
    MEASURED = 16
    RUN_ENDED = 32
