"""One conversation with a grader: what was asked, how far it got, what it means when it ends early."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from broker import frames
from workers.verifiers.classes import Classes
from workers.verifiers.grader import OUT_OF_MEMORY
from workers.verifiers.protocol import Finding, judged, ungradable, verifier_error


@dataclass
class Graded:
    """What was found about a group's answers, by index."""

    verifier: str = ""
    version: str = ""
    findings: dict[int, Finding] = field(default_factory=dict)
    latency_ms: dict[int, float] = field(default_factory=dict)
    classes: Classes = field(default_factory=lambda: Classes({}, ()))
    broken: str = ""
    """Why the verifier could not be built; nothing was judged then."""


@dataclass
class Call:
    """One conversation with a grader, and how far it got."""

    frame: frames.Frame
    graded: Graded
    stage: str = "send"
    alone_s: float = 0.0
    """What the verifier itself may take for one answer."""
    done: bool = False

    @property
    def spec(self) -> bytes:
        """What verifier is asked for."""
        return frames.pack(cast(frames.Frame, self.frame["spec"]))


def take(frame: frames.Frame, call: Call) -> None:
    """Fold one frame into what is known."""
    graded = call.graded
    match frame["at"]:
        case "ready":
            graded.verifier = cast(str, frame["verifier"])
            graded.version = cast(str, frame["version"])
            call.alone_s = cast(float, frame["alone_s"])
            call.stage = "target"
        case "gold":
            call.stage = "answers"
        case "found":
            found = cast("Sequence[tuple[int, dict[str, object], float]]", frame["findings"])
            for index, fields, latency_ms in found:
                graded.findings[index] = Finding(**fields)  # type: ignore[arg-type]
                graded.latency_ms[index] = latency_ms
        case "done":
            # An answer judged alone says nothing about the others.
            if call.frame.get("classify") or call.frame.get("quick"):
                of = cast("dict[int, int]", frame["classes"])
                graded.classes = Classes(of, tuple(cast("list[int]", frame["unresolved"])))
            call.done = True
        case _:
            graded.broken = cast(str, frame["detail"])
            call.done = True


def death(status: int | None, stage: str, memory_bytes: int) -> Finding:
    """Whose fault it is that a process which judged one answer alone is gone."""
    if status == OUT_OF_MEMORY:
        reason = f"exceeded {memory_bytes} bytes of memory"
    elif status is not None and -status in _CRASHES:
        reason = f"crashed the grader (signal {-status})"
    else:
        return verifier_error(f"{stage}: grader ended with status {status}")
    return (
        judged(False, None, None, reason) if stage == "answers" else not_the_answer(stage, reason)
    )


def not_the_answer(stage: str, reason: str) -> Finding:
    if stage == "target":
        return ungradable(f"target {reason}")
    return verifier_error(f"{stage}: {reason}")


_CRASHES = frozenset({4, 6, 7, 8, 11})
"""ILL, ABRT, BUS, FPE, SEGV: what a C library does with input that it cannot bear."""
