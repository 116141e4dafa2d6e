"""`sluice`: the commands. Each imports what it needs when it runs, so that `--help` is immediate."""

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from broker.errors import SluiceError
from ops.commands import (
    audit,
    calibrate,
    data,
    logs,
    model,
    policy,
    regrade,
    replay,
    run,
    setup,
    store,
)

INTERRUPTED = 130
REFUSED = 2
GROUPS = (run, logs, store, audit, calibrate, data, replay, regrade, policy, model, setup)


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="sluice",
        description="Reinforcement learning with verifiable rewards, asynchronously, on record.",
    )
    commands = root.add_subparsers(metavar="COMMAND", required=True)
    for group in GROUPS:
        group.register(commands)
    return root


def _leave(signum: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    # Replaced by whoever has work to finish; until then a SIGTERM simply ends the command.
    signal.signal(signal.SIGTERM, _leave)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, _leave)
    asked = parser().parse_args(arguments)
    try:
        return asked.action(asked)
    except SluiceError as error:
        print(f"sluice: {error}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; nobody is left to tell.
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        # A file or folder that the user named, or beside one: a full traceback would hide which.
        print(f"sluice: {error.filename}: {error.strerror}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
