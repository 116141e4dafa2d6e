"""Settings of sampling and evaluation: `[[source]]`, `[prompt]`, `[sampling]`, `[evaluation]`."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from broker.errors import BadConfiguration
from broker.messages import Json, Token
from broker.settings import Settings


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class SourceSettings(Settings):
    """`[[source]]`: where the samples of one domain come from."""

    domain: Token
    path: Path | None = None
    """A JSONL file, whose fields are named below; a Parquet file; or the folder of an imported dataset."""
    generator: str | None = None
    """A seeded generator by name (`addition`, `knights`, `reasoning`, ...) or `./mine.py:Name`."""
    options: Json = {}
    """Arguments of the generator, or of the row filter."""
    share: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the domain in the static mixture."""
    warmup_share: Annotated[float, Field(ge=0)] | None = None
    """Its weight in the warm-up, for a domain that needs more of it than others; None: share."""
    verifier: Annotated[Json, BeforeValidator(_named)] = {"name": "exact"}
    """A table with `name` and options, or a name alone."""
    prompt_field: str = "prompt"
    target_field: str = "target"
    solution_field: str | None = "solution"
    """Worked solution for the warm-up; optional in a row."""
    levels: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Static mix of levels, such as `{L1 = 20, L2 = 45, L3 = 30, L4 = 5}`; empty: as the rows are. A level is
    the row's own, or its difficulty."""
    max_rows: Annotated[int, Field(ge=1)] | None = None
    skip_bad: bool = False
    eval_path: Path | None = None
    """Held-out JSONL; a generator sets aside items of its own, disjoint by key."""
    eval_items: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _one_origin(self) -> "SourceSettings":
        if (self.path is None) == (self.generator is None):
            raise ValueError(f"source.{self.domain}: expected exactly one of path and generator")
        return self


class SourceOptions(Settings):
    """`source.options` of rows, whatever their format."""

    passes: Annotated[int, Field(ge=1)] | None = None
    """The source is exhausted after this many passes; None: never."""

    @classmethod
    def of(cls, source: SourceSettings) -> Self:
        """Raises BadConfiguration naming source, option and value."""
        try:
            return cls.model_validate(source.options)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BadConfiguration(
                f"source.{source.domain}.options.{where}: {first['msg']} (got {first['input']!r:.80})"
            ) from error


class PromptSettings(Settings):
    """`[prompt]`: how a sample becomes text."""

    system: str | None = None
    instruction: str = ""
    """Appended to the last user turn."""
    chat_template: bool = False
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Longer prompts are refused at load."""


class SamplingSettings(Settings):
    """`[sampling]` of training answers."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    max_tokens: Annotated[int, Field(ge=1)] = 256


class EvaluationSettings(Settings):
    """`[evaluation]`: greedy, held-out, at a pinned version; before the first and after the last step."""

    every: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """None: as in training."""
    wait_s: Annotated[float, Field(gt=0)] = 600.0
    """A benchmark not finished by then is recorded with what is missing and without a score."""


def longest_answer(sampling: SamplingSettings, evaluation: EvaluationSettings) -> int:
    """Tokens that any answer of the run may have."""
    return max(sampling.max_tokens, evaluation.max_tokens or 0)
