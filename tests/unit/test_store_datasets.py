"""Datasets: what comes in goes out again, what is bad is named, and memory does not grow."""

import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from broker.errors import BadConfiguration
from ops.cli import main
from store.datasets import importing, layout, stored
from store.datasets.keys import Keys
from store.datasets.rows import Row, read
from workers.dispatcher.settings import SourceSettings
from workers.dispatcher.stored import load

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
ROWS: list[dict[str, Any]] = [
    {"prompt": "1 + 1 = ", "target": 2, "difficulty": 1, "level": 1, "domain": "sums"},
    {"prompt": [{"role": "user", "content": "caf\u0065\u0301?"}], "ground_truth": "yes", "id": "b"},
    {
        "prompt": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Code."},
        ],
        "verifier": "code",
        "test_cases": [{"expr": "f(1)", "expected": 2}],
        "views": ["Write code.", [{"role": "user", "content": "Program."}]],
    },
    {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": "How many?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"index": 77, "labeled": False, "split": "train"},
        "verifier": {"name": "math", "think": False},
    },
]


def written(folder: Path, rows: list[Any], name: str = "tasks.jsonl") -> Path:
    path = folder / name
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def imported(path: Path, to: Path, **options: Any) -> tuple[Path, layout.Manifest]:
    return importing.run(path, "tasks", to, check=lambda row: None, **options)


def test_every_usual_spelling_of_a_row_is_read_and_comes_back(tmp_path: Path):
    folder, manifest = imported(written(tmp_path, ROWS), tmp_path / "data")

    found = list(stored.rows(folder))

    assert found == [read(raw, place) for place, raw in enumerate(ROWS)]
    assert found[0] == Row(0, "1 + 1 = ", "2", True, level="1", domain="sums", difficulty=1.0)
    assert found[1].prompt == (("user", "caf\u00e9?"),)
    assert found[2].target == '[{"expr": "f(1)", "expected": 2}]'
    assert found[2].views == ("Write code.", (("user", "Program."),))
    assert (found[3].index, found[3].labeled, found[3].domain) == (77, False, "math")
    assert (manifest.rows, manifest.labeled) == (4, 3)
    assert manifest.verifiers == {"code": 1, "math": 1}


def test_a_version_is_its_content_whatever_the_file(tmp_path: Path):
    folder, manifest = imported(written(tmp_path, ROWS), tmp_path / "data")
    assert (
        imported(written(tmp_path, ["", *ROWS], "again.jsonl"), tmp_path / "other")[1] != manifest
    )

    again, same = imported(folder / layout.ROWS, tmp_path / "data")
    _, other = imported(written(tmp_path, ROWS[:3]), tmp_path / "data")

    assert (again, same) == (folder, manifest)
    assert other.version != manifest.version
    assert stored.export(layout.find(folder), tmp_path / "out") == manifest
    assert list(stored.rows(tmp_path / "out")) == list(stored.rows(folder))
    with pytest.raises(BadConfiguration, match="expected one version"):
        layout.find(tmp_path / "data" / "tasks")


def test_verls_columns_are_where_verl_looks_for_them(tmp_path: Path):
    folder, _ = imported(written(tmp_path, ROWS), tmp_path / "data")

    row = pyarrow.parquet.read_table(folder / layout.ROWS).to_pylist()[3]

    assert row["prompt"] == [{"role": "user", "content": "How many?"}]
    assert row["reward_model"]["ground_truth"] == "7"
    assert (row["extra_info"]["index"], row["extra_info"]["labeled"]) == (77, False)
    assert (row["data_source"], row["ability"]) == ("gsm8k", "math")


def a_sum_with(part: object) -> dict[str, object]:
    return {"name": "compose", "parts": [{"verifier": "exact"}, {"verifier": part}]}


