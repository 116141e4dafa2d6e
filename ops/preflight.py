"""What only a look into data and methods can tell: refused before anything is written or started."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from broker.errors import BadConfiguration, SluiceError
from broker.messages import Sample
from ops import roles
from ops.doctor import last_line, python_says
from ops.paths import RunPaths
from ops.settings import Configuration
from workers.dispatcher.space import refuse_small_logs, signal_bytes

if TYPE_CHECKING:
    from workers.dispatcher.rendering import Renderer
    from workers.dispatcher.sources import Source
    from workers.verifiers.pool import Pool

TARGETS_TRIED = 20
"""Of each source: a verifier that cannot read these can read none, and no answer would be graded."""

COMPUTE_THERE = """
import sys, torch
try:
    torch.zeros(1, device=sys.argv[1]).add_(1).item()
except Exception as error:
    sys.exit(str(error).splitlines()[0])
"""


def refuse_unusable(configuration: Configuration) -> None:
    """BadConfiguration for whatever a role would refuse when they start."""
    from store.database import plain_url
    from workers.dispatcher.warmup import solutions
    from workers.rollout.vllm_start import refuse_without_vllm

    c = configuration
    refuse_impossible(c, snapshot_every=snapshot_every(c))
    refuse_missing_device(c.model.device)
    if c.store.url is not None:
        plain_url(c.store.url)
    if c.rollout.engine == "vllm":
        refuse_without_vllm()
    refuse_unknown_verifiers(c)
    with TemporaryDirectory() as scratch:
        folder = roles.prepare_model(c, RunPaths(Path(scratch) / "run"))
        if c.learner.kl is not None and c.learner.kl.path is not None:
            from learner.reference import refuse_unusable_folder, vocabulary_of

            refuse_unusable_folder(c.learner.kl.path, vocabulary_of(folder, "model.path"))
        renderer, sources = roles.load_sources(c, folder)
        if c.warmup.steps:
            next(solutions(sources, renderer, max_tokens=c.sampling.max_tokens))
        for source in sources:
            if c.warmup.steps and source.settings.warmup_share != 0:
                refuse_unwritable_solutions(c, source, renderer)
    asyncio.run(refuse_ungradable(c, sources))


def refuse_impossible(configuration: Configuration, *, snapshot_every: int = 1) -> None:
    """BadConfiguration for what no run could live with, found before anything starts.

    snapshot_every: windows between the policy's snapshots, which only its methods tell.
    """
    c = configuration
    refuse_small_logs(
        c.run,
        prompt_tokens=c.prompt.max_tokens,
        answer_tokens=c.sampling.max_tokens,
        checkpoint_every=c.learner.checkpoint_every,
        snapshot_every=snapshot_every,
        log_bytes=c.nats.log_bytes,
        answer_signal_bytes=signal_bytes(
            c.rollout.signals,
            answer_tokens=c.sampling.max_tokens,
            hidden_values=c.model.hidden_values,
        ),
    )


def refuse_unwritable_solutions(
    configuration: Configuration, source: "Source", renderer: "Renderer"
) -> None:
    """Of all that the warm-up will take: the learner would end at the first of them."""
    from workers.dispatcher.warmup import solutions

    c = configuration
    drawn = solutions([source], renderer, max_tokens=c.sampling.max_tokens)
    solved = sum(item.solution is not None for item in source.train.items)
    wanted = min(solved, c.warmup.steps * c.warmup.batch_size)
    for _ in itertools.islice(drawn, wanted):
        pass


def refuse_missing_device(device: str) -> None:
    """Otherwise a role would wait, or die again and again, on a device that is not there."""
    if device == "cpu":
        return
    # In a process of its own: what a GPU's driver keeps of this one's memory would stay.
    asked = python_says(COMPUTE_THERE, device)
    if asked.returncode != 0:
        raise BadConfiguration(
            f"model.device {device!r}: torch cannot compute there: {last_line(asked)} "
            "(`sluice doctor` tells what is here)"
        )


async def refuse_ungradable(configuration: Configuration, sources: Sequence["Source"]) -> None:
    """Targets that a verifier cannot read, and verifiers that pay for no gold answer."""
    from workers.verifiers.pool import Pool

    limits = configuration.verifier
    async with Pool(size=1, deadline_s=limits.deadline_s, memory_bytes=limits.memory_bytes) as pool:
        for source in sources:
            some = range(min(TARGETS_TRIED, len(source.train.items)))
            samples = [source.sample(position)[0] for position in some]
            refuse_unreadable_targets(samples)
            worked = [source.item(position)[0].solution for position in some]
            await refuse_unpaid_gold(pool, source.domain, list(zip(samples, worked, strict=True)))


def snapshot_every(configuration: Configuration) -> int:
    """Windows between the policy's snapshots. BadConfiguration for a policy that cannot be built."""
    from workers.policies import shadows
    from workers.policies.program import Program
    from workers.policies.worker import snapshot_interval

    policy, measured = configuration.policy, frozenset[str](configuration.rollout.signals)
    program = Program(policy, measured)
    program.refuse_small_groups(configuration.run.group_size)
    beside = shadows.build(policy, measured=measured)
    return snapshot_interval([program, *(shadow.program for shadow in beside)])


def refuse_unknown_verifiers(configuration: Configuration) -> None:
    """Otherwise they would be noticed with the first answers only, a group at a time."""
    from workers.verifiers import registry

    for source in configuration.source:
        with registry.users_code("ready"):
            registry.build(source.verifier).ready()


def refuse_unreadable_targets(samples: Sequence[Sample]) -> None:
    from workers.verifiers import registry

    for sample in samples:
        try:
            grader = registry.build(sample.verifier)
            with registry.users_code("check"):
                grader.check(sample.target, sample.options)
        except SluiceError as error:
            raise BadConfiguration(
                f"source.{sample.domain}.verifier {sample.verifier.get('name')}: {sample.key}: {error}"
            ) from error


async def refuse_unpaid_gold(
    pool: "Pool", domain: str, samples: Sequence[tuple[Sample, str | None]]
) -> None:
    """A verifier that pays for none of the gold answers would call every answer wrong, silently."""
    from workers.verifiers.calibrate import first_paid

    paid, reason = await first_paid(pool, samples)
    if not paid:
        raise BadConfiguration(
            f"source.{domain}: none of the first {len(samples)} gold answers scores 1 "
            f"(`sluice calibrate` says more): {reason}"
        )
