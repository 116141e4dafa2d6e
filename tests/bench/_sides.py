"""The two sides of the whole-system benchmarks: `sluice run`, and TRL in a process that waits."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench import peer
from tests.bench._trl_side import Asked

ROOT = Path(__file__).parents[2]
SLUICE = ROOT / ".venv" / "bin" / "sluice"
RUN_LIMIT_S = 3600.0


class Trl:
    """Use as a context manager; between two rounds it waits, idle."""

    def __init__(self, asked: Asked, scratch: Path) -> None:
        self._log = (scratch / "trl.log").open("w")
        self._process = subprocess.Popen(
            [
                sys.executable, "-W", "ignore", "-m", "tests.bench._trl_side",
                str(asked.write(scratch / "asked.json")),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=os.environ
            | {"PYTHONPATH": f"{ROOT}{os.pathsep}{peer.installed()}", "OMP_NUM_THREADS": "2"},
        )  # fmt: skip
        self._answer("ready")

    def steps(self, number: int) -> tuple[float, float]:
        """Seconds that so many more steps take, and the most bytes resident meanwhile."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        found = self._answer("seconds")
        return found["seconds"], found["peak"]

    def saved(self) -> None:
        """Wait for the weights; after the last step."""
        self._answer("saved")

    def _answer(self, key: str) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{") and f'"{key}"' in line:
                return json.loads(line)
        tail = Path(self._log.name).read_text()[-2000:]
        raise RuntimeError(f"TRL ended with {self._process.wait()}:\n{tail}")

    def __enter__(self) -> "Trl":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def sluice(*arguments: str, runs: Path) -> str:
    """Standard output of a command, which must end well."""
    done = subprocess.run(
        [sys.executable, str(SLUICE), *arguments, "--runs", str(runs)],
        cwd=runs.parent,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        raise RuntimeError(f"sluice {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def run(config: Path, run_id: str, runs: Path) -> dict[str, Any]:
    """A whole run, to its proofs; summary.json."""
    sluice("run", str(config), "--set", f"run.id={run_id}", runs=runs)
    return json.loads((runs / run_id / "summary.json").read_text())


def committed(run_id: str, runs: Path) -> list[tuple[int, float, int]]:
    """(step, seconds since the first request, trained answers) of each step, in order."""
    query = f"""
        SELECT step, generations, extract(epoch FROM committed_at - (
            SELECT min(requested_at) FROM prompt_group WHERE run_id = '{run_id}' AND purpose = 'train'
        ))::float8 AS at FROM learner_step WHERE run_id = '{run_id}' ORDER BY step
    """
    rows = json.loads(sluice("sql", query, "--json", runs=runs))
    return [(row["step"], row["at"], row["generations"] or 0) for row in rows]
