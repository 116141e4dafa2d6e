"""What the README shows can be run."""

import json
import re
from pathlib import Path

import pytest

from ops import cli
from store.queries import sql
from workers.verifiers.registry import build

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("query", blocks("sql"))
def test_a_query_of_the_readme_runs(query: str, postgres_url: str):
    assert sql(postgres_url, query) == []


def test_the_readme_has_queries_to_run():
    assert len(blocks("sql")) >= 3


def test_the_verifier_of_the_readme_grades(tmp_path: Path):
    (source,) = (block for block in blocks("python") if "Verifier" in block)
    file = tmp_path / "mine.py"
    file.write_text(source)

    verifier = build({"name": f"{file}:Reversed"})

    assert verifier.grade(" cba ", "cba", {}).score == 1.0
    assert verifier.grade("abc", "cba", {}).score == 0.0
    assert verifier.grade("", "cba", {}).status == "no_answer"


def simulated(capsys: pytest.CaptureFixture[str], policy: Path, lines: Path) -> list[dict]:
    assert cli.main(["policy", "simulate", "--policy", str(policy), "--input", str(lines)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_policy_method_of_the_readme_decides(tmp_path: Path, capsys):
    (source,) = (block for block in blocks("python") if "Method" in block)
    (tmp_path / "mine.py").write_text(source)
    (stage,) = re.findall(r"`(admit = .*mine.py:Short.*)`", README)
    (tmp_path / "policy.toml").write_text(stage)
    (tmp_path / "groups.jsonl").write_text(
        "".join(
            json.dumps({"group_id": f"g{n}", "domain": "d", "rewards": [1, 0], "tokens": [n, 9]})
            + "\n"
            for n in (32, 33)
        )
    )

    rows = simulated(capsys, tmp_path / "policy.toml", tmp_path / "groups.jsonl")

    assert [row["reason"] for row in rows] == ["uniform"] * 2 + ["filtered:Short"] * 2


def test_the_policy_of_the_readme_decides(tmp_path: Path, capsys):
    (table,) = (block for block in blocks("toml") if "[policy]" in block)
    (tmp_path / "policy.toml").write_text(table)
    window = Path(__file__).parents[2] / "ops" / "docs" / "window.jsonl"

    rows = simulated(capsys, tmp_path / "policy.toml", window)

    assert len(rows) == 128
    assert {row["reason"] for row in rows} == {
        "filtered:dynamic_sampling", "advantage_magnitude-softmax"
    }  # fmt: skip
