"""What a process tells of itself can be read whatever its event loop does."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import structlog

from broker import telemetry
from broker.errors import BadConfiguration
from broker.settings import TelemetrySettings
from broker.telemetry import Health, configure_logging, serve_http


@pytest.fixture
def health() -> Health:
    return Health("rollout")


@pytest.fixture
def url(health: Health) -> Iterator[str]:
    server = serve_http(health, TelemetrySettings())
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_are_served_in_the_text_format(url: str):
    telemetry.messages_total.labels("test_role", "ok").inc(3)

    code, body = get(f"{url}/metrics")

    assert code == 200
    assert 'sluice_messages_total{result="ok",role="test_role"} 3.0' in body
    assert "# TYPE sluice_handle_seconds histogram" in body


def test_a_living_process_is_healthy_and_says_what_it_waits_for(url: str, health: Health):
    health.beat()
    health.note(version=7)

    with health.waiting_for("weights 8", 30.0):
        code, body = get(f"{url}/healthz")

    status = json.loads(body)
    assert code == 200
    assert status["role"] == "rollout"
    assert status["version"] == 7
    assert [wait["for"] for wait in status["waits"]] == ["weights 8"]
    assert status["waits"][0]["limit_s"] == 30.0


def test_a_process_whose_loop_is_stuck_is_unhealthy_and_healthy_again_when_it_is_not(
    health: Health,
):
    server = serve_http(health, TelemetrySettings(), heartbeat_limit_s=0.3)
    url = f"http://127.0.0.1:{server.server_address[1]}/healthz"
    time.sleep(0.4)
    stuck, _ = get(url)
    health.beat()
    alive, _ = get(url)
    server.shutdown()
    server.server_close()

    assert (stuck, alive) == (503, 200)


def test_other_paths_are_not_found(url: str):
    code, body = get(f"{url}/")

    assert code == 404
    assert "/metrics" in body


def test_a_wait_is_shown_only_while_it_lasts(health: Health):
    def give_up() -> None:
        with health.waiting_for("a", 1.0):
            assert len(health.status()["waits"]) == 1  # type: ignore[arg-type]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        give_up()

    assert health.status()["waits"] == []


def test_a_wait_without_limit_is_valid_json(health: Health):
    with health.waiting_for("space in GENERATED", None):
        assert json.loads(json.dumps(health.status()))["waits"][0]["limit_s"] is None


def test_the_address_is_noted_in_the_status(url: str, health: Health):
    assert health.status()["telemetry"] == url


def test_two_processes_of_one_role_have_different_writer_ids():
    assert telemetry.writer_id("learner") != telemetry.writer_id("learner")
    assert telemetry.writer_id("learner").startswith("learner@")


def test_buckets_reach_the_longest_limits():
    telemetry.handle_seconds.labels("slow").observe(1800)

    (metric,) = telemetry.handle_seconds.collect()
    below = [
        sample.value
        for sample in metric.samples
        if sample.labels.get("role") == "slow" and sample.labels.get("le") == "3600.0"
    ]

    assert below == [1.0]


def test_log_lines_are_json_with_role_and_time(capsys: pytest.CaptureFixture[str]):
    try:
        configure_logging("learner", "info")
        log = structlog.get_logger()
        log.info("step", step=3, path=object)
        log.debug("not shown")
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()

    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert (found["event"], found["role"], found["step"]) == ("step", "learner", 3)
    assert "timestamp" in found


def test_an_address_that_cannot_be_listened_on_is_named():
    taken = serve_http(Health("policy"), TelemetrySettings())
    port = taken.server_address[1]
    try:
        with pytest.raises(BadConfiguration, match=rf"telemetry\.port {port}: cannot listen there"):
            serve_http(Health("policy"), TelemetrySettings(port=port))
    finally:
        taken.shutdown()
        taken.server_close()
