"""Settings of verification: `[verifier]`."""

from typing import Annotated

from pydantic import Field

from broker.settings import Settings


class VerifierSettings(Settings):
    processes: Annotated[int, Field(ge=1)] = 1
    """How many verifier processes `sluice run` starts."""
    pool: Annotated[int, Field(ge=1)] = 1
    """Grader processes of one verifier process."""
    slots: Annotated[int, Field(ge=1)] = 32
    deadline_s: Annotated[float, Field(gt=0)] = 5.0
    """Wall-clock limit of one grading call; beyond it the grader process is killed."""
    memory_bytes: Annotated[int, Field(ge=256 * 1024 * 1024)] = 2 * 1024 * 1024 * 1024
    """Address space of one grader process."""
