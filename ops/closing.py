"""What a run leaves behind when it is over: summary.json, the proofs, report.html, and what to try next."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TextIO

from broker.bus import Bus
from ops.paths import RunPaths, write_json
from ops.report import Example, MixtureLine, ReportData, render


class Over(Protocol):
    """A run that has come to its end, with its services still up."""

    paths: RunPaths

    @property
    def peak_memory_bytes(self) -> int: ...

    @property
    def store_url(self) -> str: ...

    @property
    def pauses_s(self) -> list[tuple[float, float]]: ...

    @property
    def timings(self) -> Mapping[str, float | None]: ...


QUERIES = (
    "SELECT step, reward_mean, entropy, staleness_max FROM learner_step "
    "WHERE run_id = '{run}' ORDER BY step DESC LIMIT 5",
    "SELECT domain, drop_reason, count(*) FROM prompt_group "
    "WHERE run_id = '{run}' AND state = 'dropped' GROUP BY 1, 2 ORDER BY 3 DESC",
    "SELECT s.domain, s.prompt, s.target, count(*) AS groups, avg(v.score)::real AS solve_rate "
    "FROM prompt_group g JOIN sample s USING (sample_key) "
    "JOIN verdict v ON v.run_id = g.run_id AND v.group_id = g.group_id "
    "WHERE g.run_id = '{run}' AND g.purpose = 'train' "
    "GROUP BY 1, 2, 3 ORDER BY solve_rate, groups DESC LIMIT 5",
)
"""Worth trying after a run."""


async def close_run(run: Over, bus: Bus, out: TextIO) -> bool:
    """Write the files, tell what there is; returns whether all proofs hold."""
    from store import audit, summary

    paths, url = run.paths, run.store_url
    numbers = await asyncio.to_thread(summary.summary, url, paths.run_id, run.pauses_s)
    found = await audit.verify(url, paths.run_id, bus)
    figures = await asyncio.to_thread(summary.report, url, paths.run_id)
    tree = summary_tree(numbers, figures, found, run)
    write_json(paths.summary, tree)
    data = report_data(paths, tree, figures, found)
    paths.report.write_text(render(data), encoding="utf-8")
    print(summary_text(tree), file=out)
    for number, proof in enumerate(found, 1):
        print(
            f"  {'holds' if proof.ok else 'FAILS'}  {number} {proof.claim}: {proof.detail}",
            file=out,
        )
    print_hints(paths, out)
    return all(proof.ok for proof in found)


def summary_tree(
    numbers: Mapping[str, Any], figures: Mapping[str, Any], proofs: Sequence[Any], run: Over
) -> dict[str, Any]:
    """summary.json."""
    return {
        **numbers,
        **run.timings,
        "eval_by_domain": {
            name: {"first": points[0][1], "last": points[-1][1]}
            for name, points in figures["accuracy"].items()
            if points
        },
        "peak_memory_bytes": run.peak_memory_bytes,
        "proofs": {proof.name: proof.ok for proof in proofs},
    }


def report_data(
    paths: RunPaths, tree: Mapping[str, Any], figures: Mapping[str, Any], proofs: Sequence[Any]
) -> ReportData:
    return ReportData(
        run_id=paths.run_id,
        summary=tree,
        proofs={proof.claim: proof.ok for proof in proofs},
        proof_details={proof.claim: proof.detail for proof in proofs},
        reward=figures["reward"],
        accuracy=figures["accuracy"],
        staleness=figures["staleness"],
        mixture=[MixtureLine(**row) for row in figures["mixture"]],
        drops=figures["drops"],
        throughput=figures["throughput"],
        examples=[Example(**row) for row in figures["examples"]],
        config=paths.config.read_text(encoding="utf-8"),
    )


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def summary_text(tree: Mapping[str, Any]) -> str:
    """The summary for people."""
    dropped = tree["dropped_groups"]
    reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
    by_domain = ", ".join(
        f"{name} {percent(score['first'])} → {percent(score['last'])}"
        for name, score in tree["eval_by_domain"].items()
    )
    rate, memory = tree["samples_per_s"], tree["peak_memory_bytes"] / 2**30
    lines = [
        f"{tree['run_id']}: {tree['status']}"
        + (f" ({tree['reason']})" if tree.get("reason") else ""),
        f"  {tree['steps']} steps in {tree['wall_s'] or 0:.0f} s, "
        f"{'-' if rate is None else f'{rate:.3g}'} trained answers/s, at most {memory:.2f} GiB",
        f"  groups: {tree['trained_groups']} trained, {sum(dropped.values())} dropped"
        + (f" ({reasons})" if reasons else "")
        + (f", {failed} failed" if (failed := tree["failed_groups"]) else ""),
        f"  reward {percent(tree['reward_first'])} → {percent(tree['reward_last'])}",
        f"  held-out accuracy {percent(tree['eval_first'])} → {percent(tree['eval_last'])}"
        + (f"  ({by_domain})" if by_domain else ""),
        f"  oldest trained token: {tree['staleness_max']} versions",
    ]
    return "\n".join(lines)


def print_hints(paths: RunPaths, out: TextIO) -> None:
    """Three queries, and where the report is."""
    print("\nThe decisions are on record; try for example:", file=out)
    for query in QUERIES:
        print(f'  sluice sql "{query.format(run=paths.run_id)}"', file=out)
    print(f"\nreport: {paths.report}", file=out)
