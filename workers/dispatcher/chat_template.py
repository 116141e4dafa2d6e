"""Chat templates rendered as transformers renders them, without importing it.

Templates come with models from elsewhere: they run in jinja's sandbox and see plain data only.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import cast

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from broker.errors import BadConfiguration


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant wrote; it renders as its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML characters.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class ChatTemplate:
    """One model's template with its special tokens."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, origin: Path) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        self._origin = origin
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise BadConfiguration(f"{origin}: chat template: {error}") from error

    def render(self, turns: Sequence[Mapping[str, str]]) -> str:
        """The text that asks for the assistant's next turn; ValueError when the template refuses."""
        try:
            return self._template.render(
                messages=[dict(turn) for turn in turns],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"{self._origin}: chat template: {error}") from error


def find(model_dir: Path) -> ChatTemplate | None:
    """The template of a model folder: chat_template.jinja, or in tokenizer_config.json."""
    config = read_tokenizer_config(model_dir)
    file = model_dir / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several named ones
        named = cast(list[dict[str, str]], source)
        source = next((t["template"] for t in named if t.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, special_tokens(config), origin=model_dir)


def read_tokenizer_config(model_dir: Path) -> dict[str, object]:
    path = model_dir / "tokenizer_config.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadConfiguration(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(tree, dict):
        raise BadConfiguration(f"{path}: expected a JSON object")
    return tree


def special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """`bos_token`, `eos_token`, ... by name, whether written as text or as a table."""
    found: dict[str, str] = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found
