"""Every preset trains, leaves nine proofs that hold, and decided what its log makes it decide again."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg
import pytest

from broker.messages import (
    Event,
    GroupAnnotated,
    GroupVerified,
    MixtureUpdated,
    StepCommitted,
    WeightsPublished,
)
from broker.topology import Log
from store.audit import verify
from store.database import with_database
from store.queries import sql
from tests.policy_run import plain
from tests.whole_run import Finished, configured, from_warm, train_all
from workers.policies.decisions import Author, Closed, Ended, events
from workers.policies.order import Arrival
from workers.policies.presets import PRESETS
from workers.policies.program import Program
from workers.policies.windows import WindowMachine
from workers.policies.worker import rules_of
from workers.verifiers.pool import Pool

SHADOWS = [{"preset": "difffilter"}, {"preset": "dbb"}, {"preset": "ar"}, {"preset": "maxvar"}]
POLICIES: Mapping[str, dict[str, object]] = {
    **{name: {"preset": name} for name in PRESETS},
    "no-policy": {},
    "with-shadows": {"preset": "dapo", "shadow": SHADOWS},
}
Runs = Mapping[str, Finished]
AT_ONCE = 6
pytestmark = pytest.mark.timeout(1200)
"""The first test waits for all runs, and a busy machine may take its time for sixty of them."""


def word(name: str) -> str:
    """A policy's name as a run id."""
    return name.replace(":", "-")


def train_them(
    folder: Path, model: Path, url: str, names: Sequence[str] = tuple(POLICIES), **run: object
) -> Runs:
    """A run of each policy from the same model, at once in one process."""
    shared = from_warm(model)

    async def train() -> list[Finished]:
        async with Pool(size=1, deadline_s=20.0, memory_bytes=1 << 30) as pool:
            return await train_all(
                [
                    (
                        configured(
                            word(n), run=run, policy=POLICIES[n], store={"url": url}, **shared
                        ),
                        folder / word(n),
                    )
                    for n in names
                ],
                pool,
            )

    return dict(zip(names, asyncio.run(train()), strict=True))


@pytest.fixture(scope="module")
def url(postgres_server: str) -> str:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(b"CREATE DATABASE presets TEMPLATE template_sluice")
    return with_database(postgres_server, "presets")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, warm: Path, url: str) -> Runs:
    return train_them(tmp_path_factory.mktemp("presets"), warm, url)


async def of(found: Finished, log: Log, kind: type[Event]) -> list[Event]:
    return [event for _, event in await found.events(log, kind)]


async def digests(found: Finished) -> list[str]:
    committed = await of(found, Log.LEDGER, StepCommitted)
    return [event.digest for event in committed if isinstance(event, StepCommitted)]


async def check(found: Finished, url: str, steps: int) -> None:
    committed = await of(found, Log.LEDGER, StepCommitted)
    assert [e.step for e in committed if isinstance(e, StepCommitted)] == [*range(1, steps + 1)]
    failed = [p for p in await verify(url, found.configuration.run.id, found.bus()) if not p.ok]
    assert failed == []
    await check_decisions(found)


async def check_decisions(found: Finished) -> None:
    """What a machine without any record makes of VERIFIED is what ANNOTATED and LEDGER hold."""
    c = found.configuration
    total = sum(source.share for source in c.source)
    program = Program(c.policy)
    machine = WindowMachine(
        program, rules_of(c.run, c.policy), {s.domain: s.share / total for s in c.source}
    )
    author = Author("again", program.name, program.version)
    again: list[Event] = []
    shares = [machine.shares()]
    for sequence, event in await found.events(Log.VERIFIED, GroupVerified):
        assert isinstance(event, GroupVerified)
        for decision in machine.feed(Arrival(sequence, event)):
            assert isinstance(decision, Closed | Ended)
            again += events(decision, author, 0)
            shares += [decision.shares] if isinstance(decision, Closed) else []

    recorded = await of(found, Log.ANNOTATED, GroupAnnotated)
    assert [without_mark(e) for e in plain(again)] == [without_mark(e) for e in plain(recorded)]
    mixtures = await of(found, Log.LEDGER, MixtureUpdated)
    targets = [[s.target for s in m.domains] for m in mixtures if isinstance(m, MixtureUpdated)]
    assert targets == [[s.target for s in update] for update in shares]


