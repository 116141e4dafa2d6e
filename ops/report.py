"""report.html: one file that shows what a run did, readable without a network and without scripts.

Model answers and dataset texts are hostile input: the template escapes everything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ops.charts import Points, bar_chart, line_chart

TEMPLATES = Path(__file__).parent / "templates"
LONGEST_TEXT = 4_000
"""Characters of a prompt or an answer that the report shows."""


@dataclass(frozen=True)
class Example:
    """One answer to look at."""

    domain: str
    step: int
    right: bool
    prompt: str
    target: str | None
    answer: str
    extracted: str | None


@dataclass(frozen=True)
class MixtureLine:
    """A domain's share of the mixture as wanted, and of the groups at each stage."""

    domain: str
    target: float
    requested: int
    generated: int
    admitted: int
    trained: int


@dataclass(frozen=True)
class ReportData:
    """Everything the report shows."""

    run_id: str
    summary: Mapping[str, Any]
    proofs: Mapping[str, bool]
    proof_details: Mapping[str, str] = field(default_factory=dict)
    reward: Mapping[str, Points] = field(default_factory=dict)
    """Domain -> (step, mean reward)."""
    accuracy: Mapping[str, Points] = field(default_factory=dict)
    """Benchmark -> (step, held-out accuracy)."""
    staleness: Mapping[int, int] = field(default_factory=dict)
    """Versions behind -> trained groups."""
    mixture: Sequence[MixtureLine] = ()
    drops: Mapping[str, int] = field(default_factory=dict)
    throughput: Points = ()
    """(step, trained answers per second)."""
    examples: Sequence[Example] = ()
    config: str = ""


def render(data: ReportData) -> str:
    """The whole page."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clip"] = clip
    environment.filters["percent"] = lambda share: "-" if share is None else f"{100 * share:.1f} %"
    return environment.get_template("report.html.j2").render(
        data=data,
        charts={
            "reward": line_chart(
                _sorted(data.reward), x_name="step", y_name="mean reward", share=True
            ),
            "accuracy": line_chart(
                _sorted(data.accuracy), x_name="step", y_name="accuracy", share=True
            ),
            "staleness": bar_chart(
                {_versions(n): count for n, count in sorted(data.staleness.items())},
                name="trained groups by staleness",
            ),
            "drops": bar_chart(data.drops, name="dropped groups by reason"),
            "throughput": line_chart(
                {"answers per second": data.throughput}, x_name="step", y_name="answers per second"
            )
            if data.throughput
            else "",
        },
        shares=[_shares(line, data.mixture) for line in data.mixture],
        examples=_by_domain(data.examples),
    )


def _sorted(lines: Mapping[str, Points]) -> dict[str, Points]:
    """In order of name, so that a domain has one colour in all charts."""
    return dict(sorted(lines.items()))


def clip(text: str | None) -> str:
    """Text short enough to show, control characters made visible."""
    if text is None:
        return "(none)"
    shown = "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    return (
        shown
        if len(shown) <= LONGEST_TEXT
        else f"{shown[:LONGEST_TEXT]} … ({len(text):,} characters)"
    )


def _versions(behind: int) -> str:
    return "fresh" if behind == 0 else f"{behind} version{'s' if behind > 1 else ''} old"


def _shares(line: MixtureLine, lines: Sequence[MixtureLine]) -> dict[str, Any]:
    def share(stage: str) -> float | None:
        total = sum(getattr(other, stage) for other in lines)
        return getattr(line, stage) / total if total else None

    stages = ("requested", "generated", "admitted", "trained")
    return {
        "domain": line.domain,
        "target": line.target,
        **{stage: {"count": getattr(line, stage), "share": share(stage)} for stage in stages},
    }


def _by_domain(examples: Sequence[Example]) -> dict[str, list[Example]]:
    found: dict[str, list[Example]] = {}
    for example in sorted(examples, key=lambda e: (e.domain, e.step, not e.right)):
        found.setdefault(example.domain, []).append(example)
    return found
