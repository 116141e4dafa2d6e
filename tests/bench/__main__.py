"""`ops/bin/bench [NAME ...] [--json] [--short]`: run benchmarks; 1 when a limit is missed."""

import argparse
import importlib
import importlib.util
import inspect
import json
import pkgutil
import sys
from collections.abc import Sequence

from broker.telemetry import configure_logging
from tests import bench
from tests.bench.result import Result

SHARED = {"__main__", "peer", "result", "servers"}


def known() -> dict[str, str]:
    """Benchmark -> what it measures: the first line of its file's docstring."""
    names = sorted(info.name for info in pkgutil.iter_modules(bench.__path__))
    # A name that begins with an underscore helps one benchmark alone.
    names = [name for name in names if name not in SHARED and not name.startswith("_")]
    return {name: about(name) for name in names}


def about(name: str) -> str:
    """Without importing it: some benchmarks bring a deep-learning stack."""
    spec = importlib.util.find_spec(f"tests.bench.{name}")
    source = spec.loader.get_source(spec.name)  # type: ignore[union-attr]
    return source.split('"""', 2)[1].strip().splitlines()[0]


def table(results: Sequence[Result]) -> list[str]:
    """A line a figure, columns aligned."""
    names = ("benchmark", "metric", "ours", "peer", "ratio", "limit", "unit", "rounds")
    rows = [
        (
            result.name,
            result.metric,
            number(result.ours),
            number(result.peer),
            number(result.ratio),
            number(result.limit) + ("" if result.kept else " missed"),
            result.unit,
            str(result.rounds),
        )
        for result in results
    ]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (names, *rows)
    ]


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def main(arguments: Sequence[str]) -> int:
    benchmarks = known()
    listed = "\n".join(f"  {name:10} {what}" for name, what in benchmarks.items())
    parser = argparse.ArgumentParser(
        prog="ops/bin/bench",
        description="Benchmarks, each against a peer or a stated limit in the same run.",
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--json", action="store_true", help="an array of objects")
    parser.add_argument(
        "--short", action="store_true", help="see that it runs: audit, e2e*, reward"
    )
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in benchmarks]
    if unknown:
        parser.error(f"{', '.join(unknown)}: expected some of {', '.join(benchmarks)}")
    configure_logging("bench", "warning")
    results: list[Result] = []
    for name in asked.names or benchmarks:
        print(f"{name}: {benchmarks[name]}", file=sys.stderr, flush=True)
        measure = importlib.import_module(f"tests.bench.{name}").measure
        shorter = asked.short and "short" in inspect.signature(measure).parameters
        results += measure(short=True) if shorter else measure()
    print(
        json.dumps([result.tree() for result in results])
        if asked.json
        else "\n".join(table(results))
    )
    return 0 if all(result.kept for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
