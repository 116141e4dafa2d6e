"""`sluice data`: datasets in and out, and their overlap."""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import BadConfiguration, SluiceError
from ops.commands.common import add

if TYPE_CHECKING:
    from store.datasets.overlap import Overlap, Text
    from store.datasets.rows import Row


def register(commands: Any) -> None:
    root = commands.add_parser("data", help="datasets: import, export, overlap audit")
    verbs = root.add_subparsers(metavar="VERB", required=True)
    parser = add(verbs, "import", "JSONL or Parquet in, a version of a dataset out", import_file)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--name", metavar="NAME", help="of the dataset (default: the file's)")
    parser.add_argument(
        "--verifier",
        metavar="SPEC",
        help="checks rows that name none, as the run's source will: a name, or JSON",
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave bad rows out")
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="OURS=THEIRS",
        help="another field's name, such as prompt=question",
    )
    parser.add_argument(
        "--gsm8k", action="store_true", help="the target holds steps, `####` and the gold"
    )
    _add_folder(parser)
    parser = add(verbs, "export", "a version as Parquet and manifest", export_version)
    parser.add_argument("dataset", metavar="NAME[/VERSION]|DIR")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR")
    _add_folder(parser)
    parser = add(
        verbs,
        "audit",
        "overlap of training with evaluation texts; exits 1 when there is any",
        audit,
    )
    parser.add_argument("train", metavar="TRAIN", help="a JSONL or Parquet file, or a dataset")
    parser.add_argument("evaluation", metavar="EVAL", nargs="+")
    parser.add_argument(
        "--prompt", default="prompt", metavar="FIELD", help="which field is compared"
    )
    parser.add_argument("--json", action="store_true", help="all pairs, as JSON")
    _add_folder(parser)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--datasets",
        type=Path,
        metavar="DIR",
        help="folder of the datasets (default: $SLUICE_DATASETS or ./datasets)",
    )


def folder_of(asked: argparse.Namespace) -> Path:
    if asked.datasets is not None:
        return asked.datasets
    return Path(os.environ.get("SLUICE_DATASETS", "datasets"))


def import_file(asked: argparse.Namespace) -> int:
    from store.datasets import importing

    folder, manifest = importing.run(
        asked.file,
        asked.name or asked.file.stem,
        folder_of(asked),
        check=gradable(None if asked.verifier is None else spec_of(asked.verifier)),
        prepare=_prepare(asked.field, gsm8k=asked.gsm8k),
        skip_bad=asked.skip_bad,
    )
    left_out = f", {manifest.refused} bad ones left out" if manifest.refused else ""
    print(f"{manifest.dataset}:{manifest.version}: {manifest.rows} rows{left_out}: {folder}")
    return 0


def export_version(asked: argparse.Namespace) -> int:
    from store.datasets import layout, stored

    direct = Path(asked.dataset)
    folder = layout.find(direct if direct.is_dir() else folder_of(asked) / asked.dataset)
    manifest = stored.export(folder, asked.to)
    print(f"{manifest.dataset}:{manifest.version}: {manifest.rows} rows: {asked.to}")
    return 0


def spec_of(text: str) -> dict[str, Any]:
    """A specification as a command takes it: a name, JSON, or a file's class; checked."""
    from workers.verifiers import registry

    try:
        spec = json.loads(text) if text.startswith("{") else text
    except ValueError as error:
        raise BadConfiguration(f"--verifier {text!r}: not JSON: {error}") from error
    table = registry.absolute(spec, Path.cwd())
    registry.build(table)
    return table


def gradable(spec: dict[str, Any] | None) -> "Callable[[Row], None]":
    """Raises ValueError for a row whose verifier is unknown, or whose target nothing could equal."""
    from workers.verifiers import registry

    def check(row: "Row") -> None:
        stated = spec if row.verifier is None else row.verifier
        if stated is None or not row.labeled:
            return
        try:
            with registry.users_code("check"):
                registry.build(stated).check(row.target, dict(row.options))
        except SluiceError as error:
            raise ValueError(str(error)) from error

    return check


