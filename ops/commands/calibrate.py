"""`sluice calibrate`: whether the verifiers of a configuration pay for right answers and only for those."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ops.commands.common import add, add_set, wait_for

if TYPE_CHECKING:
    from broker.messages import Sample
    from ops.settings import Configuration
    from workers.dispatcher.sources import Source
    from workers.verifiers.calibrate import Calibration


def register(commands: Any) -> None:
    parser = add(
        commands,
        "calibrate",
        "whether gold answers score 1 and wrong ones 0, by source; exits 1 when a run is to be blocked",
        calibrate,
    )
    parser.add_argument("config", type=Path, metavar="CONFIG")
    add_set(parser)
    parser.add_argument("--json", action="store_true", help="an array of objects")


def calibrate(asked: argparse.Namespace) -> int:
    from ops import settings

    return wait_for(
        _calibrate(settings.load(asked.config, tuple(asked.set)), json_wanted=asked.json)
    )


async def _calibrate(c: "Configuration", *, json_wanted: bool) -> int:
    from ops import roles
    from ops.paths import RunPaths
    from workers.verifiers import calibrate
    from workers.verifiers.pool import Pool

    with TemporaryDirectory() as scratch:
        folder = roles.prepare_model(c, RunPaths(Path(scratch) / "run"))
        _, loaded = roles.load_sources(c, folder)
    limits = c.verifier
    async with Pool(size=2, deadline_s=limits.deadline_s, memory_bytes=limits.memory_bytes) as pool:
        found = [
            await calibrate.calibrate(
                pool, source.domain, train_items(source), held_out_items(source)
            )
            for source in loaded
        ]
    if json_wanted:
        print(json.dumps([_tree(one) for one in found], ensure_ascii=False))
    else:
        for one in found:
            _tell(one)
    return 1 if any(one.problems for one in found) else 0


def train_items(source: "Source") -> "Sequence[tuple[Sample, str | None]]":
    """The first draws, with their worked solutions."""
    from workers.verifiers.calibrate import ITEMS

    numbers = range(min(ITEMS, len(source.train.items)))
    return [(source.sample(n)[0], source.item(n)[0].solution) for n in numbers]


def held_out_items(source: "Source") -> "Sequence[tuple[Sample, str | None]]":
    from workers.verifiers.calibrate import ITEMS

    solutions = [item.solution for item in source.held_out.items]
    return list(zip(source.evaluation(), solutions, strict=True))[:ITEMS]


def _tree(one: "Calibration") -> dict[str, Any]:
    return {
        "domain": one.domain,
        "verifiers": list(one.verifiers),
        "gold": one.gold,
        "gold_right": one.gold_right,
        "parsed": one.parsed,
        "wrong": one.wrong,
        "wrong_paid": one.wrong_paid,
        "unknown": one.unknown,
        "faults": dict(one.faults),
        "compared": one.compared,
        "agreeing": one.agreeing,
        "problems": one.problems,
        "examples": one.examples,
    }


def _tell(one: "Calibration") -> None:
    mark = "BLOCKED" if one.problems else "ok"
    print(
        f"{mark:8}{one.domain} ({', '.join(one.verifiers)}): {one.gold_right} of {one.gold} gold answers "
        f"score 1, {one.wrong - one.wrong_paid} of {one.wrong} wrong ones 0"
    )
    for line in (*one.problems, *one.examples):
        print(f"          {line}")
