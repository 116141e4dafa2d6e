"""A verifier is found by name or file, and refused with a reason when its specification is wrong."""

import os
from pathlib import Path

import pytest

from broker.errors import BadConfiguration
from workers.verifiers import registry
from workers.verifiers.exact import Exact
from workers.verifiers.math import Math
from workers.verifiers.protocol import Ungradable

OWN = """
from workers.verifiers.protocol import Verifier, judged

class Grader(Verifier):
    version = "7"
    tolerance: float = 0.1

    def grade(self, response, target, item):
        return judged(abs(float(response) - float(target)) <= self.tolerance, response, response)

NotAVerifier = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(OWN)
    return tmp_path


def test_a_name_alone_and_a_table_with_options_are_both_specifications():
    assert registry.build("math") == Math()
    assert registry.build({"name": "exact", "ignore_case": True}) == Exact(ignore_case=True)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("maths", "'maths': did you mean 'math'. expected one of"),
        ({}, "verifier.name None"),
        ({"name": 3}, "verifier.name 3"),
        ({"name": "exact", "ignore_cas": True}, "ignore_cas"),
        ({"name": "exact", "ignore_case": "perhaps"}, r"ignore_case.*perhaps"),
        ({"name": "math", "fallback": ["hunch"]}, "fallback"),
        ("./nowhere.py:Grader", "no such Python file"),
        ("./mine.txt:Grader", "or FILE.py:Class"),
    ],
)
def test_a_wrong_specification_is_refused_with_its_reason(spec: object, reason: str):
    with pytest.raises(BadConfiguration, match=reason):
        registry.build(spec)  # type: ignore[arg-type]


def test_a_verifier_of_ones_own_is_loaded_from_its_file(own: Path):
    grader = registry.build({"name": f"{own}/mine.py:Grader", "tolerance": 0.5})

    assert grader.grade("1.4", "1", {}).score == 1.0
    assert grader.grade("1.6", "1", {}).score == 0.0
    assert registry.identity(f"{own}/mine.py:Grader")[0] == "mine.py:Grader"


@pytest.mark.parametrize(
    ("text", "attribute", "reason"),
    [(OWN, "Missing", "has no Missing"), (OWN, "NotAVerifier", "expected a subclass"),
     ("import nowhere_at_all", "Grader", "ModuleNotFoundError"), ("def (", "Grader", "SyntaxError")],
)  # fmt: skip
def test_a_file_that_holds_no_verifier_is_refused(
    tmp_path: Path, text: str, attribute: str, reason: str
):
    file = tmp_path / "mine.py"
    file.write_text(text)

    with pytest.raises(BadConfiguration, match=reason):
        registry.build(f"{file}:{attribute}")


def test_a_relative_file_is_found_from_the_folder_of_the_configuration(own: Path):
    spec = registry.absolute({"name": "./mine.py:Grader", "tolerance": 1.0}, own)

    assert spec == {"name": f"{own.resolve()}/mine.py:Grader", "tolerance": 1.0}
    assert os.getcwd() != str(own)
    assert registry.build(spec).version == "7"


def test_exact_compares_the_trimmed_text():
    assert Exact().grade(" 42\n", "42", {}).score == 1.0
    assert Exact().grade("42.", "42", {}).score == 0.0
    assert Exact().grade("Yes", "yes", {}).score == 0.0
    assert Exact(ignore_case=True).grade("Yes", "yes", {}).score == 1.0
    assert Exact(after="=>").grade("a => b => 42", "42", {}).score == 1.0


def test_exact_finds_no_answer_in_an_empty_response_and_no_use_in_an_empty_target():
    assert Exact().grade(" \n", "42", {}).status == "no_answer"
    assert Exact(after="=>").grade("42", "42", {}).status == "no_answer"
    assert Exact().grade("42", None, {}).status == "ungradable"
    with pytest.raises(Ungradable):
        Exact().check(" ", {})


@pytest.mark.parametrize("name", sorted(registry.BUILTIN))
def test_every_built_in_name_leads_to_a_verifier_that_states_its_version(name: str):
    assert registry.identity(name) == (name, registry.verifier_class(name).version)
