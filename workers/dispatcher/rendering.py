"""From a sample's prompt to the text and token ids that the model reads, with the model's tokenizer.

Needs neither torch nor transformers; equals transformers' `apply_chat_template` token by token.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from broker.errors import BadConfiguration
from workers.dispatcher import chat_template
from workers.dispatcher.items import Prompt
from workers.dispatcher.settings import PromptSettings


@dataclass(frozen=True)
class Rendered:
    text: str
    ids: tuple[int, ...]


class Renderer:
    """The tokenizer of a model folder with the run's system prompt and instruction.

    answer_tokens: what the model's positions must have room for after a prompt.
    """

    def __init__(
        self, model_dir: Path, settings: PromptSettings, *, answer_tokens: int = 0
    ) -> None:
        self.settings = settings
        self.limit, self.limit_text = _limit(model_dir, settings.max_tokens, answer_tokens)
        """Tokens of the longest prompt that may be asked, and why so many."""
        self._tokenizer = _tokenizer(model_dir)
        self._template = chat_template.find(model_dir) if settings.chat_template else None
        if settings.chat_template and self._template is None:
            raise BadConfiguration(f"prompt.chat_template = true, but {model_dir} has no template")
        special = chat_template.special_tokens(chat_template.read_tokenizer_config(model_dir))
        self._end = special.get("eos_token")
        self._end_id = self._tokenizer.token_to_id(self._end) if self._end else None

    def text(self, prompt: Prompt) -> str:
        """The prompt as the model reads it. ValueError when it cannot be rendered."""
        if self._template is None:
            return self._plain_text(prompt)
        turns = (
            [{"role": "user", "content": prompt}]
            if isinstance(prompt, str)
            else [{"role": turn.role, "content": turn.content} for turn in prompt]
        )
        turns[-1]["content"] += self.settings.instruction
        if self.settings.system is not None and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": self.settings.system})
        return self._template.render(turns)

    def _plain_text(self, prompt: Prompt) -> str:
        if not isinstance(prompt, str):
            raise ValueError("the prompt is a list of messages; that needs prompt.chat_template")
        system = "" if self.settings.system is None else f"{self.settings.system}\n\n"
        return f"{system}{prompt}{self.settings.instruction}"

    def render(self, prompt: Prompt) -> Rendered:
        return self.render_all([prompt])[0]

    def render_all(self, prompts: Sequence[Prompt]) -> list[Rendered]:
        """ValueError names the first prompt that cannot be rendered."""
        texts = [self.text(prompt) for prompt in prompts]
        # A template writes the special tokens itself; plain text gets what the tokenizer adds.
        ids = self._encode(texts, add_special_tokens=self._template is None)
        return [Rendered(text, tuple(i)) for text, i in zip(texts, ids, strict=True)]

    def answer(self, solution: str) -> tuple[int, ...]:
        """Token ids of a worked solution, ended by the end token; what the warm-up learns."""
        if self._end_id is None:
            raise BadConfiguration(
                f"the tokenizer has no end token (eos_token = {self._end!r}), which the warm-up needs"
            )
        return (*self._encode([solution], add_special_tokens=False)[0], self._end_id)

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        try:
            found = self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
        except Exception as error:  # the tokenizers library raises bare Exception
            text = next(filter(self._refuses, texts), "")
            character = next(filter(self._refuses, text), None)
            lacks = str(error) if character is None else f"the tokenizer has no {character!r}"
            raise ValueError(f"{text!r:.80}: {lacks}") from error
        return [encoding.ids for encoding in found]

    def _refuses(self, text: str) -> bool:
        try:
            self._tokenizer.encode(text)
        except Exception:  # as above
            return True
        return False


def _tokenizer(model_dir: Path) -> Tokenizer:
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise BadConfiguration(f"model: {path} is missing; expected a Hugging Face model folder")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # as above
        raise BadConfiguration(f"{path}: not a tokenizer: {error}") from error
    # A folder may have been saved with both switched on, which would cut or fill prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _limit(model_dir: Path, stated: int, answer_tokens: int) -> tuple[int, str]:
    path = model_dir / "config.json"
    told = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    positions = told.get("max_position_embeddings")
    if positions is None or positions - answer_tokens >= stated:
        return stated, f"prompt.max_tokens = {stated}"
    return (
        positions - answer_tokens,
        f"the model's {positions} positions leave beside an answer of {answer_tokens}",
    )
