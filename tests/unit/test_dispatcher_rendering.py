"""Prompts as the model reads them: equal to transformers' own rendering, token by token."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from broker.errors import BadConfiguration
from broker.messages import ChatTurn
from workers.dispatcher.items import Prompt
from workers.dispatcher.rendering import Renderer
from workers.dispatcher.settings import PromptSettings

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FANCY = """{{- bos_token }}
{%- set ns = namespace(count=0) %}
{% for message in messages %}
    {%- if loop.index0 > 10 %}{% break %}{% endif %}
    {% set ns.count = ns.count + 1 %}
{{ message['role'] | upper }}: {{ message['content'] | trim }} {{ {"a": "<é>"} | tojson }}
{% endfor %}
{% if tools %}tools{% endif %}
{% generation %}{{ ns.count }}{% endgeneration %}
{% if add_generation_prompt %}ASSISTANT:{% endif %}"""
REFUSING = "{{ raise_exception('no system role') }}"


def a_folder(folder: Path, template: str | None, *, as_file: bool = False) -> Path:
    """A byte-level BPE tokenizer with the special tokens of SmolLM2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["You are a helpful assistant", "system user What is"], trainer)
    # Both are saved with some models and would change what a prompt becomes.
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"content": "<|im_start|>", "special": True, "__type": "AddedToken"},
        "eos_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
    }
    if template is not None and not as_file:
        config["chat_template"] = template
    if template is not None and as_file:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


CHATS: list[Prompt] = [
    "What is 1+1?",
    "  spaces, <html> & é \N{SNOWMAN}\nnew line  ",
    (ChatTurn(role="system", content="Be brief."), ChatTurn(role="user", content="Why?")),
    (
        ChatTurn(role="user", content="one"),
        ChatTurn(role="assistant", content="two"),
        ChatTurn(role="user", content="three"),
    ),
]


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("template", [SMOLLM2, FANCY])
@pytest.mark.parametrize("prompt", CHATS)
def test_rendering_equals_that_of_transformers(
    tmp_path: Path, template: str, prompt: Prompt, as_file: bool
):
    folder = a_folder(tmp_path, template, as_file=as_file)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    turns = (
        [{"role": "user", "content": prompt}]
        if isinstance(prompt, str)
        else [turn.model_dump() for turn in prompt]
    )

    ours = Renderer(folder, PromptSettings(chat_template=True)).render(prompt)

    assert ours.text == theirs.apply_chat_template(
        turns, add_generation_prompt=True, tokenize=False
    )
    encoded = theirs.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
    assert list(ours.ids) == list(encoded["input_ids"])


def test_the_system_prompt_comes_first_and_the_instruction_ends_the_last_user_turn(tmp_path: Path):
    settings = PromptSettings(chat_template=True, system="Think.", instruction=" Box it.")
    renderer = Renderer(a_folder(tmp_path, SMOLLM2), settings)

    text = renderer.render("1+1?").text

    assert text == (
        "<|im_start|>system\nThink.<|im_end|>\n<|im_start|>user\n1+1? Box it.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_sample_with_a_system_turn_of_its_own_keeps_it(tmp_path: Path):
    renderer = Renderer(
        a_folder(tmp_path, SMOLLM2), PromptSettings(chat_template=True, system="Think.")
    )

    text = renderer.render(CHATS[2]).text

    assert "Be brief." in text
    assert "Think." not in text


def test_plain_text_gets_what_the_tokenizer_adds_and_nothing_else(tmp_path: Path):
    folder = a_folder(tmp_path, None)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))

    rendered = Renderer(folder, PromptSettings(instruction="=")).render("1+1")

    assert rendered.text == "1+1="
    assert rendered.ids[0] == 0
    assert len(rendered.ids) == 5


def test_an_answer_ends_with_the_end_token_and_begins_with_no_other(tmp_path: Path):
    renderer = Renderer(a_folder(tmp_path, None), PromptSettings())

    answer = renderer.answer("42")

    assert answer[-1] == 2
    assert min(answer) >= 2
    assert answer[:-1] == renderer.render("42").ids


def test_a_chat_template_that_is_not_there_is_missed_at_once(tmp_path: Path):
    with pytest.raises(BadConfiguration, match=r"prompt\.chat_template = true"):
        Renderer(a_folder(tmp_path, None), PromptSettings(chat_template=True))


def test_messages_without_a_chat_template_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="list of messages"):
        Renderer(a_folder(tmp_path, None), PromptSettings()).render(CHATS[2])


def test_a_template_that_refuses_a_chat_says_why(tmp_path: Path):
    renderer = Renderer(a_folder(tmp_path, REFUSING), PromptSettings(chat_template=True))

    with pytest.raises(ValueError, match="no system role"):
        renderer.render("hello")


def test_a_template_cannot_reach_the_interpreter(tmp_path: Path):
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    renderer = Renderer(a_folder(tmp_path, escape), PromptSettings(chat_template=True))

    with pytest.raises(ValueError, match="chat template"):
        renderer.render("hello")


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(BadConfiguration, match=r"tokenizer\.json is missing"):
        Renderer(tmp_path, PromptSettings())
