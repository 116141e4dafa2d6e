"""Where runs and their services live on disk, and how a command names a run."""

import fcntl
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.errors import BadConfiguration

CONFIG = "config.toml"


def default_runs() -> Path:
    """`runs` in the current folder, or what SLUICE_RUNS says."""
    return Path(os.environ.get("SLUICE_RUNS") or "runs").resolve()


def services_dir(runs: Path) -> Path:
    """Embedded servers, shared by all runs of the folder."""
    return runs / ".services"


@dataclass(frozen=True)
class RunPaths:
    """The folder of one run."""

    root: Path

    @property
    def run_id(self) -> str:
        return self.root.name

    @property
    def config(self) -> Path:
        return self.root / CONFIG

    @property
    def lock(self) -> Path:
        """Held by the `sluice run` that is at it; where only workers were there is none."""
        return self.root / "lock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def model(self) -> Path:
        """The model folder made for `[model.tiny]`."""
        return self.root / "model"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def pids(self) -> Path:
        return self.root / "pids.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    def make(self) -> None:
        for folder in (self.root, self.logs, self.root / "checkpoints"):
            folder.mkdir(parents=True, exist_ok=True)


def run_ids(runs: Path) -> list[str]:
    """Runs of the folder, oldest first."""
    found = [path.parent for path in runs.glob(f"*/{CONFIG}")]
    return [path.name for path in sorted(found, key=lambda path: (path.stat().st_ctime, path.name))]


def find_run(runs: Path, name: str) -> RunPaths:
    """The run with that id, or the newest for `last`, or the only one whose id starts so."""
    known = run_ids(runs)
    if not known:
        raise BadConfiguration(
            f"run {name!r}: there is no run in {runs}; --runs or SLUICE_RUNS names another folder"
        )
    if name == "last":
        return RunPaths(runs / known[-1])
    matches = [run for run in known if run == name] or [r for r in known if r.startswith(name)]
    if len(matches) != 1:
        what = "no run" if not matches else f"{len(matches)} runs"
        raise BadConfiguration(f"{what} named {name!r} in {runs}; known: {', '.join(known[-8:])}")
    return RunPaths(runs / matches[0])


def write_json(path: Path, tree: Any) -> None:
    """Replace the file at once, so that a reader never sees half of it."""
    text = json.dumps(tree, indent=2, default=str) + "\n"
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def read_summary(paths: RunPaths) -> dict[str, Any]:
    """summary.json; empty where there is none yet, and a status that says so where it is no summary."""
    try:
        found = json.loads(paths.summary.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        found = None
    return found if isinstance(found, dict) else {"status": "with an unreadable summary.json"}


def lock_run(paths: RunPaths) -> int:
    """Held while this process lives: one supervisor a run."""
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise BadConfiguration(f"run {paths.run_id}: another `sluice run` is at it") from error
    return descriptor
