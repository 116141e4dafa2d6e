"""`sluice regrade`: recorded answers through another verifier; training rows stay as they are."""

import argparse
import asyncio
import json
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from ops.commands.common import add, add_run, bus_of, find, runs_folder, store_of, wait_for

if TYPE_CHECKING:
    from broker.jetbus import JetStreamBus
    from store.regrading import Group
    from workers.verifiers.pool import Pool
    from workers.verifiers.regrade import Flips

AT_ONCE = 32
SHOWN_CHARS = 120


def register(commands: Any) -> None:
    parser = add(
        commands,
        "regrade",
        "recorded answers through another verifier: new verdicts on record, and what changed",
        regrade,
    )
    add_run(parser)
    parser.add_argument(
        "--verifier",
        required=True,
        metavar="SPEC",
        help="a name, JSON, or `./mine.py:Grader`; the samples' own name keeps their options",
    )
    parser.add_argument("--json", action="store_true", help="one object")


def regrade(asked: argparse.Namespace) -> int:
    return wait_for(_regrade(asked))


async def _regrade(asked: argparse.Namespace) -> int:
    from broker.telemetry import Health
    from ops import settings
    from ops.commands.data import spec_of
    from store import catch_up, regrading
    from store.settings import StoreSettings
    from workers.verifiers.pool import Pool
    from workers.verifiers.regrade import Flips
    from workers.verifiers.together import together

    paths, spec = find(asked), spec_of(asked.verifier)
    limits = settings.load(paths.config).verifier
    flips = Flips()
    async with (
        store_of(runs_folder(asked), paths) as url,
        bus_of(runs_folder(asked), paths) as bus,
        Pool(size=2, deadline_s=limits.deadline_s, memory_bytes=limits.memory_bytes) as pool,
    ):
        groups = regrading.groups(url, paths.run_id)
        while batch := await asyncio.to_thread(lambda: list(islice(groups, AT_ONCE))):
            await together(_one(pool, bus, spec, group, flips) for group in batch)
        if await asyncio.to_thread(regrading.ended, url, paths.run_id):
            await catch_up.ledger(bus, url, settings=StoreSettings(), health=Health("regrade"))
    if asked.json:
        print(json.dumps(_tree(paths.run_id, flips), ensure_ascii=False))
    else:
        _tell(paths.run_id, flips)
    return 0


async def _one(
    pool: "Pool", bus: "JetStreamBus", spec: dict[str, Any], group: "Group", flips: "Flips"
) -> None:
    """One group: new verdicts to the log, unless they are there already."""
    from broker.messages import VerdictRevised
    from broker.telemetry import now_us, writer_id
    from workers.verifiers.regrade import Known, again, specification

    answers = {answer.index: answer for answer in group.answers}
    known = {
        index: Known(answer.text, answer.status, answer.score, answer.extracted)
        for index, answer in answers.items()
    }
    own = specification(spec, group.verifier)
    verdicts = await again(pool, own, group.group_id, group.target, known, group.options, flips)
    for found in verdicts:
        old = answers[found.index]
        same = (old.verifier, old.verifier_version) == (found.verifier, found.verifier_version)
        if same and (old.status, old.score) == (found.status, found.score):
            continue
        await bus.publish(
            VerdictRevised(
                writer_id=writer_id("ops"),
                at_us=now_us(),
                group_id=group.group_id,
                verdict=found,
            )
        )


def _tree(run_id: str, flips: "Flips") -> dict[str, Any]:
    kinds = [
        {
            "before": before,
            "after": after,
            "count": count,
            "examples": [asdict(flip) for flip in flips.examples[before, after]],
        }
        for (before, after), count in flips.kinds.most_common()
    ]
    return {"run_id": run_id, "judged": flips.judged, "flips": kinds}


def _tell(run_id: str, flips: "Flips") -> None:
    changed = sum(flips.kinds.values())
    print(f"{run_id}: {flips.judged} answers judged again, {changed} verdicts changed")
    for (before, after), count in flips.kinds.most_common():
        print(f"{count:8}  {before} -> {after}")
        for flip in flips.examples[before, after]:
            print(
                f"          {flip.group_id} answer {flip.index}: gold {flip.target!r:.40}, read as "
                f"{flip.extracted_before!r:.40}, now {flip.extracted_after!r:.40} ({flip.detail})"
            )
            print(f"            ...{flip.text[-SHOWN_CHARS:]!r}")
