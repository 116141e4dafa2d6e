"""A learner as on other hardware: its sums differ a little. other_hardware.py CONFIG [A.B=C ...]."""

import os
import sys
from pathlib import Path

import torch

from learner.trainer import Trainer
from ops import settings, worker
from ops.paths import RunPaths, default_runs
from ops.processes import die_with

DIFFERENCE = 1e-6


def differ() -> None:
    """Every step of every trainer of this process comes out otherwise."""
    finish = Trainer.finish

    def finish_elsewhere(self: Trainer, begun, **how):
        taken = finish(self, begun, **how)
        if not taken.skipped:
            with torch.no_grad():
                next(iter(self.model.parameters())).add_(DIFFERENCE)
        return taken

    Trainer.finish = finish_elsewhere


def main(config: Path, overrides: tuple[str, ...]) -> int:
    die_with(int(os.environ["SLUICE_PARENT"]))
    differ()
    configuration = settings.load(config, overrides)
    paths = RunPaths(default_runs() / configuration.run.id)
    return worker.main(configuration, ("learner",), paths, resume=False)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), tuple(sys.argv[2:])))
