"""Samples from files and generators: every item once a pass, bad rows named, held-out apart."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadConfiguration
from broker.messages import ChatTurn
from store.datasets import importing
from tests.dispatcher_world import CHARACTERS, a_tokenizer_folder
from workers.dispatcher import generators, jsonl, sources
from workers.dispatcher.gsm8k import parse_answer
from workers.dispatcher.permutation import permute
from workers.dispatcher.rendering import Renderer
from workers.dispatcher.settings import PromptSettings, SourceSettings
from workers.dispatcher.sources import Source
from workers.dispatcher.tasks.logic import Logic
from workers.dispatcher.warmup import solutions

Rows = Callable[..., Path]


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    """Writes rows (objects or raw lines) as a JSONL file."""

    def write(*lines: object, name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(text), encoding="utf-8", errors="surrogateescape")
        return path

    return write


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = a_tokenizer_folder(tmp_path_factory.mktemp("model"), CHARACTERS + "t")
    return Renderer(folder, PromptSettings(max_tokens=30))


def settings(path: Path | None = None, **changes: object) -> SourceSettings:
    origin = {"path": path} if path else {"generator": "addition"}
    return SourceSettings.model_validate({"domain": "d"} | origin | changes)


def load_rows(path: Path, **changes: object):
    return jsonl.load(path, settings(path, **changes), max_rows=None)


# --- the shuffle ------------------------------------------------------------------------------


@given(size=st.integers(1, 700), key=st.text(max_size=5))
def test_the_shuffle_visits_every_item_exactly_once(size: int, key: str):
    assert sorted(permute(i, size=size, key=key) for i in range(size)) == list(range(size))


def test_the_shuffle_stays_the_same_for_ever():
    assert [permute(i, size=10, key="0:math:0") for i in range(10)] == [
        4, 8, 9, 6, 0, 3, 2, 5, 7, 1
    ]  # fmt: skip


# --- JSONL ------------------------------------------------------------------------------------


def test_rows_become_items_with_their_line_as_index(rows: Rows):
    path = rows(
        {"prompt": "1+1=", "target": 2}, "", {"prompt": "a", "target": "b", "solution": "c"}
    )

    found = load_rows(path)

    assert [(i.index, i.prompt, i.target, i.solution) for i in found.items] == [
        (0, "1+1=", "2", None),
        (2, "a", "b", "c"),
    ]
    assert found.dataset == "data"


def test_the_version_is_the_digest_of_the_content(rows: Rows):
    row = {"prompt": "p", "target": "t"}

    assert load_rows(rows(row)).version == load_rows(rows(row, name="data.jsonl")).version
    assert load_rows(rows(row)).version != load_rows(rows(row, row)).version


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{not json", "not JSON"),
        ("[1]", "expected a JSON object"),
        ('{"prompt": "\udce4"}', "not UTF-8"),
        ({"target": "t"}, "prompt is None"),
        ({"prompt": 3, "target": "t"}, "prompt is 3; expected text or a list of turns"),
        ({"prompt": "p"}, "target is None"),
        ({"prompt": "p", "target": "  "}, "target is '  '"),
        ({"prompt": "p", "target": True}, "target is True"),
        ('{"prompt": "p", "target": 1e999}', "target is inf"),
        ({"prompt": "", "target": "t"}, "prompt is ''"),
        ({"prompt": [{"role": "robot", "content": "p"}], "target": "t"}, "role"),
        ({"prompt": [{"role": "assistant", "content": "p"}], "target": "t"}, "end with a user"),
        ({"prompt": [], "target": "t"}, "end with a user"),
        ({"prompt": "p", "target": "t", "difficulty": "hard"}, "difficulty"),
        ({"prompt": "p", "target": "t", "difficulty": 10**400}, "difficulty is 1000"),
        ('{"prompt": "\\ud800", "target": "t"}', "prompt: str is not valid UTF-8"),
        ('{"prompt": "p", "target": "\\ud800"}', "target: str is not valid UTF-8"),
        ('{"prompt": "p", "target": "t", "options": {"a": "\\ud800"}}', "options: str is not"),
        ({"prompt": "p", "target": "t", "id": 1}, "id 1 is already that of line 1"),
        ('{"prompt": "p", "target": NaN}', "not a JSON number"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_row_is_named_by_line_and_reason(rows: Rows, bad: object, reason: str):
    good = {"prompt": "p", "target": "t", "id": 1}
    path = rows(good, bad, {"prompt": "q", "target": "t"})

    with pytest.raises(BadConfiguration, match=r"data\.jsonl:2: ") as error:
        load_rows(path)
    assert reason in str(error.value)

    found = load_rows(path, skip_bad=True)
    assert [item.index for item in found.items] == [0, 2]
    assert len(found.skipped) == 1
    assert reason in found.skipped[0]


def test_prompts_may_be_lists_of_messages(rows: Rows):
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]

    (item,) = load_rows(rows({"prompt": turns, "target": "t"})).items

    assert item.prompt == (ChatTurn(role="system", content="s"), ChatTurn(role="user", content="u"))


def test_no_more_than_max_rows_are_taken(rows: Rows):
    path = rows(*({"prompt": str(n), "target": "t"} for n in range(9)))

    found = jsonl.load(path, settings(path), max_rows=4)

    assert [item.prompt for item in found.items] == ["0", "1", "2", "3"]


def test_an_unknown_option_is_refused_by_name(rows: Rows):
    path = rows({"prompt": "p", "target": "t"})

    with pytest.raises(BadConfiguration, match=r"source\.d\.options\.max_steps"):
        load_rows(path, options={"max_steps": 3})


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(BadConfiguration, match=r"nowhere\.jsonl: cannot be read"):
        load_rows(tmp_path / "nowhere.jsonl")


def test_gsm8k_answers_lose_their_annotations_and_keep_their_gold():
    text = "She sold 48/2 = <<48/2=24>>24 clips.\nIn all 48+24 = <<48+24=72>>72.\n#### 1,072"

    gold, solution, steps = parse_answer(text)

    assert gold == "1072"
    assert solution == "She sold 48/2 = 24 clips.\nIn all 48+24 = 72.\n\\boxed{1072}"
    assert steps == 2


@pytest.mark.parametrize("text", ["no mark", "a #### ", "a #### 1 #### 2"])
def test_a_gsm8k_answer_without_one_gold_is_refused(text: str):
    with pytest.raises(ValueError, match="####"):
        parse_answer(text)


def test_gsm8k_rows_can_be_limited_by_the_steps_of_their_solution(rows: Rows):
    path = rows(
        {"question": "long", "answer": "a\nb\nc\n#### 1"},
        {"question": "short", "answer": "a\n#### 2"},
    )

    found = load_rows(
        path,
        prompt_field="question",
        target_field="answer",
        options={"answer_format": "gsm8k", "max_solution_steps": 2, "dataset": "gsm8k"},
    )

    assert [(i.prompt, i.target, i.difficulty) for i in found.items] == [("short", "2", 1.0)]
    assert found.dataset == "gsm8k"


# --- generators -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("addition", [("65+60=", "521"), ("14+17=", "13"), ("83+13=", "69")]),
        (
            "logic",
            [
                ("10001?10111:10000=", "10001"),
                ("11010#10001#01010=", "11010"),
                ("00000#01001#00101=", "00001"),
            ],
        ),
        (
            "ordering",
            [("cafjheii>", "acefhiij"), ("agajeccf>", "aaccefgj"), ("hdgfgcgi>", "cdfggghi")],
        ),
    ],
)
def test_the_first_items_of_a_generator_never_change(name: str, first: list[tuple[str, str]]):
    train, _ = generators.load(settings(generator=name))

    assert [(i.prompt, i.target) for i in train.items[:3]] == first


@pytest.mark.parametrize("name", ["addition", "logic", "ordering"])
def test_items_are_short_distinct_and_disjoint_from_the_held_out_ones(name: str):
    train, held_out = generators.load(settings(generator=name, eval_items=1000))

    prompts = [item.prompt for item in (*train.items, *held_out.items)]
    keys = [train.key(i) for i in train.items] + [held_out.key(i) for i in held_out.items]
    assert len(set(prompts)) == len(prompts)
    assert len(set(keys)) == len(keys)
    assert len(train.items) >= 5000
    assert max(len(str(prompt)) for prompt in prompts) <= 24
    assert max(len(item.target) for item in train.items) <= 12
    assert set("".join(str(prompt) for prompt in prompts)) <= set(CHARACTERS)


@pytest.mark.parametrize("name", ["addition", "knights", "logic", "ordering"])
def test_a_held_out_item_stays_held_out_whatever_is_asked_for(name: str):
    _, held_out = generators.load(settings(generator=name, eval_items=1000))

    train, few = generators.load(settings(generator=name, eval_items=10))

    assert few.items == held_out.items[:10]
    assert not {i.prompt for i in train.items} & {i.prompt for i in held_out.items}


def test_addition_answers_are_the_reversed_sums():
    train, _ = generators.load(settings())

    for item in train.items[:200]:
        left, right = str(item.prompt).rstrip("=").split("+")
        assert int(item.target[::-1]) == int(left) + int(right)


def test_ordering_answers_are_sorted():
    train, _ = generators.load(settings(generator="ordering"))

    assert all(item.target == "".join(sorted(str(item.prompt)[:-1])) for item in train.items[:200])


@pytest.mark.parametrize("functions", ["?", "#", "?#"])
def test_no_answer_of_the_logic_task_is_more_frequent_than_another(functions: str):
    task = Logic(width=2, functions=functions)

    answers = [task.problem(n).answer for n in range(task.size)]

    assert {answers.count(answer) for answer in set(answers)} == {task.size // 4}
    assert len(set(answers)) == 4


def test_logic_answers_choose_or_take_the_majority_bit_by_bit():
    train, _ = generators.load(settings(generator="logic"))

    for item in train.items[:200]:
        prompt = str(item.prompt).rstrip("=")
        words = prompt.replace("?", " ").replace(":", " ").replace("#", " ").split()
        chooses = "?" in prompt
        expected = [
            (b if a == "1" else c) if chooses else max("01", key=(a + b + c).count)
            for a, b, c in zip(*words, strict=True)
        ]
        assert item.target == "".join(expected)


def test_another_seed_is_another_dataset_version_and_split():
    one, _ = generators.load(settings(options={"seed": 1}))
    two, _ = generators.load(settings(options={"seed": 2}))

    assert one.version != two.version
    assert [i.prompt for i in one.items[:50]] != [i.prompt for i in two.items[:50]]


def test_a_task_of_ones_own_is_loaded_from_a_file(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from workers.dispatcher.items import Problem\n"
        "class Doubling:\n"
        "    VERSION = '1'\n"
        "    size = 50\n"
        "    def problem(self, number):\n"
        "        return Problem(f'{number}+{number}=', str(2 * number))\n"
    )

    train, held_out = generators.load(settings(generator=f"{file}:Doubling", eval_items=5))

    assert (len(train.items), len(held_out.items)) == (40, 5)
    assert train.dataset == "Doubling"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"generator": "sudoku"}, "expected one of addition, knights, logic, ordering"),
        ({"generator": "./nowhere.py:Name"}, "no Python file"),
        ({"options": {"digits": 0}}, "expected 1..5"),
        ({"options": {"difficulty": 3}}, "difficulty"),
        ({"options": {"seed": "x"}}, "options.seed"),
        ({"eval_items": 100_000}, "sets 1000 aside"),
    ],
)
def test_a_generator_that_cannot_work_is_refused_with_the_reason(
    changes: dict[str, object], reason: str
):
    with pytest.raises(BadConfiguration) as error:
        generators.load(settings(**changes))

    assert reason in str(error.value)


# --- sources ----------------------------------------------------------------------------------


def a_source(renderer: Renderer, **changes: object) -> Source:
    (source,) = sources.load([settings(**changes)], renderer, seed=3)
    return source


def test_every_pass_goes_through_all_items_once_in_an_order_of_its_own(renderer: Renderer):
    source = a_source(renderer, options={"items": 40})

    passes = [[source.sample(40 * n + i) for i in range(40)] for n in range(3)]

    orders = [[sample.key for sample, _ in drawn] for drawn in passes]
    assert all(len(set(keys)) == 40 for keys in orders)
    assert set(orders[0]) == set(orders[1]) == set(orders[2])
    assert orders[0] != orders[1] != orders[2]
    assert [{number for _, number in drawn} for drawn in passes] == [{0}, {1}, {2}]


def test_a_source_is_exhausted_only_after_the_passes_it_was_given(renderer: Renderer):
    endless = a_source(renderer, options={"items": 40})
    once = a_source(renderer, options={"items": 40, "passes": 1})

    assert not endless.exhausted(10**9)
    assert not once.exhausted(39)
    assert once.exhausted(40)


def test_long_prompts_are_refused_with_count_and_key(rows: Rows, renderer: Renderer):
    path = rows(
        {"prompt": "1" * 31, "target": "t"},
        {"prompt": "1", "target": "t"},
        {"prompt": "2" * 40, "target": "t"},
    )

    with pytest.raises(BadConfiguration, match=r"2 of 3 prompts are longer .* = 30.*:0 with 31"):
        a_source(renderer, path=path)

    source = a_source(renderer, path=path, skip_bad=True)
    assert [item.prompt for item in source.train.items] == ["1"]


def test_a_prompt_that_leaves_the_model_no_room_for_an_answer_is_refused(
    rows: Rows, tmp_path: Path
):
    folder = a_tokenizer_folder(tmp_path / "model", CHARACTERS + "t")
    positions = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    path = rows({"prompt": "1" * 10, "target": "t"}, {"prompt": "2" * 11, "target": "t"})
    changes = {"path": path, "skip_bad": True}

    fits = Renderer(folder, PromptSettings(max_tokens=30), answer_tokens=positions - 11)
    tight = Renderer(folder, PromptSettings(max_tokens=30), answer_tokens=positions - 10)

    assert len(a_source(fits, **changes).train.items) == 2
    assert [item.prompt for item in a_source(tight, **changes).train.items] == ["1" * 10]
    with pytest.raises(BadConfiguration, match=f"1 of 2 .* the model's {positions} positions"):
        a_source(tight, path=path)


def test_a_prompt_outside_the_tokenizers_alphabet_is_refused(rows: Rows, renderer: Renderer):
    path = rows({"prompt": "1+1=", "target": "t"}, {"prompt": "ß", "target": "t"})

    with pytest.raises(BadConfiguration, match=r"1 of 2 .* row 2, data:.*'ß': .* no 'ß'"):
        a_source(renderer, path=path)
    assert [item.prompt for item in a_source(renderer, path=path, skip_bad=True).train.items] == [
        "1+1="
    ]


def test_a_row_that_is_held_out_is_not_trained_on(rows: Rows, renderer: Renderer):
    path = rows({"prompt": "1", "target": "t"}, {"prompt": "2", "target": "t"})
    held_out = rows({"prompt": "2", "target": "t"}, name="held_out.jsonl")
    changes = {"path": path, "eval_path": held_out, "eval_items": 5}

    with pytest.raises(BadConfiguration, match="1 training prompts are held out"):
        a_source(renderer, **changes)

    source = a_source(renderer, **changes, skip_bad=True)
    assert [sample.prompt for sample in source.evaluation()] == ["2"]
    assert {source.sample(n)[0].prompt for n in range(10)} == {"1"}


def test_held_out_rows_without_a_target_are_refused_or_left_out(tmp_path: Path, renderer: Renderer):
    found = [{"prompt": "1+1", "target": "2"}, {"prompt": "1+2", "target": None, "labeled": False}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, found)))
    held_out, _ = importing.run(tmp_path / "rows.jsonl", "held", tmp_path, check=lambda row: None)
    source: dict[str, object] = {"eval_path": held_out, "eval_items": 2}
    train = tmp_path / "train.jsonl"
    train.write_text('{"prompt": "2+2", "target": "4"}')

    with pytest.raises(
        BadConfiguration, match=r"1 of 2 held-out rows are unlabelled; the first is held:\w+:1"
    ):
        sources.load([settings(train, **source)], renderer, seed=0)
    (loaded,) = sources.load([settings(train, skip_bad=True, **source)], renderer, seed=0)

    assert [sample.target for sample in loaded.evaluation()] == ["2"]


def test_levels_are_the_rows_own_and_have_no_passes(rows: Rows, renderer: Renderer):
    path = rows(
        {"prompt": "1", "target": "1", "level": "easy"},
        {"prompt": "2", "target": "2", "level": 7, "difficulty": 3},
        {"prompt": "3", "target": "3", "difficulty": 3},
    )
    levels = {"easy": 1.0, "7": 1.0, "3": 1.0}

    (loaded,) = sources.load([settings(path, levels=levels)], renderer, seed=0)

    assert [item.level for item in loaded.train.items] == ["easy", "7", None]
    assert {loaded.sample(n)[0].prompt for n in range(100)} == {"1", "2", "3"}
    with pytest.raises(BadConfiguration, match=r"options\.passes = 2: expected none beside levels"):
        sources.load([settings(path, levels=levels, options={"passes": 2})], renderer, seed=0)
    with pytest.raises(BadConfiguration, match="level is True"):
        load_rows(rows({"prompt": "1", "target": "1", "level": True}))


def test_held_out_items_of_a_file_need_a_file_of_their_own(rows: Rows, renderer: Renderer):
    path = rows({"prompt": "1", "target": "t"})

    with pytest.raises(BadConfiguration, match="needs eval_path"):
        a_source(renderer, path=path, eval_items=5)


# --- the warm-up ------------------------------------------------------------------------------


def test_the_warm_up_takes_domains_by_share_and_ends_answers_with_the_end_token(renderer: Renderer):
    shares = {"addition": 3.0, "ordering": 1.0}
    loaded = sources.load(
        [SourceSettings(domain=n, generator=n, share=s) for n, s in shares.items()],
        renderer,
        seed=0,
    )

    examples = list(islice(solutions(loaded, renderer), 8))

    plus = renderer.render("+").ids[0]
    assert sum(plus in prompt for prompt, _ in examples) == 6
    assert {answer[-1] for _, answer in examples} == {2}
    assert all(2 not in answer[:-1] for _, answer in examples)


def test_a_warm_up_share_counts_in_the_warm_up_alone(renderer: Renderer):
    loaded = sources.load(
        [
            SourceSettings(domain="addition", generator="addition", warmup_share=7),
            SourceSettings(domain="ordering", generator="ordering"),
        ],
        renderer,
        seed=0,
    )

    examples = list(islice(solutions(loaded, renderer), 8))

    plus = renderer.render("+").ids[0]
    assert sum(plus in prompt for prompt, _ in examples) == 7


def test_a_warm_up_without_a_solution_that_fits_is_refused(rows: Rows, renderer: Renderer):
    path = rows(
        {"prompt": "1", "target": "t"}, {"prompt": "2", "target": "t", "solution": "1" * 20}
    )
    source = a_source(renderer, path=path)

    prompt, answer = next(solutions([source], renderer))
    assert (prompt, len(answer)) == (renderer.render("2").ids, 21)

    with pytest.raises(BadConfiguration, match="no solution of at most 5 tokens"):
        next(solutions([source], renderer, max_tokens=5))


def test_a_solution_that_the_tokenizer_cannot_write_is_named_or_passed_over(
    rows: Rows, renderer: Renderer
):
    bad = {"prompt": "1", "target": "t", "solution": "1é"}
    path = rows(bad, {"prompt": "2", "target": "t", "solution": "2"})

    with pytest.raises(BadConfiguration, match=r"solution of row 1, data:.*'1é': .* no 'é'"):
        list(islice(solutions([a_source(renderer, path=path)], renderer), 2))
    found = islice(solutions([a_source(renderer, path=path, skip_bad=True)], renderer), 2)

    assert {prompt for prompt, _ in found} == {renderer.render("2").ids}
