"""Runs of a test's own on the services of the test session, and a finished one that tests share."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from store.database import with_database
from tests.e2e.cluster import Cluster
from tests.whole_run import warm_model


def unique(name: str) -> str:
    """The server of the session holds the runs of all its tests."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start_run(tmp_path: Path, nats_url: str, postgres_url: str) -> Iterator[Callable[..., Cluster]]:
    """A new run with the given options of `Cluster`; its processes end with the test."""
    with ExitStack() as stack:

        def start(name: str = "e2e", **options: object) -> Cluster:
            cluster = Cluster(
                tmp_path / name,
                nats_url=nats_url,
                postgres_url=postgres_url,
                run=unique(name),
                **options,
            )
            return stack.enter_context(cluster)

        yield start


@pytest.fixture(scope="session")
def finished_run(
    tmp_path_factory: pytest.TempPathFactory, nats_url: str, postgres_server: str
) -> Iterator[Cluster]:
    """What `sluice run` leaves when it has trained a tiny model to the end. Only to be looked at."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(b"CREATE DATABASE finished_run TEMPLATE template_sluice")
    cluster = Cluster(
        tmp_path_factory.mktemp("finished"),
        nats_url=nats_url,
        postgres_url=with_database(postgres_server, "finished_run"),
        run=unique("finished"),
        steps=6,
        eval_items=28,
    )
    with cluster:
        done = cluster.sluice("run", str(cluster.config), limit_s=240)
        (cluster.directory / "run.out").write_text(done.stdout)
        yield cluster


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder after a supervised start."""
    return warm_model(tmp_path_factory.mktemp("warm"))
