"""What all messages have in common: immutable, strictly typed, unknown fields refused."""

from typing import Annotated, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
"""A word that may stand in a subject."""

Purpose = Literal["train", "eval", "probe"]
Outcome = Literal["admitted", "dropped", "failed"]
Status = Literal["ok", "failed"]
VerdictStatus = Literal["ok", "no_answer", "timeout", "verifier_error", "ungradable"]


def _without_surrogates(text: object) -> object:
    """Lone surrogates cannot be encoded; replace them where text first enters a message."""
    if isinstance(text, str) and not text.isascii():
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


Text = Annotated[str, BeforeValidator(_without_surrogates)]
"""Text that a model or a dataset wrote: any characters but lone surrogates (NUL included)."""

Count = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


MAX_DEPTH = 64
"""Of nested lists and tables in free fields; more would exhaust the stack somewhere on the way."""


def _lists(value: object, depth: int) -> object:
    if isinstance(value, dict | list | tuple) and depth == 0:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        return {key: _lists(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(inner, depth - 1) for inner in value]
    return value


def _as_json(value: object) -> object:
    """Tuples as lists, all the way down: msgpack hands sequences out as tuples here."""
    return _lists(value, MAX_DEPTH)


Json = Annotated[dict[str, object], BeforeValidator(_as_json)]
"""A specification or evidence: what JSON can say."""


class Message(BaseModel):
    """Base of all that travels."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Event(Message):
    """A message with a subject of its own."""

    KIND: ClassVar[str]
    SCHEMA: ClassVar[int] = 1

    writer_id: str
    """Who published it: `role@host:pid:start`; tells a lost acknowledgement from a rival."""
    at_us: Count
    """When, in microseconds since the epoch."""
