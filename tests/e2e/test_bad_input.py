"""What cannot work is refused with one clear line, soon, and leaves nothing running."""

import json
import time
from collections.abc import Callable, Mapping

import psutil
import pytest

from tests.e2e.cluster import Cluster

REFUSED = 2
LIMIT_S = 60.0
"""Far below any limit of the run itself; seconds on a quiet machine."""
NOWHERE = "127.0.0.1:9"
ROWS = """
[[source]]
domain = "rows"
path = "rows.jsonl"
"""
GOOD_ROWS = [{"prompt": f"{word}>", "target": word} for word in ("ab", "ba", "cd", "dc")]
MALFORMED = '{"prompt": "ca>", "target": "ac"'


def refusal(run: Cluster, *asked: str) -> str:
    """The one line with which `sluice run` refuses; nothing is left running or written."""
    done = run.sluice("run", str(run.config), *asked, limit_s=LIMIT_S, code=REFUSED)
    (line,) = done.stderr.splitlines()
    assert line.startswith("sluice: ")
    assert not left_running(run)
    return line


def left_running(run: Cluster) -> list[list[str]]:
    """Command lines of processes that work in the run's folder."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in found if any(str(run.directory) in word for word in line)]


@pytest.mark.parametrize(
    ("setting", "told"),
    {
        "run.stepz=3": ["run.stepz", "no such key", "steps"],
        "model.tiny.hiden=8": ["model.tiny.hiden", "no such key", "hidden"],
        "run.steps=0": ["run.steps", "0", "greater than or equal to 1"],
        'run.max_staleness="two"': ["run.max_staleness", "'two'", "integer"],
        "nats.log_bytes=1000": ["nats.log_bytes", "1000", "greater than or equal to 1048576"],
        "sampling.max_tokens=1_000_000": ["nats.log_bytes = 67,108,864", "expected at least"],
        'policy.admit=["nosuch"]': ["policy.admit", "'nosuch'", "dynamic_sampling"],
        'source=[{domain="a",generator="nosuch"}]': ["source.a.generator", "'nosuch'", "ordering"],
        'source=[{domain="a",path="none.jsonl"}]': ["source.a", "none.jsonl", "No such file"],
        'source=[{domain="a",generator="ordering",verifier={name="nosuch"}}]': [
            "verifier.name",
            "'nosuch'",
            "exact",
        ],
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_configuration_names_key_value_and_expectation(
    setting: str, told: list[str], start_run: Callable[..., Cluster]
):
    run = start_run("bad")

    line = refusal(run, "--set", setting)

    assert all(word in line for word in told), line
    assert not run.run_dir.exists()


def test_a_missing_model_folder_is_named(start_run: Callable[..., Cluster]):
    run = start_run("nomodel")
    run.config.write_text(
        run.config.read_text().replace("[model.tiny]", '[model]\npath = "gone"\n[ignored]')
    )
    text = run.config.read_text()
    start, end = text.index("[ignored]"), text.index("[[source]]")
    run.config.write_text(text[:start] + text[end:])

    line = refusal(run)

    assert f"model.path {run.directory / 'gone'}" in line
    assert "config.json" in line
    assert worker_refusal(run, "rollout") == line.removeprefix("sluice: ")


def worker_refusal(run: Cluster, role: str, environment: Mapping[str, str] | None = None) -> str:
    """What a worker says in its last log line when it refuses to work."""
    started = time.monotonic()
    run.start(role, environment=environment)
    assert run.wait_exit(role, limit_s=LIMIT_S) == REFUSED
    last = run.events(role)[-1]
    assert (last["event"], last["level"]) == ("worker_refused", "error")
    assert time.monotonic() - started < LIMIT_S
    return last["reason"]


def test_services_that_do_not_answer_are_named(start_run: Callable[..., Cluster]):
    run = start_run("nowhere", connect_wait_s=2)
    no_nats = {"SLUICE_NATS__URL": f"nats://sluice:secret@{NOWHERE}"}
    no_postgres = {"SLUICE_STORE__URL": f"postgresql://sluice:secret@{NOWHERE}/x"}
    lines = [
        worker_refusal(run, "policy", no_nats),
        worker_refusal(run, "recorder", no_postgres),
    ]
    for variables in (no_nats, no_postgres):
        done = run.sluice(
            "run", str(run.config), "--set", f"run.id={run.run}-{len(lines)}",
            limit_s=LIMIT_S, code=REFUSED, environment=variables,
        )  # fmt: skip
        lines.append(done.stderr)
        assert not left_running(run)

    for line, key in zip(lines, ("nats.url", "store.url") * 2, strict=True):
        assert key in line
        assert NOWHERE in line
        assert "within 2 s" in line
        assert "secret" not in line
        assert len(line.splitlines()) == 1


def test_a_malformed_row_is_named_by_line_and_reason(start_run: Callable[..., Cluster]):
    run = start_run("rows", sources=ROWS)
    lines = [json.dumps(row) for row in GOOD_ROWS]
    (run.directory / "rows.jsonl").write_text("\n".join([*lines[:2], MALFORMED, *lines[2:]]))

    told = [refusal(run), worker_refusal(run, "dispatcher")]

    for line in told:
        assert f"{run.directory / 'rows.jsonl'}:3: not JSON" in line
        assert "skip_bad" in line


def test_the_other_rows_load_when_bad_ones_may_be_skipped(start_run: Callable[..., Cluster]):
    run = start_run("rows", sources=f"{ROWS}skip_bad = true\n", warmup=0)
    lines = [json.dumps(row) for row in GOOD_ROWS]
    (run.directory / "rows.jsonl").write_text("\n".join([*lines[:2], MALFORMED, *lines[2:]]))

    out = run.sluice("run", str(run.config), "--dry-run").stdout

    assert "rows: 4 to train on" in out
