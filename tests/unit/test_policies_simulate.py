"""`policy simulate` and `replay --policy`: decisions without a run, and over one that is on record."""

import json
from pathlib import Path

import pytest

from broker.errors import BadConfiguration
from ops import cli
from ops.commands.policy import read_policy
from tests.policy_builders import a_group_event, an_arrival
from tests.policy_run import (
    LOG,
    MIXED,
    SETTINGS,
    SOLVED,
    Bus,
    a_bus,
    annotated,
    decided,
    fill,
    run_settings,
    work_until,
)
from tests.unit.test_policies_shadows import WITH_SHADOWS, opinions, over
from workers.policies.decisions import Record, Recorded, Rules
from workers.policies.difference import Table
from workers.policies.program import Program
from workers.policies.reading import decisions_on_record, train_groups
from workers.policies.replay import Replay, Verdicts
from workers.policies.settings import PolicySettings
from workers.policies.simulate import parse, simulate
from workers.policies.worker import rules_of


def a_line(group_id: str = "g", **changes: object) -> str:
    fields = {"group_id": group_id, "domain": "math", "rewards": [1, 0], "tokens": [3, 4]}
    return json.dumps(fields | changes)


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict]:
    assert cli.main([str(a) for a in arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_generation_gets_a_line_with_its_decision(tmp_path, capsys):
    policy, lines = tmp_path / "policy.toml", tmp_path / "groups.jsonl"
    policy.write_text(
        '[policy]\nadmit = ["dynamic_sampling"]\nadvantage = {name = "grpo", std = "none"}\n'
    )
    lines.write_text(a_line("a") + "\n\n" + a_line("b", rewards=[1, 1]))

    rows = said(capsys, "policy", "simulate", "--policy", policy, "--input", lines)

    common = {"target": None}
    assert rows == [
        {"group_id": "a", "index": 0, "admitted": True, "reward": 1.0, "advantage": 0.5, "weight": 1.0,
         "reason": "uniform", **common},
        {"group_id": "a", "index": 1, "admitted": True, "reward": 0.0, "advantage": -0.5, "weight": 1.0,
         "reason": "uniform", **common},
        *({"group_id": "b", "index": n, "admitted": False, "reward": None, "advantage": 0.0, "weight": 0.0,
           "reason": "filtered:dynamic_sampling", **common} for n in (0, 1)),
    ]  # fmt: skip


def test_a_whole_configuration_or_a_preset_will_do_for_a_policy(tmp_path, capsys):
    whole, lines = tmp_path / "run.toml", tmp_path / "groups.jsonl"
    whole.write_text('[run]\nsteps = 1\n[policy]\npreset = "topk"\n')
    lines.write_text(a_line("a", rewards=[1, 0, 0, 0], tokens=[2] * 4))

    by_file = said(capsys, "policy", "simulate", "--policy", whole, "--input", lines)
    by_name = said(capsys, "policy", "simulate", "--policy", "topk", "--input", lines)

    assert by_file == by_name
    assert [row["weight"] for row in by_file] == [1, 1, 0, 0]


def test_token_weights_are_a_list_and_null_rewards_leave_their_row_out():
    lines = parse(
        [
            a_line(
                rewards=[1, 0, None], tokens=[2, 1, 1], logprobs=[[-2.302585, -0.105361], [0], [0]]
            )
        ]
    )

    first, _, left_out = simulate(Program(PolicySettings(preset="ar")), lines)

    weights = first["weight"]
    assert isinstance(weights, list)
    assert [round(w, 4) for w in weights] == [0.66, 1.14]
    assert (left_out["weight"], left_out["reason"]) == (0.0, "ungraded")


def test_lines_of_a_window_are_one_batch_and_memory_goes_from_window_to_window():
    texts = [
        a_line(name, window=window, sample_key="same", rewards=rewards, tokens=[1, 1])
        for name, window, rewards in (("a", 7, [1, 0]), ("b", 7, [1, 1]), ("c", 3, [1, 1]))
    ]
    dbb = list(simulate(Program(PolicySettings(preset="dbb")), parse(texts)))
    topk = list(simulate(Program(PolicySettings(preset="topk")), parse(texts)))

    # The prompt's third visit knows of the first two.
    assert [round(float(str(row["advantage"])), 4) for row in dbb[::2]] == [1.0, 0.5222, 0.3333]
    assert [row["weight"] for row in topk] == [1, 1, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "line 1: (whole): Invalid JSON"),
        (a_line(tokens=[1]), "line 1: tokens: expected 2 values, as rewards has; got 1"),
        (a_line(tokens=[1, -1]), "line 1: tokens: expected none negative; got [1, -1]"),
        (a_line(tokens=[1, 10**20]), "line 1: tokens.1: Input should be less than or equal to"),
        (a_line(logprobs=[[0.0] * 3, [0.0]]), "line 1: logprobs.1: expected 4 values"),
        (a_line(typo=1), "line 1: typo: no such field; expected some of group_id, domain"),
        (a_line() + "\n" + a_line(), "line 2: group_id 'g': expected each group once"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused_with_number_field_and_expectation(
    text, names, tmp_path, capsys
):
    lines = tmp_path / "groups.jsonl"
    lines.write_text(text)

    code = cli.main(["policy", "simulate", "--policy", "uniform", "--input", str(lines)])

    assert code == 2
    assert names in capsys.readouterr().err


def test_a_policy_that_reads_what_the_lines_do_not_have_is_refused():
    some = a_line("a", logprobs=[[0] * 3, [0] * 4], answers=["x", None])
    lines = parse([some, a_line("b")])
    for preset, field in (("ar", "logprobs"), ("spurious:majority", "answers")):
        found = simulate(Program(PolicySettings(preset=preset)), lines)

        with pytest.raises(
            BadConfiguration, match=f"group b: {field}: expected, since policy {preset}"
        ):
            next(found)


def test_a_policy_that_is_no_file_and_no_preset_is_refused_with_the_presets(tmp_path: Path):
    with pytest.raises(BadConfiguration, match=r"expected a TOML file, or a preset: .*difffilter"):
        read_policy(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("[policy]\nadmits = []")
    with pytest.raises(BadConfiguration, match=r"admits: no such key; expected .*target, admit"):
        read_policy(str(tmp_path / "bad.toml"))


# --- over what is on record -------------------------------------------------------------------


async def replay(bus: Bus, settings: PolicySettings, **changes: object) -> list[Verdicts]:
    """changes: of the run's settings."""
    recorded, annotations = await decisions_on_record(bus)
    found = Replay(
        Program(settings),
        recorded,
        rules_of(run_settings(**changes), WITH_SHADOWS),
        annotations,
        ["math", "logic"],
    )
    told = [one async for arrival in train_groups(bus) for one in found.feed(arrival)]
    return told + found.finish()


@pytest.mark.parametrize("number", range(3))
async def test_another_policy_over_the_record_says_what_it_said_as_a_shadow(number):
    bus = a_bus()
    await fill(bus)
    await work_until(bus, over(bus), settings=WITH_SHADOWS)
    shadow = WITH_SHADOWS.shadow[number]
    name = shadow.name or (shadow.preset or "").replace(":", "-")
    said_then = [e for e in await opinions(bus) if e.policy == name]

    table = shadow.model_dump(exclude={"name"}, exclude_unset=True)
    found = await replay(bus, PolicySettings.model_validate(table))

    assert len(found) >= 8
    said_now = {one.event.group.group_id: one for one in found}
    assert said_now.keys() >= {e.group.group_id for e in said_then}
    for event in said_then:
        one = said_now[event.group.group_id]
        assert (one.window, one.other_reason) == (event.window, event.reason)
        assert tuple(one.other) == event.annotations


@pytest.mark.parametrize(
    ("log", "number", "changes"),
    [
        ([MIXED, *[SOLVED] * 4, MIXED, MIXED, MIXED], 6, {}),
        (LOG, 3, {"deterministic": True, "max_staleness": 0}),
    ],
    ids=["a window is cut at it", "a cohort has it"],
)
async def test_a_group_that_could_not_be_read_failed_in_the_replay_as_it_did_in_the_run(
    log: list[tuple[float, float] | None], number: int, changes: dict[str, object]
):
    bus = a_bus()
    await fill(bus, cohorts=bool(changes), log=log, unreadably=number)
    await work_until(bus, decided(len(log), bus), settings=SETTINGS, **changes)

    found = await replay(bus, SETTINGS, **changes)

    windows = {one.event.group.group_id: one.window for one in found}
    admitted = [e for e in await annotated(bus) if e.outcome == "admitted"]
    assert {e.group.group_id: e.window for e in admitted}.items() <= windows.items()
    assert admitted


async def test_the_recorded_policy_over_its_own_record_agrees_with_itself():
    bus = a_bus()
    await fill(bus)
    await work_until(bus, over(bus), settings=WITH_SHADOWS)
    live = WITH_SHADOWS.model_copy(update={"shadow": ()})

    table = Table()
    for one in await replay(bus, live):
        table.add(one)
        if one.recorded and one.recorded[0].admitted:
            assert tuple(one.recorded) == tuple(one.other)

    rows = {row["part"]: row for row in table.rows()}
    assert list(rows) == ["all", "domain math", "solved 100%", "solved 50% and above"]
    assert rows["solved 100%"]["recorded_kept"] == rows["solved 100%"]["other_kept"] == 0.0
    assert rows["all"]["agreement"] == 1.0


def test_the_table_counts_answers_and_tokens_that_weigh_by_domain_and_difficulty():
    def verdicts(number: int, recorded: PolicySettings, domain: str) -> Verdicts:
        event = a_group_event(number, (1.0, 0.0, 0.0), domain=domain, lengths=[2, 3, 5])
        rows = []
        for settings in (recorded, PolicySettings(preset="maxvar")):
            found = Replay(
                Program(settings),
                _on_record(event),
                Rules(1, 9),
                {},
                [domain],
            ).feed(an_arrival(1, event))
            rows.append(found[0].other)
        return Verdicts(event, 1, rows[0], rows[1], "admitted")

    table = Table()
    table.add(verdicts(1, PolicySettings(), "math"))
    table.add(verdicts(2, PolicySettings(preset="maxvar"), "logic"))

    rows = {row["part"]: row for row in table.rows()}
    assert rows["all"] == {
        "part": "all", "groups": 2, "answers": 6, "recorded_kept": pytest.approx(5 / 6),
        "other_kept": pytest.approx(4 / 6), "recorded_tokens": 17, "other_tokens": 14,
        "agreement": pytest.approx(5 / 6),
    }  # fmt: skip
    assert rows["domain logic"]["agreement"] == 1.0


def _on_record(event):
    key = event.group
    return Recorded(
        groups={key.group_id: Record(key.request_seq, 1, "admitted", "admitted")}, cuts={1: 1}
    )
