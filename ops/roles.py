"""What each role needs, built from the run's configuration. Imports are late: no role pays for another's."""

import asyncio
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from broker.bus import Bus
from broker.errors import BadConfiguration
from broker.gpu_turn import GpuTurn
from broker.telemetry import Health
from ops import settings
from ops.paths import RunPaths
from ops.settings import Configuration

if TYPE_CHECKING:
    from learner.warmup import WarmupExample
    from workers.dispatcher.rendering import Renderer
    from workers.dispatcher.sources import Source

ROLES = ("dispatcher", "rollout", "verifier", "policy", "learner", "recorder")
SINGLE_WRITERS = {"dispatcher", "policy", "learner"}
"""Further processes of these stand by."""
NEED_MODEL = {"dispatcher", "rollout", "learner"}
COMPUTE = {"rollout", "learner"}
LIBRARIES = ("sluice-rl", "torch", "transformers", "tokenizers", "numpy", "nats-py", "math-verify")


@dataclass(frozen=True)
class Post:
    """Where a role works: one process of one run."""

    configuration: Configuration
    paths: RunPaths
    bus: Bus
    health: Health
    stop: asyncio.Event
    resume: bool
    """Begin an ended run anew, with more steps for instance."""

    @property
    def model_dir(self) -> Path:
        return model_dir(self.configuration, self.paths)


Start = Callable[[Post], Awaitable[None]]


def threads_of(role: str, configuration: Configuration) -> int:
    """Compute threads that the role may use."""
    of_role = {"learner": configuration.learner.threads, "rollout": configuration.rollout.threads}
    return of_role.get(role, 1)


def load(role: str) -> Start:
    """Import what the role is made of; takes seconds where torch is involved."""
    return LOADERS[role]()


# --- the model folder ---------------------------------------------------------------------------


def model_dir(configuration: Configuration, paths: RunPaths) -> Path:
    return configuration.model.path or paths.model


def prepare_model(configuration: Configuration, paths: RunPaths) -> Path:
    """The model's folder, made now if the model is a tiny one; BadConfiguration when it is not there."""
    folder, tiny = model_dir(configuration, paths), configuration.model.tiny
    if configuration.model.path is not None:
        for name in ("config.json", "tokenizer.json"):
            if not (folder / name).is_file():
                raise BadConfiguration(
                    f"model.path {folder}: expected a Hugging Face folder with {name}"
                )
    elif tiny is None:
        raise BadConfiguration("model: expected model.path or a table [model.tiny]")
    elif not folder.exists():
        from learner.tiny import write_model_folder

        # Several processes may be at it: each makes its own, the first one counts, they are equal.
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".model."))
        write_model_folder(tiny, unfinished)
        try:
            os.rename(unfinished, folder)
        except OSError:
            shutil.rmtree(unfinished)
            if not folder.exists():
                raise
    return folder


def versions() -> dict[str, str]:
    """Of the libraries that decide what comes out; those not installed are left out."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


# --- one loader a role ----------------------------------------------------------------------------


def _dispatcher() -> Start:
    from workers.dispatcher import worker

    def start(post: Post) -> Awaitable[None]:
        c = post.configuration
        return worker.run(
            post.bus,
            run=c.run,
            sources=c.source,
            prompt=c.prompt,
            sampling=c.sampling,
            evaluation=c.evaluation,
            tokenizer_dir=post.model_dir,
            config_json=json.dumps(settings.without_secrets(c), sort_keys=True),
            config_sha256=settings.digest(c),
            versions=versions(),
            health=post.health,
            stop=post.stop,
            resume=post.resume,
        )

    return start


def _rollout() -> Start:
    from workers.rollout import worker

    def start(post: Post) -> Awaitable[None]:
        c = post.configuration
        return worker.run(
            post.bus,
            run=c.run,
            settings=c.rollout,
            model_dir=post.model_dir,
            device=c.model.device,
            dtype=c.model.dtype,
            cache_dir=post.paths.root / "cache",
            health=post.health,
            stop=post.stop,
            transfer=None if c.learner.transfer == "none" else c.learner.transfer,
        )

    return start


def _verifier() -> Start:
    from workers.verifiers import worker

    def start(post: Post) -> Awaitable[None]:
        c = post.configuration
        return worker.run(post.bus, settings=c.verifier, health=post.health, stop=post.stop)

    return start


def _policy() -> Start:
    from workers.policies import worker

    def start(post: Post) -> Awaitable[None]:
        c = post.configuration
        total = sum(source.share for source in c.source)
        return worker.run(
            post.bus,
            run=c.run,
            settings=c.policy,
            shares={source.domain: source.share / total for source in c.source},
            measured=frozenset(c.rollout.signals),
            health=post.health,
            stop=post.stop,
        )

    return start


def _learner() -> Start:
    from learner import worker

    def start(post: Post) -> Awaitable[None]:
        c = post.configuration
        return worker.run(
            post.bus,
            run=c.run,
            model=c.model,
            model_dir=post.model_dir,
            settings=c.learner,
            warmup=c.warmup,
            warmup_examples=lambda: warmup_examples(c, post.model_dir),
            run_dir=post.paths.root,
            health=post.health,
            stop=post.stop,
            turn=GpuTurn.of_learner(post.paths.root) if c.rollout.vllm.share_gpu else None,
        )

    return start


def _recorder() -> Start:
    from store import recorder

    def start(post: Post) -> Awaitable[None]:
        c = post.configuration
        if c.store.url is None:
            raise BadConfiguration("store.url: expected postgresql://... for the role recorder")
        return recorder.run(
            post.bus, url=c.store.url, settings=c.store, health=post.health, stop=post.stop
        )

    return start


def load_sources(
    configuration: Configuration, tokenizer_dir: Path
) -> tuple["Renderer", list["Source"]]:
    """The run's renderer and its sources, as the dispatcher will load and check them."""
    from workers.dispatcher import sources
    from workers.dispatcher.rendering import Renderer
    from workers.dispatcher.settings import longest_answer

    c = configuration
    longest = longest_answer(c.sampling, c.evaluation)
    renderer = Renderer(tokenizer_dir, c.prompt, answer_tokens=longest)
    return renderer, sources.load(c.source, renderer, seed=c.run.seed)


def warmup_examples(configuration: Configuration, tokenizer_dir: Path) -> Iterator["WarmupExample"]:
    """As many worked solutions as the warm-up takes, drawn by the domains' shares."""
    from learner.warmup import WarmupExample
    from workers.dispatcher.warmup import solutions

    c = configuration
    renderer, sources = load_sources(c, tokenizer_dir)
    drawn = solutions(sources, renderer, max_tokens=c.sampling.max_tokens)
    for prompt, answer in itertools.islice(drawn, c.warmup.steps * c.warmup.batch_size):
        yield WarmupExample(prompt_ids=list(prompt), answer_ids=list(answer))


LOADERS: dict[str, Callable[[], Start]] = {
    "dispatcher": _dispatcher,
    "rollout": _rollout,
    "verifier": _verifier,
    "policy": _policy,
    "learner": _learner,
    "recorder": _recorder,
}
