"""`sluice export` and `sluice grade`."""

import argparse
import json
from pathlib import Path
from typing import Any

from ops.commands.common import add, add_run, find


def register(commands: Any) -> None:
    parser = add(commands, "export", "a trained model as a Hugging Face folder", export)
    add_run(parser)
    parser.add_argument(
        "--step", type=int, metavar="N", help="a checkpoint's step (default: newest)"
    )
    parser.add_argument("--to", type=Path, required=True, metavar="DIR")
    parser = add(commands, "grade", "grade a file of answers, as JSON lines", grade)
    parser.add_argument(
        "--verifier", required=True, metavar="NAME", help="math, exact, ... or `./mine.py:Grader`"
    )
    parser.add_argument(
        "--input", type=Path, required=True, metavar="FILE", help="JSON lines {id, gold, response}"
    )


def export(asked: argparse.Namespace) -> int:
    from learner.export import export_checkpoint
    from ops import roles, settings

    paths = find(asked)
    model_dir = roles.model_dir(settings.load(paths.config), paths)
    step = export_checkpoint(paths.root, model_dir, asked.to, step=asked.step)
    print(f"step {step} of {paths.run_id} is in {asked.to}")
    return 0


def grade(asked: argparse.Namespace) -> int:
    from workers.verifiers.grade import grade_file

    verifier = asked.verifier
    if ".py:" in verifier:
        verifier = str(Path(verifier).resolve())
    for row in grade_file(asked.input, verifier):
        print(json.dumps(row, ensure_ascii=False), flush=True)
    return 0
