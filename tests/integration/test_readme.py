"""What the README shows can be run."""

import re
from pathlib import Path

import pytest

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
