"""The smallest configuration, as a file, in tests."""

from pathlib import Path

MINIMAL = """
[run]
steps = 3
groups_per_step = 2
group_size = 4
[model]
path = "weights"
[[source]]
domain = "math"
path = "../rows.jsonl"
verifier = {name = "./mine.py:Grader"}
"""


def written(folder: Path, text: str = MINIMAL) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path
