"""GRPO in one process and a plain loop: what the whole system must equal, step by step, when synchronous.

Shares with Sluice only the data (samples, rendering) and the rule that derives an answer's random numbers;
model calls, sampling, rewards, advantages, loss and optimizer are written out anew, without cache or packing.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from broker.seeds import row_seed
from workers.dispatcher.mixture import after_draw, next_domain
from workers.dispatcher.rendering import Renderer
from workers.dispatcher.sources import Source

MASK = 2**64 - 1


@dataclass
class Step:
    tokens: dict[tuple[str, int], list[int]]
    rewards: dict[tuple[str, int], float]
    advantages: dict[tuple[str, int], float]
    loss: float


def splitmix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def uniform(seed: int, t: int) -> float:
    return (splitmix((splitmix(seed) + (t + 1) * 0x9E3779B97F4A7C15) & MASK) >> 11) * 2.0**-53


def sample(
    model, prompt: list[int], seed: int, end: int, max_tokens: int
) -> tuple[list[int], list[float]]:
    """One answer token by token, each from a full forward over everything before it."""
    answer: list[int] = []
    logprobs: list[float] = []
    while len(answer) < max_tokens and end not in answer:
        with torch.no_grad():
            log_p = model(torch.tensor([prompt + answer])).logits[0, -1].log_softmax(-1)
        cumulative = log_p.exp().double().cumsum(-1)
        token = int(
            torch.searchsorted(cumulative, uniform(seed, len(answer)) * cumulative[-1], right=True)
        )
        answer.append(token)
        logprobs.append(float(log_p[token]))
    return answer, logprobs


def grpo_advantages(rewards: list[float]) -> list[float]:
    r = np.array(rewards)
    return [0.0] * len(r) if r.max() == r.min() else list((r - r.mean()) / (r.std(ddof=1) + 1e-6))


def step_loss(
    model, rows: list[tuple], *, low: float, high: float, denominator: int
) -> torch.Tensor:
    total = torch.zeros(())
    for prompt, answer, old, advantage in rows:
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        new = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
        ratio = (new - torch.tensor(old)).exp()
        clipped = ratio.clamp(1 - low, 1 + high)
        total = total - torch.minimum(ratio * advantage, clipped * advantage).sum() / denominator
    return total


def train(
    model_dir: Path, weights: Path, sources: list[Source], renderer: Renderer, *, seed: int, steps: int,
    groups: int, size: int, max_tokens: int, learning_rate: float,
) -> list[Step]:  # fmt: skip
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(model_dir), dtype=torch.float32
    )
    model.load_state_dict(load_file(weights), strict=False)
    model.tie_weights()
    model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    by_domain = {source.domain: source for source in sources}
    target = dict.fromkeys(by_domain, 1 / len(by_domain))
    drawn = dict.fromkeys(by_domain, 0)
    owed: dict[str, float] = {}
    end = renderer.answer("")[-1]
    history: list[Step] = []
    for number in range(steps):
        step, rows = Step({}, {}, {}, 0.0), []
        for draw in range(number * groups + 1, (number + 1) * groups + 1):
            domain = next_domain(target, owed)
            owed = after_draw(target, owed, domain)
            item, _ = by_domain[domain].sample(drawn[domain])
            drawn[domain] += 1
            prompt, group = list(renderer.render(item.prompt).ids), f"{draw:08d}-0-0"
            answers = [
                sample(model, prompt, row_seed(seed, group, i), end, max_tokens)
                for i in range(size)
            ]
            rewards = [float(tokens == list(renderer.answer(item.target))) for tokens, _ in answers]
            for i, advantage in enumerate(grpo_advantages(rewards)):
                step.tokens[group, i], step.rewards[group, i] = answers[i][0], rewards[i]
                step.advantages[group, i] = advantage
                rows.append((prompt, *answers[i], advantage))
        if any(row[3] for row in rows):
            count = sum(len(row[1]) for row in rows)
            loss = step_loss(model, rows, low=0.2, high=0.28, denominator=count)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step.loss = loss.item()
        history.append(step)
    return history
