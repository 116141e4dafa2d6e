"""What a process tells of itself: JSON log lines, /metrics, /healthz, and what it waits for."""

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import structlog
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from broker.errors import BadConfiguration
from broker.settings import TelemetrySettings

HEARTBEAT_LIMIT_S = 60.0
"""An event loop silent for longer is reported unhealthy: restart the process."""

events_total = Counter("sluice_events_total", "Events published, by kind.", ["kind"])
messages_total = Counter(
    "sluice_messages_total", "Messages handled by a stage, by result.", ["role", "result"]
)
handle_seconds = Histogram(
    "sluice_handle_seconds", "Time a stage spends on one message.", ["role"],
    buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 900, 3600),
)  # fmt: skip
dead_letters_total = Counter(
    "sluice_dead_letters_total", "Messages that could not be handled.", ["role"]
)
publish_waits_total = Counter(
    "sluice_publish_waits_total", "Times a publisher waited for space.", ["log"]
)
waiting = Gauge("sluice_waiting", "Waits in progress.", ["role"])
loop_lag_seconds = Gauge(
    "sluice_event_loop_lag_seconds", "How late the event loop last woke up.", ["role"]
)


def now_us() -> int:
    """Microseconds since the epoch, UTC."""
    return time.time_ns() // 1000


def writer_id(role: str) -> str:
    """Tells this process from any other that ever had the same role."""
    return f"{role}@{socket.gethostname()}:{os.getpid()}:{time.monotonic_ns()}"


def configure_logging(role: str, level: str) -> None:
    """JSON lines on standard error, one event each."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(
                serializer=lambda event, **_: orjson.dumps(event, default=str).decode()
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    structlog.contextvars.bind_contextvars(role=role)


class Health:
    """Liveness, readiness and current waits of one process, readable from any thread."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._lock = threading.Lock()
        self._beat = time.monotonic()
        self._waits: dict[int, tuple[str, float, float | None]] = {}
        self._facts: dict[str, object] = {}
        self._next = 0
        waiting.labels(role).set(0)

    def beat(self) -> None:
        """Called from the event loop; its silence means the loop is stuck."""
        self._beat = time.monotonic()

    def note(self, **facts: object) -> None:
        """Facts shown in the status, such as the version in force."""
        with self._lock:
            self._facts |= facts

    @contextmanager
    def waiting_for(self, what: str, limit_s: float | None) -> Iterator[None]:
        """Names a wait while it lasts; the caller enforces the limit. None: until it is over."""
        with self._lock:
            key, self._next = self._next, self._next + 1
            self._waits[key] = (what, time.monotonic(), limit_s)
            waiting.labels(self.role).set(len(self._waits))
        try:
            yield
        finally:
            with self._lock:
                del self._waits[key]
                waiting.labels(self.role).set(len(self._waits))

    def status(self) -> Mapping[str, object]:
        now = time.monotonic()
        with self._lock:
            return {
                "role": self.role,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "heartbeat_age_s": round(now - self._beat, 3),
                "waits": [
                    {"for": what, "since_s": round(now - since, 1), "limit_s": limit}
                    for what, since, limit in self._waits.values()
                ],
                **self._facts,
            }


def serve_http(
    health: Health, settings: TelemetrySettings, *, heartbeat_limit_s: float = HEARTBEAT_LIMIT_S
) -> ThreadingHTTPServer:
    """/metrics and /healthz from a thread of their own, so that a busy event loop is still observed."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(REGISTRY))
            elif self.path == "/healthz":
                status = health.status()
                alive = float(str(status["heartbeat_age_s"])) < heartbeat_limit_s
                self._answer(
                    200 if alive else 503,
                    "application/json",
                    json.dumps(status, default=str).encode(),
                )
            else:
                self._answer(404, "text/plain", b"expected /metrics or /healthz\n")

        def _answer(self, code: int, content_type: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer((settings.host, settings.port), Handler)
    except OSError as error:
        raise BadConfiguration(
            f"telemetry.host {settings.host!r}, telemetry.port {settings.port}: cannot listen there: "
            f"{error.strerror} (port 0 takes a free one for each process)"
        ) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="telemetry", daemon=True).start()
    health.note(telemetry=f"http://{settings.host}:{server.server_address[1]}")
    return server
