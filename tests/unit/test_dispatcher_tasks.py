"""Task sources: puzzles with one solution, Reasoning Gym by name and level, datasets, and a mix of levels."""

import json
from collections import Counter
from itertools import product
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from broker.errors import BadConfiguration
from store.datasets import importing
from workers.dispatcher import stored
from workers.dispatcher.items import Item
from workers.dispatcher.levels import LevelMix, quotas
from workers.dispatcher.settings import SourceSettings
from workers.dispatcher.tasks.knights import Knights, puzzles
from workers.dispatcher.tasks.reasoning import Reasoning
from workers.verifiers.knights_knaves import KnightsKnaves
from workers.verifiers.reasoning_gym import ReasoningGym

MIX = {"L1": 20.0, "L2": 45.0, "L3": 30.0, "L4": 5.0}


@pytest.mark.parametrize("people", [2, 3, 4, 5])
def test_each_puzzle_has_exactly_one_solution(people: int):
    assert len(puzzles(people)) == (36 if people == 2 else 200)
    for said, world in puzzles(people):
        fitting = [
            other
            for other in product((False, True), repeat=people)
            if all(s.holds(other) == truthful for s, truthful in zip(said, other, strict=True))
        ]
        assert fitting == [world]


def test_no_two_puzzles_are_the_same_and_their_own_solution_is_right():
    task = Knights(people=[2, 3])
    problems = [task.problem(number) for number in range(0, task.size, task.size // 3000)]

    assert len({problem.prompt for problem in problems}) == len(problems)
    assert {problem.difficulty for problem in problems} == {2.0, 3.0}
    for problem in problems[:200]:
        verifier = KnightsKnaves()
        assert verifier.grade(str(problem.solution), problem.answer, {}).score == 1.0
        flipped = {
            k: "knave" if v == "knight" else "knight" for k, v in json.loads(problem.answer).items()
        }
        wrong = ", ".join(f"{name} is a {role}" for name, role in flipped.items())
        assert verifier.grade(wrong, problem.answer, {}).score == 0.0


def test_the_number_of_people_is_checked():
    for wrong in (1, 9, [], [2, 30], [2, 3, 2]):
        with pytest.raises(ValueError, match="people"):
            Knights(people=wrong)


def test_a_reasoning_gym_problem_is_judged_from_its_item_alone():
    pytest.importorskip("reasoning_gym")
    task = Reasoning(dataset="chain_sum", config={"min_terms": 2, "max_terms": 3})

    for number in (0, 1, 499, 500, 10**8):
        problem = task.problem(number)
        item = json.loads(json.dumps(problem.options))
        found = ReasoningGym().grade(str(problem.solution), problem.answer, item)
        assert found.score == 1.0
        assert task.problem(number) == problem
    assert task.problem(0).prompt != task.problem(500).prompt


def test_a_level_follows_the_tasks_curriculum():
    pytest.importorskip("reasoning_gym")

    easy, hard = (Reasoning(dataset="knights_knaves", level=level).problem(3) for level in (0, 99))

    assert (easy.options["config"]["n_people"], hard.options["config"]["n_people"]) == (2, 5)
    with pytest.raises(ValueError, match="has no curriculum"):
        Reasoning(dataset="gsm_symbolic", level=0)
    with pytest.raises(ValueError, match="not registered"):
        Reasoning(dataset="no_such_task")
    with pytest.raises(ValueError, match="config names n_people, which level = 1 sets"):
        Reasoning(dataset="knights_knaves", level=1, config={"n_people": 3})


def test_an_imported_dataset_is_a_source_with_its_rows_own_verifiers(tmp_path: Path):
    rows = [
        {"prompt": "a", "target": "1", "domain": "x", "extra_info": {"index": 5}},
        {"prompt": "b", "test_cases": [{"expr": "f()", "expected": 1}], "domain": "y"},
        {"prompt": [{"role": "user", "content": "c"}], "domain": "x", "labeled": False},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    folder, manifest = importing.run(tmp_path / "t.jsonl", "t", tmp_path, check=lambda row: None)
    settings = SourceSettings(domain="d", path=folder)

    items = stored.load(folder, settings, max_rows=None)
    direct = stored.load(folder / "rows.parquet", settings, max_rows=2)

    assert [items.key(item) for item in items.items] == [
        f"t:{manifest.version}:{n}" for n in (5, 1, 2)
    ]
    assert [item.target for item in items.items] == ["1", '[{"expr": "f()", "expected": 1}]', None]
    assert [item.verifier for item in items.items] == [None, {"name": "code"}, None]
    assert (len(direct.items), direct.version) == (2, manifest.version)
    only = SourceSettings(domain="d", path=folder, options={"row_domain": "y"})
    assert [item.prompt for item in stored.load(folder, only, max_rows=None).items] == ["b"]
    with pytest.raises(BadConfiguration, match=r"source\.d\.options\.row_domian"):
        stored.load(
            folder,
            SourceSettings(domain="d", path=folder, options={"row_domian": "y"}),
            max_rows=None,
        )


def test_two_rows_with_one_index_would_have_one_sample_key_and_are_refused(tmp_path: Path):
    rows = [
        {"prompt": p, "target": "1", "extra_info": {"index": n}}
        for p, n in zip("abc", (4, 0, 4), strict=True)
    ]
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    settings = SourceSettings(domain="d", path=path)

    with pytest.raises(BadConfiguration, match=r"t\.parquet:3: index 4: .* row 1 has it too"):
        stored.load(path, settings, max_rows=None)

    assert [item.index for item in stored.load(path, settings, max_rows=2).items] == [4, 0]


def leveled(counts: dict[str, int]) -> list[Item]:
    levels = [level for level, count in counts.items() for _ in range(count)]
    return [Item(n, f"p{n}", "1", None, None, level=level) for n, level in enumerate(levels)]


def test_every_hundred_draws_hold_the_mix_exactly():
    items = leveled({"L1": 3, "L2": 7, "L3": 5, "L4": 2, "other": 9})
    mix = LevelMix.of(items, MIX, "d")

    drawn = [items[mix.place(n, "key")[0]] for n in range(500)]

    for block in range(5):
        counts = Counter(item.level for item in drawn[100 * block : 100 * (block + 1)])
        assert counts == {"L1": 20, "L2": 45, "L3": 30, "L4": 5}
    assert [item.level for item in drawn[:100]] != [item.level for item in drawn[100:200]]


def test_each_pass_through_a_level_takes_all_its_items_once():
    items = leveled({"L1": 4, "L2": 6})
    mix = LevelMix.of(items, {"L1": 1.0, "L2": 3.0}, "d")

    draws = [mix.place(n, "key") for n in range(100)]

    for level, size, whole in (("L1", 4, 6), ("L2", 6, 12)):
        by_pass = Counter(p for place, p in draws if items[place].level == level)
        assert [by_pass[number] for number in range(whole)] == [size] * whole
        assert len(set(draws)) == len(draws)


def test_shares_are_rounded_to_a_hundred_draws_and_unknown_levels_are_refused():
    assert quotas({"a": 1, "b": 1, "c": 1}) == {"a": 34, "b": 33, "c": 33}
    with pytest.raises(BadConfiguration, match=r"source\.d\.levels\.L9: no item has that level"):
        LevelMix.of(leveled({"L1": 1}), {"L9": 1.0}, "d")
    with pytest.raises(
        BadConfiguration, match=r"source\.d\.levels\.L2 = 0\.1: .* one in 100 draws"
    ):
        LevelMix.of(leveled({"L1": 1, "L2": 1}), {"L1": 99.9, "L2": 0.1}, "d")
