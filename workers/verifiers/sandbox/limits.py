"""What a sandboxed program may use."""

from dataclasses import dataclass

STRETCH = 20
"""A program that waits for a busy machine gets up to this many times its seconds."""
START_S = 20.0
"""For the sandbox itself to come up; beyond it the machine is at fault."""


@dataclass(frozen=True)
class Limits:
    seconds: float
    """For one input: wall-clock time less the time spent waiting for a processor."""
    cpu_seconds: int
    """Processor time of the whole program."""
    memory_bytes: int
    """Address space."""
    output_bytes: int
    """Of each channel: standard output, standard error, results."""
    disk_bytes: int = 16 * 1024 * 1024
    files: int = 2_000
    """In the folder that it may write to."""
