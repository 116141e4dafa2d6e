"""What is exported is what was evaluated."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.cluster import Cluster

MAX_TOKENS = 12


def greedy(model, tokenizer, prompt: str) -> str:
    """Plain transformers, one prompt at a time."""
    asked = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    answer = model.generate(**asked, do_sample=False, max_new_tokens=MAX_TOKENS)
    return tokenizer.decode(answer[0, asked.input_ids.shape[1] :], skip_special_tokens=True)


def test_an_exported_model_answers_as_evaluated(finished_run: Cluster, tmp_path: Path):
    items = finished_run.query(
        "select i.sample_key, i.score, s.target, p.text as prompt from evaluation_item i"
        " join sample s using (sample_key)"
        " join prompt_group g on g.run_id = i.run_id and g.group_id = i.group_id"
        " join rendered_prompt p on p.prompt_sha256 = g.prompt_sha256"
        " where i.version = (select max(version) from evaluation)"
    )

    finished_run.sluice("export", finished_run.run, "--to", str(tmp_path / "model"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")

    assert model.dtype == torch.float32
    assert len(items) == 2 * 28
    scores = {
        item["sample_key"]: float(greedy(model, tokenizer, item["prompt"]) == item["target"])
        for item in items
    }
    assert scores == {item["sample_key"]: item["score"] for item in items}
    assert 0 < sum(scores.values()) < len(scores)
