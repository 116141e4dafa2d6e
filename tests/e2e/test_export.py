"""What is exported is what was evaluated."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.cluster import ROOT, Cluster

MAX_TOKENS = 12
SMOLLM2 = ROOT / "models" / "smollm2-135m-instruct"
SMOLLM2_CONFIG = f"""
[run]
id = "{{run}}"
seed = 3
steps = 2
groups_per_step = 2
group_size = 4
max_staleness = 1

[model]
path = "{SMOLLM2}"

[[source]]
domain = "logic"
generator = "logic"
options = {{{{ width = 3 }}}}
verifier = {{{{ name = "exact" }}}}
eval_items = 40

[sampling]
max_tokens = {MAX_TOKENS}

[warmup]
steps = 40
batch_size = 16
learning_rate = 1e-4

[learner]
threads = 2
learning_rate = 2e-6
weights = "directory"
keep_checkpoints = 1

[policy]
admit = []
"""


def greedy(model, tokenizer, prompt: str) -> str:
    """Plain transformers, one prompt at a time."""
    asked = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    answer = model.generate(**asked, do_sample=False, max_new_tokens=MAX_TOKENS)
    return tokenizer.decode(answer[0, asked.input_ids.shape[1] :], skip_special_tokens=True)


def assert_export_answers_as_evaluated(run: Cluster, folder: Path, items: int) -> None:
    evaluated = run.query(
        "select i.sample_key, i.score, s.target, p.text as prompt from evaluation_item i"
        " join sample s using (sample_key)"
        " join prompt_group g on g.run_id = i.run_id and g.group_id = i.group_id"
        " join rendered_prompt p on p.prompt_sha256 = g.prompt_sha256"
        " where i.version = (select max(version) from evaluation)"
    )

    run.sluice("export", run.run, "--to", str(folder))
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    assert model.dtype == torch.float32
    assert len(evaluated) == items
    scores = {
        item["sample_key"]: float(greedy(model, tokenizer, item["prompt"]) == item["target"])
        for item in evaluated
    }
    assert scores == {item["sample_key"]: item["score"] for item in evaluated}
    assert 0 < sum(scores.values()) < len(scores)


def test_an_exported_model_answers_as_evaluated(finished_run: Cluster, tmp_path: Path):
    assert_export_answers_as_evaluated(finished_run, tmp_path / "model", 2 * 28)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="ops/bin/smollm2 makes the model's folder")
def test_an_exported_smollm2_answers_as_evaluated(
    start_run: Callable[..., Cluster], tmp_path: Path
):
    """On a task that it learns within its warm-up: of GSM8K it solves next to nothing."""
    run = start_run("smollm2")
    run.config.write_text(SMOLLM2_CONFIG.format(run=run.run))

    run.sluice("run", str(run.config), limit_s=1500)

    assert_export_answers_as_evaluated(run, tmp_path / "model", 40)
