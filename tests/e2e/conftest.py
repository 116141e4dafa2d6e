"""Runs of a test's own on the services of the test session."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster


@pytest.fixture
def start_run(tmp_path: Path, nats_url: str, postgres_url: str) -> Iterator[Callable[..., Cluster]]:
    """A new run with the given options of `Cluster`; its processes end with the test."""
    with ExitStack() as stack:

        def start(name: str = "e2e", **options: object) -> Cluster:
            # The server of the session holds the runs of all its tests.
            run = f"{name}-{uuid.uuid4().hex[:8]}"
            cluster = Cluster(
                tmp_path / name, nats_url=nats_url, postgres_url=postgres_url, run=run, **options
            )
            return stack.enter_context(cluster)

        yield start
