"""Starts or resumes a run: its start goes on record, another configuration is refused."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from broker.bus import Bus
from broker.errors import BadConfiguration
from broker.messages import RunStarted
from broker.settings import RunSettings
from broker.telemetry import now_us
from broker.topology import Log, kind_subjects
from workers.dispatcher.newest import newest_train_request
from workers.dispatcher.outbox import Outbox
from workers.dispatcher.sources import Source
from workers.dispatcher.state import State

CHANGEABLE = (
    "run.id", "run.steps", "run.drain_wait_s", "run.no_progress_steps", "evaluation.*",
    "learner.checkpoint_every", "learner.keep_checkpoints", "learner.on_mismatch", "learner.weights",
    "rollout.processes", "rollout.slots", "rollout.weights_wait_s",
    "verifier.processes", "verifier.pool", "verifier.slots",
    "nats.*", "store.*", "telemetry.*",
)  # fmt: skip
"""Keys that may differ when a run is taken up again: none of them decides what is trained next."""


@dataclass(frozen=True)
class Start:
    """What goes on record about a start."""

    config_json: str
    config_sha256: str
    versions: dict[str, str]
    resume: bool
    """Whether a run that has ended is to be started again."""


def _leaves(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    """(dotted key, value); lists count as values."""
    if isinstance(tree, Mapping) and tree:
        for key, below in tree.items():
            yield from _leaves(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def differing_keys(old: str, new: str) -> list[str]:
    """Keys whose values differ between two configurations (JSON) and may not."""
    before, after = dict(_leaves(json.loads(old))), dict(_leaves(json.loads(new)))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return sorted(k for k in keys if not any(fnmatchcase(k, allowed) for allowed in CHANGEABLE))


async def last_start(bus: Bus) -> RunStarted | None:
    stored = await bus.last(Log.LEDGER, kind_subjects(bus.run, RunStarted.KIND))
    event = stored.event() if stored is not None else None
    return event if isinstance(event, RunStarted) else None


def refuse_other_configuration(before: RunStarted | None, config_json: str) -> None:
    """Raises BadConfiguration listing the keys that may not change within a run."""
    keys = differing_keys(before.config, config_json) if before is not None else []
    if keys:
        raise BadConfiguration(
            f"the run was started with another configuration; these keys differ: {', '.join(keys)}"
        )


async def refuse_other_data(bus: Bus, sources: Mapping[str, Source]) -> None:
    """Positions in a dataset mean nothing in another version of it."""
    for domain, source in sources.items():
        request = await newest_train_request(bus, domain)
        if request is None:
            continue
        was = f"{request.sample.dataset}:{request.sample.dataset_version}"
        now = f"{source.train.dataset}:{source.train.version}"
        if was != now:
            raise BadConfiguration(
                f"source.{domain}: the run has drawn from {was}; the data is now {now}"
            )


async def record_start(
    outbox: Outbox, state: State, before: RunStarted | None, start: Start, run: RunSettings
) -> int | None:
    """RunStarted, the first time, after an end, or with a changed configuration; its sequence."""
    changed = before is not None and before.config_sha256 != start.config_sha256
    # A run that is ending goes on ending: a new start would take its draining back.
    if before is not None and not state.life.is_ended and (state.life.is_draining or not changed):
        return None
    started = RunStarted(
        writer_id=outbox.writer_id,
        at_us=now_us(),
        name=run.name,
        config=start.config_json,
        config_sha256=start.config_sha256,
        seed=run.seed,
        versions=start.versions,
        resumed=before is not None,
    )
    return await outbox.ledger(started, expect_subject=state.life.started)
