"""Lookups of `sluice audit` in a store of ten million generations, each on a connection of its own.

The peer is the least that a lookup takes: a connection, a snapshot, `SELECT 1`. Every plan is made anew,
and each of the five times asks for another run, group and sample.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from store import history, queries
from store.database import reading
from tests.bench._audit_store import RUNS, SIZE, VISITS, fill, run_names
from tests.bench.result import Result
from tests.bench.servers import fresh_database, postgres

GENERATIONS, SHORT = 10_000_000, 20_000
LIMIT_MS = 100.0


@dataclass(frozen=True)
class Key:
    """What is looked up."""

    run_id: str
    group_id: str
    """It was regraded, and has a shadow decision."""
    sample_key: str


Lookup = Callable[[Key], object]


def measure(*, short: bool = False) -> list[Result]:
    generations = SHORT if short else GENERATIONS
    with postgres() as server:
        url = fresh_database(server, "audit")
        fill(url, generations)
        asked = keys(generations // (RUNS * SIZE))
        least = statistics.median(timed(lambda _: nothing(url), asked))
        times = {what: timed(lookup, asked) for what, lookup in lookups(url).items()}
    what = f"of {generations:,} generations"
    return [result for name, ms in times.items() for result in results(f"{name} {what}", ms, least)]


def keys(groups: int) -> list[Key]:
    """One a run, further along in each; the last sample is held out, which is what is asked most."""
    found = []
    for place, run_id in enumerate(run_names(), 1):
        number = groups * place // (RUNS + 1) // 100 * 100 + 7
        item = groups // VISITS * place // (RUNS + 1) // 100 * 100 + 4
        sample_key = "held_out:1:7" if place == RUNS else f"math:1:{item}"
        found.append(Key(run_id, f"{number:08d}-0-0", sample_key))
    return found


def lookups(url: str) -> Mapping[str, Lookup]:
    """What `sluice audit` asks, and `sluice sql` of a view in the README's manner."""
    decisions = "SELECT * FROM policy_decisions WHERE run_id = '{}' AND group_id = '{}'"
    return {
        "sample's facts": lambda key: history.sample_facts(url, key.sample_key),
        "sample in one run": lambda key: history.sample(url, key.sample_key, key.run_id),
        "sample in all runs": lambda key: history.sample(url, key.sample_key),
        "group's facts": lambda key: history.group_facts(url, key.run_id, key.group_id),
        "group": lambda key: history.group(url, key.run_id, key.group_id),
        "drops": lambda key: queries.drops(url, key.run_id),
        "mixture": lambda key: queries.mixture(url, key.run_id),
        "runs": lambda _: queries.runs(url),
        "policy_decisions of a group": lambda key: queries.sql(
            url, decisions.format(key.run_id, key.group_id)
        ),
    }


def nothing(url: str) -> list[object]:
    with reading(url) as connection:
        return list(queries.fetch(connection, "SELECT 1 AS one"))


def timed(lookup: Lookup, asked: Sequence[Key]) -> list[float]:
    """Milliseconds of each; a lookup that finds nothing would measure nothing."""
    found = []
    for key in asked:
        begun = time.perf_counter()
        rows = lookup(key)
        found.append(1000 * (time.perf_counter() - begun))
        if not rows:
            raise ValueError(f"{key}: nothing was found")
    return found


def results(what: str, ms: Sequence[float], least_ms: float) -> list[Result]:
    shared = {"limit": LIMIT_MS, "rounds": len(ms), "more_is_better": False}
    return [
        Result("audit", f"{what}, median", "ms", statistics.median(ms), least_ms, **shared),
        Result("audit", f"{what}, worst", "ms", max(ms), least_ms, **shared),
    ]
