"""`sluice policy simulate`, and `sluice replay RUN --policy`: what another policy would decide."""

import argparse
import json
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import BadConfiguration
from ops.commands.common import add, add_runs, bus_of, find, runs_folder, wait_for

if TYPE_CHECKING:
    from ops.paths import RunPaths
    from workers.policies.program import Program
    from workers.policies.replay import Verdicts


def register(commands: Any) -> None:
    root = commands.add_parser("policy", help="what a policy would decide")
    verbs = root.add_subparsers(metavar="VERB", required=True)
    parser = add(
        verbs, "simulate", "what a policy would decide, per generation, as JSON lines", simulate
    )
    parser.add_argument(
        "--policy", required=True, metavar="FILE",
        help="a TOML file with a table [policy], or a preset's name",
    )  # fmt: skip
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--input", type=Path, metavar="FILE",
        help="JSON lines {group_id, domain, rewards, tokens, ...}, a group each",
    )  # fmt: skip
    given.add_argument("--run", metavar="RUN", help="the recorded groups of a run")
    add_runs(parser)


def simulate(asked: argparse.Namespace) -> int:
    from workers.policies.simulate import parse, row_of, simulate

    if asked.input is None:
        paths = find(asked)
        over_run = read_policy(asked.policy, measured_in(paths))

        async def tell() -> int:
            async for one in verdicts(runs_folder(asked), paths, over_run):
                for annotation in one.other:
                    _print(row_of(one.event.group.group_id, annotation))
            return 0

        return wait_for(tell())
    program = read_policy(asked.policy)
    try:
        with asked.input.open(encoding="utf-8") as lines:
            groups = parse(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"--input {asked.input}: not readable: {error}") from error
    for row in simulate(program, groups):
        _print(row)
    return 0


def _print(row: dict[str, object]) -> None:
    print(json.dumps(row, ensure_ascii=False))


def compare(asked: argparse.Namespace) -> int:
    """The recorded policy beside another one, over the same groups."""
    return wait_for(_compare(asked, read_policy(asked.policy, measured_in(find(asked)))))


def measured_in(paths: "RunPaths") -> frozenset[str]:
    """The signals that a run has recorded."""
    from ops import settings

    return frozenset(settings.load(paths.config).rollout.signals)


async def _compare(asked: argparse.Namespace, program: "Program") -> int:
    from ops.commands.store import print_table
    from workers.policies.difference import Table

    table = Table()
    async for one in verdicts(runs_folder(asked), find(asked), program):
        table.add(one)
    if asked.json:
        print(json.dumps(table.rows()))
    else:
        print(f"recorded policy of {find(asked).run_id} beside {program.name} {program.version}")
        print_table(table.rows())
    return 0


def read_policy(name: str, measured: frozenset[str] = frozenset()) -> "Program":
    """The program of a file's table [policy], or of a whole file that is one, or of a preset."""
    from pydantic import ValidationError

    from ops.problems import problems
    from ops.settings import with_absolute_paths
    from workers.policies.presets import PRESETS
    from workers.policies.program import Program
    from workers.policies.settings import PolicySettings

    path = Path(name)
    if not path.exists() and name in PRESETS:
        return Program(PolicySettings(preset=name), measured)
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadConfiguration(
            f"--policy {name}: expected a TOML file, or a preset: {', '.join(sorted(PRESETS))}"
        ) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfiguration(f"--policy {name}: not readable as TOML: {error}") from error
    table = with_absolute_paths(tree.get("policy", tree), path.resolve().parent)
    try:
        return Program(PolicySettings.model_validate(table), measured)
    except ValidationError as error:
        told = "\n  ".join(problems(error, PolicySettings))
        raise BadConfiguration(f"--policy {name}: {told}") from error


async def verdicts(
    folder: Path, paths: "RunPaths", program: "Program"
) -> AsyncIterator["Verdicts"]:
    """What a program says of each recorded group of a run, in the order of the run's decisions."""
    from ops import settings
    from workers.policies.reading import decisions_on_record, train_groups
    from workers.policies.replay import Replay
    from workers.policies.worker import rules_of

    c = settings.load(paths.config)
    domains = [source.domain for source in c.source]
    async with bus_of(folder, paths) as bus:
        recorded, annotations = await decisions_on_record(bus)
        replay = Replay(program, recorded, rules_of(c.run, c.policy), annotations, domains)
        async for arrival in train_groups(bus):
            for one in replay.feed(arrival):
                yield one
        for one in replay.finish():
            yield one