def without_mark(event: Mapping[str, object]) -> dict[str, object]:
    """The mark of a cohort's end belongs to the publication."""
    return {name: value for name, value in event.items() if name != "cohort_end"}


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_preset_trains_and_its_decisions_follow_from_the_log(
    trained: Runs, url: str, policy: str
):
    await check(trained[policy], url, steps=3)


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, len(POLICIES), AT_ONCE))
async def test_presets_train_for_thirty_steps(
    tmp_path_factory: pytest.TempPathFactory, warm: Path, postgres_url: str, first: int
):
    names = list(POLICIES)[first : first + AT_ONCE]
    folder = tmp_path_factory.mktemp("thirty")
    found = await asyncio.to_thread(train_them, folder, warm, postgres_url, names, steps=30)

    for finished in found.values():
        await check(finished, postgres_url, steps=30)


@pytest.mark.parametrize("policy", ["uniform", "static", "dataflex:uniform", "identity"])
async def test_uniform_trains_to_the_weights_of_no_policy_at_all_bit_for_bit(
    trained: Runs, policy: str
):
    assert await digests(trained[policy]) == await digests(trained["no-policy"])


async def test_a_shadow_changes_no_bit_of_what_is_trained(trained: Runs):
    assert await digests(trained["with-shadows"]) == await digests(trained["dapo"])


async def test_selectors_and_reweighters_do_change_what_is_trained(trained: Runs):
    uniform = await digests(trained["no-policy"])

    # Of four answers difffilter keeps every group with a signal (A2): nothing is left to tell it by.
    for name in ("maxvar", "gfpo", "topk", "ar", "per", "softmax", "dbb", "pgbc"):
        assert await digests(trained[name]) != uniform, name


async def test_under_a_constant_reward_no_weight_moves(trained: Runs):
    found = trained["spurious:constant"]
    published = await of(found, Log.LEDGER, WeightsPublished)

    (start,) = {e.digest for e in published if isinstance(e, WeightsPublished)}

    assert set(await digests(found)) == {start}


def test_shadow_decisions_can_be_asked_for_beside_the_live_ones(trained: Runs, url: str):
    rows = sql(
        url,
        "SELECT d.policy, d.shadow, count(DISTINCT d.group_id) AS groups, count(*) AS answers,"
        " count(*) FILTER (WHERE d.weight > 0 AND d.admitted) AS kept"
        " FROM policy_decisions d WHERE d.run_id = 'with-shadows' GROUP BY 1, 2 ORDER BY 2, 1",
    )

    live, *shadows = rows
    assert (live["policy"], live["shadow"]) == ("dapo", False)
    assert [(row["policy"], row["shadow"]) for row in shadows] == [
        (name, True) for name in ("ar", "dbb", "difffilter", "maxvar")
    ]
    # Each spoke about every group that the live policy saw, trained or not.
    assert {row["groups"] for row in shadows} == {live["groups"]}
    kept = {row["policy"]: row["kept"] for row in shadows}
    assert kept["dbb"] == kept["ar"] == live["answers"] > live["kept"]
    assert kept["maxvar"] == live["answers"] / 2
    (trained_rows,) = sql(
        url,
        "SELECT count(*) AS n FROM policy_decisions d JOIN prompt_group g USING (run_id, group_id)"
        " WHERE d.run_id = 'with-shadows' AND NOT d.shadow AND d.weight > 0 AND g.trained_step IS NULL",
    )
    assert trained_rows["n"] == 0
