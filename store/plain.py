"""Values of Postgres as JSON knows them."""

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID


def plain(value: Any) -> Any:
    """Numbers, text, lists and maps as they are; times as ISO text, bytes as hex, NaN by name."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            whole = value.is_finite() and value == value.to_integral_value()
            return int(value) if whole else plain(float(value))
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | memoryview():
            return bytes(value).hex()
        case UUID():
            return str(value)
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set():
            return [plain(item) for item in value]
        case _:
            return str(value)
