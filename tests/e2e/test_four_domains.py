"""Four domains with four verifiers through the whole pipeline, and the answers judged again afterwards."""

import json
import string
from collections.abc import Callable

import pytest

from store.audit import CLAIMS
from tests.e2e.cluster import Cluster
from tests.verifier_data import rows

pytest.importorskip("pyarrow")

CONFIG = """
[run]
id = "{run}"
seed = 3
steps = 4
groups_per_step = 4
group_size = 8
max_staleness = 2

[model.tiny]
characters = {characters}
hidden = 32
layers = 2
heads = 2
kv_heads = 2
intermediate = 64
positions = 512

[[source]]
domain = "gsm8k"
path = "gsm8k.jsonl"
options = {{answer_format = "gsm8k"}}
prompt_field = "question"
target_field = "answer"
warmup_share = 0
verifier = {{name = "math"}}

[[source]]
domain = "knights"
generator = "knights"
options = {{people = 2}}
warmup_share = 1
verifier = {{name = "knights_knaves"}}

[[source]]
domain = "choice"
path = "choice.jsonl"
share = 2
warmup_share = 1
verifier = {{name = "choice"}}

[[source]]
domain = "code"
path = "datasets/code"
levels = {{easy = 3, hard = 1}}
warmup_share = 2
verifier = {{name = "exact"}}

[sampling]
max_tokens = 64
temperature = 1.2

[warmup]
steps = 70
batch_size = 4
learning_rate = 5e-3
"""
CHOICES = [
    {
        "prompt": f"Which comes after {left}? A: {wrong} B: {right} C: 0",
        "target": "B",
        "solution": "B",
        "options": {"options": 3},
    }
    for left, wrong, right in ("axb", "bzc", "cyd")
]
ADD = "```python\ndef f(x):\n    return x + 1\n```"
PROGRAMS = [
    {
        "prompt": f"Write f(x), {text}.",
        "test_cases": [{"expr": "f(1)", "expected": 2}, {"expr": "f(-1)", "expected": 0}],
        "solution": ADD,
        "level": level,
    }
    for text, level in (("one more", "easy"), ("x + 1", "easy"), ("the successor", "hard"))
]


def prepare(cluster: Cluster) -> None:
    """Rows of every domain beside the configuration; the programs as an imported dataset."""
    folder = cluster.directory
    short = sorted(rows("gsm8k/train.jsonl"), key=lambda row: len(str(row["question"])))[:8]
    for name, lines in (("gsm8k", short), ("choice", CHOICES), ("code", PROGRAMS)):
        text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    cluster.sluice("data", "import", "code.jsonl", "--datasets", "datasets")
    # As JSON spells it, TOML reads it.
    characters = json.dumps(string.printable[:95] + "\n")
    cluster.config.write_text(CONFIG.format(run=cluster.run, characters=characters))


def test_four_domains_are_judged_each_by_its_verifier_and_every_proof_holds(
    start_run: Callable[..., Cluster],
):
    cluster = start_run("four")
    prepare(cluster)

    cluster.sluice("run", str(cluster.config), limit_s=240)

    summary = json.loads((cluster.run_dir / "summary.json").read_text())
    assert summary["proofs"] == dict.fromkeys(CLAIMS, True)
    assert summary["trained_groups"] >= 4
    judged = cluster.query(
        "SELECT g.domain, v.verifier, v.status, count(*) AS n FROM verdict v"
        " JOIN prompt_group g USING (run_id, group_id) GROUP BY 1, 2, 3"
    )
    assert {(row["domain"], row["verifier"]) for row in judged} == {
        ("gsm8k", "math"),
        ("knights", "knights_knaves"),
        ("choice", "choice"),
        ("code", "code"),
    }
    assert {row["status"] for row in judged} <= {"ok", "no_answer"}
    judge_again(cluster)


def judge_again(cluster: Cluster) -> None:
    """Through another verifier: new verdicts beside the old, nothing that was trained on has changed."""
    trained = "SELECT * FROM annotation ORDER BY group_id, generation_index"
    before = cluster.query(trained)

    told = cluster.sluice("regrade", cluster.run, "--verifier", "format", "--json").stdout
    again = cluster.sluice("regrade", cluster.run, "--verifier", "format").stdout

    tree = json.loads(told)
    old, new = (
        cluster.query(f"SELECT count(*) AS n FROM verdict WHERE event_id {which} 0")[0]["n"]
        for which in ("=", ">")
    )
    assert tree["judged"] == old == new
    assert sum(kind["count"] for kind in tree["flips"]) > 0
    assert tree["flips"][0]["examples"][0]["text"]
    assert ", 0 verdicts changed" in again
    assert cluster.query(trained) == before
    cluster.sluice("audit", "verify", cluster.run)
