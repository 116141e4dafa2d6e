"""`sluice run --dry-run`: what the model would read, and how much memory and disk a run would take."""

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from broker.errors import BadConfiguration
from ops import roles
from ops.paths import RunPaths
from ops.preflight import refuse_unusable
from ops.settings import Configuration

SHOWN = 2
"""Prompts shown of each source."""
MIB, GIB = 2**20, 2**30
TORCH_PROCESS = 300 * MIB
"""Of a process that has imported torch and does nothing yet."""


@dataclass(frozen=True)
class Shape:
    """What of a model decides how much memory it takes."""

    parameters: int
    layers: int
    kv_width: int
    """Numbers kept per token and layer in each of keys and values."""
    hidden: int
    vocabulary: int


def shape_of(config: dict[str, Any]) -> Shape:
    """From a Llama-like config.json; the parameters are counted, not read."""
    try:
        hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        heads, wide = int(config["num_attention_heads"]), int(config["intermediate_size"])
        vocabulary = int(config["vocab_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadConfiguration(f"model: config.json has no usable {error}") from error
    head = int(config.get("head_dim") or hidden // heads)
    kv_width = int(config.get("num_key_value_heads") or heads) * head
    attention = 2 * hidden * heads * head + 2 * hidden * kv_width
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    parameters = embeddings + layers * (attention + 3 * hidden * wide + 2 * hidden) + hidden
    return Shape(parameters, layers, kv_width, hidden, vocabulary)


@dataclass(frozen=True)
class Estimate:
    """Bytes, rough: within a factor of two for the sizes that matter."""

    learner: int
    rollout: int
    checkpoints: int
    weights: int
    logs: int


def estimate(configuration: Configuration, shape: Shape, prompt_tokens: int) -> Estimate:
    """prompt_tokens: of the longest prompt."""
    c, weights = configuration, 4 * shape.parameters
    row_tokens = prompt_tokens + c.sampling.max_tokens
    # Weights, gradients and two Adam moments; per token some activations a layer, and logits with gradients.
    activations = (
        c.learner.micro_batch_tokens * 4 * (16 * shape.hidden * shape.layers + 3 * shape.vocabulary)
    )
    cache = c.rollout.max_rows * row_tokens * 2 * shape.layers * shape.kv_width * 4
    answers = c.run.steps * c.run.groups_per_step * c.run.group_size
    # Token ids and log-probabilities, in REQUESTS once and in the three later logs each, and some text.
    per_answer = 3 * (8 * c.sampling.max_tokens + 600)
    return Estimate(
        # A stream more: its micro-batch, its gradients and those that it adds to them.
        learner=TORCH_PROCESS
        + 4 * weights
        + activations
        + (c.learner.threads - 1) * (activations + 2 * weights),
        rollout=c.rollout.processes * (TORCH_PROCESS + 2 * weights + cache),
        checkpoints=(c.learner.keep_checkpoints + 1) * 3 * weights,
        weights=(c.run.pace_steps + 3) * weights,
        logs=min(answers * per_answer, 5 * c.nats.log_bytes),
    )


def show(configuration: Configuration, out: TextIO) -> int:
    """Print it; returns the exit code. Raises BadConfiguration for what a run would refuse."""
    refuse_unusable(configuration)
    with TemporaryDirectory() as scratch:
        folder = roles.prepare_model(configuration, RunPaths(Path(scratch) / "run"))
        renderer, sources = roles.load_sources(configuration, folder)
        shape = shape_of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        longest = 0
        for source in sources:
            print(f"== {source.domain}: {len(source.train.items)} to train on, "
                  f"{len(source.held_out.items)} held out", file=out)  # fmt: skip
            for position in range(SHOWN):
                sample, _ = source.sample(position)
                rendered = renderer.render(sample.prompt)
                print(
                    f"-- {sample.key}, {len(rendered.ids)} tokens, target {sample.target!r}",
                    file=out,
                )
                print(rendered.text, file=out)
            some = [
                source.sample(position)[0].prompt
                for position in range(min(64, len(source.train.items)))
            ]
            longest = max(longest, *(len(r.ids) for r in renderer.render_all(some)))
    _show_estimate(estimate(configuration, shape, longest), shape, out)
    return 0


def _show_estimate(found: Estimate, shape: Shape, out: TextIO) -> None:
    print(f"== about {shape.parameters / 1e6:.1f} million parameters", file=out)
    for name, size in found.__dict__.items():
        kind = "memory" if name in ("learner", "rollout") else "disk"
        amount = f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / MIB:.1f} MiB"
        print(f"{kind:6}  {name:11}  {amount}", file=out)
