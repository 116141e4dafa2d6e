"""A checkpoint, or any file of model weights, as a Hugging Face folder. No torch, no transformers."""

import json
import shutil
from pathlib import Path

from broker.errors import BadConfiguration
from learner.checkpoint import MODEL, BadCheckpoint, read

SIDE_FILES = (".json", ".txt", ".model", ".jinja")
"""Configuration, tokenizer and chat template; weights and their index stay behind."""


def checkpoint_paths(run_dir: Path) -> dict[int, Path]:
    """Checkpoints of a run by step; of one step only the newest version."""
    paths = sorted((run_dir / "checkpoints").glob("step-*"))
    return {int(path.name.split("-")[1]): path for path in paths}


def export_checkpoint(run_dir: Path, model_dir: Path, to: Path, *, step: int | None = None) -> int:
    """Write the checkpoint of `step`, or the newest that verifies, to `to`; returns its step.

    model_dir gives configuration and tokenizer. Raises BadConfiguration when there is no such
    checkpoint, BadCheckpoint when it does not verify.
    """
    paths = checkpoint_paths(run_dir)
    if step is not None and step not in paths:
        there = ", ".join(map(str, sorted(paths))) or "none"
        raise BadConfiguration(
            f"--step {step}: no such checkpoint in {run_dir}; there are: {there}"
        )
    failure: BadCheckpoint | None = None
    for candidate in [step] if step is not None else sorted(paths, reverse=True):
        try:
            export_weights(read(paths[candidate]).model, model_dir, to)
        except BadCheckpoint as error:
            failure = error
            continue
        return candidate
    raise failure or BadConfiguration(f"{run_dir}: has no checkpoint yet")


def export_weights(weights: bytes, model_dir: Path, to: Path) -> None:
    """Write a folder that `from_pretrained` loads in float32, the type of the weights."""
    if to.resolve() == model_dir.resolve():
        raise BadConfiguration(
            f"--to {to}: the model that the run began with; expected another folder"
        )
    to.mkdir(parents=True, exist_ok=True)
    for path in sorted(model_dir.iterdir()):
        if path.suffix in SIDE_FILES and not path.name.endswith(".index.json"):
            shutil.copyfile(path, to / path.name)
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = "float32"
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (to / MODEL).write_bytes(weights)