BAD = [
    ("{", "not JSON"),
    ("[1]", "expected an object"),
    ('{"prompt": "x", "target": NaN}', "NaN"),
    ({"prompt": "", "target": "1"}, "prompt is ''"),
    ({"prompt": [{"role": "robot", "content": "x"}], "target": "1"}, r"prompt\[0\]"),
    ({"prompt": [{"role": "assistant", "content": "x"}], "target": "1"}, "end with a user's"),
    ({"prompt": "x"}, "ground_truth is missing"),
    ({"prompt": "x", "target": " "}, "ground_truth is ' '"),
    ({"prompt": "x", "target": "1", "extra_info": {"index": -1}}, "index is -1"),
    ({"prompt": "x", "target": "1", "difficulty": "hard"}, "difficulty is 'hard'"),
    ({"prompt": "x", "target": "1", "verifier": {"nam": 1}}, "verifier is"),
    ({"prompt": "x", "target": "1", "verifier": "/x.py:Mine"}, "/x.py:Mine' is code"),
    ({"prompt": "x", "target": "1", "verifier": {"name": "/x.py:Mine"}}, "/x.py:Mine' is code"),
    (
        {"prompt": "x", "target": "1", "verifier": a_sum_with("/x.py:Mine")},
        "/x.py:Mine' is code",
    ),
    (
        {"prompt": "x", "target": "1", "verifier": a_sum_with({"name": "/x.py:Mine"})},
        "/x.py:Mine' is code",
    ),
    (
        {"prompt": "x", "target": "1", "verifier": a_sum_with(a_sum_with("/x.py:Mine"))},
        "/x.py:Mine' is code",
    ),
    (
        {
            "prompt": "x",
            "target": "1",
            "verifier": {"name": "appeals", "rule": "/x.py:Mine", "second": "exact", "share": 1},
        },
        "/x.py:Mine' is code",
    ),
    ({"prompt": "x", "test_cases": []}, "test_cases is"),
    ({"prompt": "x", "target": "1", "difficulty": 10**400}, "difficulty is 1000"),
    ('{"prompt": "x", "test_cases": ["\\ud800"]}', "test_cases is .*surrogates"),
    ('{"prompt": "x", "target": "1", "test_cases": ["\\ud800"]}', "test_cases: .*surrogates"),
    ('{"prompt": "x", "target": ["\\ud800"]}', "ground_truth is .*surrogates"),
    ('{"prompt": "x", "target": "1", "options": {"a": "\\ud800"}}', "options: .*surrogates"),
    ({"prompt": "x", "target": "1", "options": {"a": 2**70}}, "options: .*64-bit"),
    ({"prompt": "x", "target": "1", "verifier": {"name": "exact", "n": 2**70}}, "verifier: "),
    ('{"prompt": "\\ud800", "target": "1"}', "lone surrogate"),
    ({"prompt": "x", "target": "1", "id": "b"}, "id b is already that of row 2"),
    (
        {"prompt": "x", "target": "1", "extra_info": {"index": 0}},
        "index 0 is already that of row 1",
    ),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_row_is_named_by_number_and_reason(bad: object, reason: str, tmp_path: Path):
    path = written(tmp_path, [*ROWS, bad])

    with pytest.raises(BadConfiguration, match=f"1 bad rows.*\n.*jsonl:5: .*{reason}"):
        imported(path, tmp_path / "data")

    folder, manifest = imported(path, tmp_path / "data", skip_bad=True)
    assert (manifest.rows, manifest.refused) == (4, 1)
    refused = json.loads((folder / layout.REFUSED).read_text())
    assert refused["row"] == 5
    assert not list((tmp_path / "data" / "tasks").glob(".import-*"))


def test_a_bad_row_of_a_parquet_file_is_named_too(tmp_path: Path):
    good = {"prompt": "x", "target": "1", "options": "{}", "extra_info": "none"}
    bad = good | {"options": '{"a": '}
    path = tmp_path / "tasks.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([bad]), path)

    with pytest.raises(BadConfiguration, match=r"parquet:1: options is .*: not JSON"):
        imported(path, tmp_path / "data")
    with pytest.raises(BadConfiguration, match=r"parquet:1: options is .*: not JSON"):
        next(stored.rows_of(path))

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([good]), path)
    with pytest.raises(BadConfiguration, match=r"parquet:1: extra_info is 'none'"):
        imported(path, tmp_path / "data")


def test_what_json_cannot_spell_is_a_bad_row(tmp_path: Path):
    path = tmp_path / "tasks.parquet"
    row = {"prompt": "x", "target": [date(2020, 1, 1)]}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)

    with pytest.raises(BadConfiguration, match=r"ground_truth is .* not JSON serializable"):
        imported(path, tmp_path / "data")


def test_a_row_that_is_left_out_keeps_its_id_for_another(tmp_path: Path):
    rows = [{"prompt": x, "target": x, "id": "a", "index": 5} for x in ("bad", "good", "again")]

    def check(row: Row) -> None:
        if row.target == "bad":
            raise ValueError("bad")

    folder, manifest = importing.run(
        written(tmp_path, rows), "tasks", tmp_path / "data", check=check, skip_bad=True
    )

    assert [row.target for row in stored.rows(folder)] == ["good"]
    assert manifest.refused == 2


