"""`sluice init`: a run of one's own to start from, small enough to be tried at once."""

import shutil
from pathlib import Path

from broker.errors import BadConfiguration

FILES = ("config.toml", "rows.jsonl", "mine.py")


def write(folder: Path) -> list[Path]:
    """Copy the files into the folder; nothing that is there is overwritten."""
    existing = [name for name in FILES if (folder / name).exists()]
    if existing:
        raise BadConfiguration(f"{folder}: {', '.join(existing)} exists; expected a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [
            Path(shutil.copyfile(Path(__file__).parent / name, folder / name)) for name in FILES
        ]
    except OSError as error:
        raise BadConfiguration(f"{folder}: cannot be written: {error}") from error
