"""`sluice init` and `sluice doctor`."""

import argparse
from pathlib import Path
from typing import Any

from ops.commands.common import add


def register(commands: Any) -> None:
    parser = add(
        commands, "init", "a starting point: configuration, ten rows, a verifier of one's own", init
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser = add(
        commands, "doctor", "what this machine can run, what is missing, and what mends it", doctor
    )
    parser.add_argument("--json", action="store_true", help="an array of objects")


def init(asked: argparse.Namespace) -> int:
    from ops.starter import write

    for path in write(asked.folder):
        print(f"wrote {path}")
    print(f"try it: sluice run {asked.folder / 'config.toml'}")
    return 0


def doctor(asked: argparse.Namespace) -> int:
    import json

    from ops.doctor import examine

    findings = examine()
    if asked.json:
        print(json.dumps([finding.__dict__ for finding in findings]))
    else:
        for finding in findings:
            mark = "ok" if finding.ok else "MISSING" if finding.needed else "-"
            mend = f"  ->  {finding.mend}" if finding.mend else ""
            print(f"{mark:8}{finding.name}: {finding.found}{mend}")
    return 0 if all(finding.ok for finding in findings if finding.needed) else 1
