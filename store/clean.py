"""What Postgres cannot hold, made visible instead of refused: NUL, lone surrogates, non-finite numbers.

Nothing is lost by it: the answers' token ids are stored as they were, and a changed row is flagged.
"""

import math
from datetime import datetime, timedelta

import orjson

NUL_MARK = "\N{SYMBOL FOR NULL}"
LAST_US = (datetime.max - datetime(1970, 1, 1)) // timedelta(microseconds=1)
"""Of the year 9999, the last that Python and people write in four digits."""


def clean_text(text: str) -> str:
    """The text itself when Postgres can hold it; otherwise with visible marks in place of what it cannot."""
    if "\x00" in text:
        text = text.replace("\x00", NUL_MARK)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # Surrogate pairs become the character they mean, lone ones the replacement character.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean_json(value: object) -> object:
    """The same for what goes into jsonb, keys included; non-finite numbers become their names."""
    match value:
        case str():
            return clean_text(value)
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        case dict():
            return {clean_text(str(key)): clean_json(item) for key, item in value.items()}
        case list() | tuple():
            return [clean_json(item) for item in value]
        case bytes():
            return value.hex()
        case _:
            return value


def json_text(value: object) -> tuple[str, bool]:
    """JSON for jsonb, and whether something in it had to be changed. TypeError when it has no JSON form."""
    text = _json_or_none(value)
    if text is not None and b"null" not in text and b"\\u0000" not in text:
        return text.decode(), False  # nearly always; orjson writes non-finite numbers as null
    cleaned = orjson.dumps(clean_json(value))
    return cleaned.decode(), cleaned != text


def _json_or_none(value: object) -> bytes | None:
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate, bytes, or a key that is no text
        return None


def moment(at_us: int) -> int:
    """Microseconds since the epoch, as they are; OverflowError beyond the year 9999."""
    if at_us > LAST_US:
        raise OverflowError(f"{at_us} us is beyond the year 9999")
    return at_us
