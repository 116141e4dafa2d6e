"""The peer, TRL at a pinned version, in a folder of its own beside what is installed for us."""

import hashlib
import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).with_name("peer.txt")
FOLDER = Path(__file__).parents[2] / ".venv" / "peer"
INSTALL_LIMIT_S = 900


def installed() -> Path:
    """A folder for PYTHONPATH; installs into it once per change of the pins. Raises CalledProcessError."""
    stamp = FOLDER / ".installed"
    want = hashlib.sha256(PINS.read_bytes()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != want:
        subprocess.run(
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                "--no-deps", "--upgrade", "--target", str(FOLDER), "--requirement", str(PINS),
            ],
            check=True,
            timeout=INSTALL_LIMIT_S,
        )  # fmt: skip
        stamp.write_text(want)
    return FOLDER