def test_an_import_of_nothing_leaves_nothing(tmp_path: Path):
    data = tmp_path / "data"

    assert main(["data", "import", str(tmp_path / "a.jsonl"), "--datasets", str(data)]) == 2
    assert not list(data.glob("*"))

    folder, _ = imported(written(tmp_path, ROWS), data)
    with pytest.raises(BadConfiguration, match="cannot be read"):
        imported(tmp_path / "a.jsonl", data)
    assert (folder / layout.ROWS).is_file()


def test_an_unlabelled_row_hides_its_tests_as_it_hides_its_target(tmp_path: Path):
    tests = [{"expr": "f(1)", "expected": 2}]
    row = {"prompt": "x", "target": "y", "tests": tests, "options": {"entry": "f"}}
    path = written(tmp_path, [row | {"index": 0}, row | {"index": 1, "labeled": False}])
    folder, _ = imported(path, tmp_path / "data")

    source = SourceSettings.model_validate({"domain": "d", "path": folder})
    known, hidden = load(folder, source, max_rows=None).items

    assert (known.target, known.options) == ("y", {"entry": "f", "tests": tests})
    assert (hidden.target, hidden.options) == (None, {"entry": "f"})


def test_a_parquet_file_names_no_code_to_import(tmp_path: Path):
    mark = tmp_path / "mark"
    (tmp_path / "mine.py").write_text(f"open({str(mark)!r}, 'w')\n")
    row = {
        "prompt": "x",
        "target": "1",
        "verifier": json.dumps(a_sum_with(f"{tmp_path}/mine.py:M")),
    }
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)

    source = SourceSettings.model_validate({"domain": "d", "path": path})
    with pytest.raises(BadConfiguration, match=r"rows.parquet:1: .*mine.py:M' is code"):
        load(path, source, max_rows=None)
    assert main(["data", "import", str(path), "--datasets", str(tmp_path / "data")]) == 2
    assert not mark.exists()


def test_the_command_refuses_what_its_verifier_could_never_grade(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = [{"prompt": "x", "target": "3"}, {"prompt": "y", "target": "see figure"}]
    asked = ["data", "import", str(written(tmp_path, rows)), "--datasets", str(tmp_path / "data")]

    assert main([*asked, "--verifier", "math"]) == 2
    assert "tasks.jsonl:2: target 'see figure'" in capsys.readouterr().err
    assert main([*asked, "--verifier", "maths"]) == 2
    assert "expected one of" in capsys.readouterr().err
    assert main([*asked, "--verifier", '{"name": "exact"}']) == 0
    assert "2 rows" in capsys.readouterr().out
    export = ["data", "export", "tasks", "--datasets", str(tmp_path / "data"), "--to"]
    assert main([*export, str(tmp_path / "out")]) == 0
    assert len(list(stored.rows(tmp_path / "out"))) == 2


def test_keys_are_told_apart_and_the_first_row_is_remembered():
    with Keys() as keys:
        assert [keys.first(key, row) for row, key in enumerate(["a", "b", "a", "b", "c"])] == [
            0, 1, 0, 1, 4,
        ]  # fmt: skip


MANY = """
import json, resource, sys
from pathlib import Path
from store.datasets import importing, stored
count, folder = int(sys.argv[1]), Path(sys.argv[2])
path = folder / "many.jsonl"
with path.open("w") as file:
    for n in range(count):
        row = {"prompt": f"Question {n}: how much is {n} and {n}? " + "x" * 100, "target": str(2 * n)}
        file.write(json.dumps(row | {"id": n if n != count - 1 else 0}) + "\\n")
place, manifest = importing.run(path, "many", folder, check=lambda row: None, skip_bad=True)
back = sum(row.target == str(2 * row.index) for row in stored.rows(place))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(manifest.rows, manifest.refused, back, peak)
"""


def imports(count: int, folder: Path) -> tuple[int, ...]:
    """(rows, refused, rows read back right, peak MiB) of an import in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(count), str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=1500,
    )
    return tuple(int(number) for number in done.stdout.split())


def test_an_import_keeps_to_its_memory(tmp_path: Path):
    *_, few_peak = imports(2_000, tmp_path)

    *found, peak = imports(30_000, tmp_path)

    assert found == [29_999, 1, 29_999]
    # The rows themselves are tens of MiB as Python's objects.
    assert peak - few_peak <= 16


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_million_rows_are_imported_within_300_mib(tmp_path: Path):
    rows, refused, back, peak = imports(1_000_000, tmp_path)

    assert (rows, refused, back) == (999_999, 1, 999_999)
    assert peak <= 300