def _prepare(fields: list[str], *, gsm8k: bool) -> Callable[[dict[str, Any]], dict[str, Any]]:
    from workers.dispatcher.gsm8k import parse_answer

    renamed: dict[str, str] = {}
    for pair in fields:
        ours, _, theirs = pair.partition("=")
        renamed[ours] = theirs
    bad = [ours for ours, theirs in renamed.items() if not ours or not theirs]
    if bad:
        raise BadConfiguration(f"--field {bad[0]!r}: expected OURS=THEIRS")
    if gsm8k:
        renamed = {"prompt": "question", "target": "answer"} | renamed

    def prepare(raw: dict[str, Any]) -> dict[str, Any]:
        row = {key: value for key, value in raw.items() if key not in renamed.values()}
        row |= {ours: raw.get(theirs) for ours, theirs in renamed.items()}
        if gsm8k:
            target, solution, steps = parse_answer(str(row["target"]))
            row |= {"target": target, "solution": solution, "difficulty": steps}
        return row

    return prepare


SHOWN_PAIRS = 20
SHOWN_CHARS = 100


def audit(asked: argparse.Namespace) -> int:
    from store.datasets import overlap

    found: dict[str, list[overlap.Overlap]] = {}
    sizes: dict[str, int] = {}
    for name in asked.evaluation:
        index = overlap.Index(_texts(asked, name))
        sizes[name] = len(index)
        found[name] = list(overlap.audit(_texts(asked, asked.train), index))
    if asked.json:
        print(json.dumps(_report(asked.train, found, sizes), ensure_ascii=False))
    else:
        for line in _lines(found, sizes):
            print(line)
    return 1 if any(found.values()) else 0


def _texts(asked: argparse.Namespace, name: str) -> "Iterator[Text]":
    """The prompts of a file or of an imported dataset."""
    from store.datasets import importing, layout
    from store.datasets.overlap import Text

    path = Path(name)
    if not path.is_dir() and not path.exists() and not (folder_of(asked) / name).is_dir():
        raise BadConfiguration(
            f"{name}: no such file, nor a dataset of that name in {folder_of(asked)}"
        )
    if path.is_dir() or not path.exists():
        path = layout.find(path if path.is_dir() else folder_of(asked) / name) / layout.ROWS
    for number, raw in importing.raw_rows(path):
        prompt = None if isinstance(raw, ValueError) else raw.get(asked.prompt)
        if isinstance(prompt, list):
            prompt = _asked(prompt)
        if not isinstance(prompt, str):
            problem = raw if isinstance(raw, ValueError) else f"{asked.prompt} is {prompt!r:.60}"
            raise BadConfiguration(f"{path}:{number}: {problem}")
        yield Text.of(number, prompt)


def _asked(turns: list[Any]) -> str | None:
    """What the user's turns say: a system's text is the same in every row. None: nothing."""
    said = [
        turn["content"]
        for turn in turns
        if isinstance(turn, dict) and turn.get("role") == "user" and turn.get("content")
    ]
    return "\n".join(map(str, said)) or None


def _report(
    train: str, found: "dict[str, list[Overlap]]", sizes: dict[str, int]
) -> list[dict[str, Any]]:
    from store.datasets import overlap

    return [
        {
            "train": train,
            "evaluation": name,
            "rows": sizes[name],
            **overlap.counts(pairs),
            "pairs": [
                {
                    "train_row": pair.train.row,
                    "evaluation_row": pair.evaluation.row,
                    "kind": pair.kind,
                    "jaccard": round(pair.jaccard, 4),
                    "containment": round(pair.containment, 4),
                    "train_text": pair.train.raw,
                    "evaluation_text": pair.evaluation.raw,
                }
                for pair in pairs
            ],
        }
        for name, pairs in found.items()
    ]


def _lines(found: "dict[str, list[Overlap]]", sizes: dict[str, int]) -> "Iterator[str]":
    from store.datasets import overlap

    for name, pairs in found.items():
        counted = ", ".join(f"{kind} {count}" for kind, count in overlap.counts(pairs).items())
        yield f"{name}: {len(pairs)} pairs over {sizes[name]} rows ({counted})"
        for pair in pairs[:SHOWN_PAIRS]:
            yield (
                f"  {pair.kind} (jaccard {pair.jaccard:.2f}, containment {pair.containment:.2f}): "
                f"row {pair.train.row} and row {pair.evaluation.row}"
            )
            yield f"    train: {pair.train.raw[:SHOWN_CHARS]!r}"
            yield f"    eval:  {pair.evaluation.raw[:SHOWN_CHARS]!r}"
        if len(pairs) > SHOWN_PAIRS:
            yield f"  ... and {len(pairs) - SHOWN_PAIRS} more (--json lists all)"
