"""The command line: light to start, clear when it refuses, and the files that commands share."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.errors import BadConfiguration
from broker.messages import RunStarted
from ops import cli, launch, roles, settings, starter, toml, worker
from ops.dry_run import estimate, shape_of, show
from ops.paths import RunPaths, find_run, lock_run, run_ids, write_json
from tests.builders import AT_US, WRITER
from workers.verifiers import pool

HEAVY = (
    "torch",
    "transformers",
    "pydantic",
    "nats",
    "sqlalchemy",
    "psycopg",
    "numpy",
    "rich",
    "jinja2",
)


def loaded_by(code: str) -> set[str]:
    """Heavy modules that a fresh interpreter has after the code."""
    said = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(said.stdout.split()) & set(HEAVY)


def test_the_help_imports_nothing_heavy():
    assert loaded_by("from ops import cli; cli.parser()") == set()


def test_roles_without_a_model_import_no_torch():
    code = "from ops import roles\nfor r in ('dispatcher', 'verifier', 'policy', 'recorder'): roles.load(r)"

    assert not loaded_by(code) & {"torch", "transformers"}


def test_a_refusal_is_one_clear_line_and_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    code = cli.main(["run", str(tmp_path / "none.toml")])

    said = capsys.readouterr()
    assert code == 2
    assert said.err == f"sluice: {tmp_path}/none.toml: no such configuration file\n"
    assert said.out == ""


def test_an_unknown_run_is_refused_with_the_known_ones(tmp_path: Path):
    for name in ("demo-1", "demo-2", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").touch()

    with pytest.raises(BadConfiguration, match="'last': there is no run in"):
        find_run(tmp_path / "none", "last")
    with pytest.raises(BadConfiguration, match=r"no run named 'x'.*demo-1"):
        find_run(tmp_path, "x")
    with pytest.raises(BadConfiguration, match="2 runs named 'demo'"):
        find_run(tmp_path, "demo")
    assert find_run(tmp_path, "oth").run_id == "other"
    assert find_run(tmp_path, "last").run_id == run_ids(tmp_path)[-1]


def test_only_one_supervisor_holds_a_run(tmp_path: Path):
    held = lock_run(RunPaths(tmp_path))

    with pytest.raises(BadConfiguration, match="another `sluice run`"):
        lock_run(RunPaths(tmp_path))

    os.close(held)
    os.close(lock_run(RunPaths(tmp_path)))


def test_a_json_file_is_replaced_whole(tmp_path: Path):
    path = tmp_path / "pids.json"
    write_json(path, {"learner": [1]})
    write_json(path, {"learner": [2]})

    assert json.loads(path.read_text()) == {"learner": [2]}
    assert list(tmp_path.iterdir()) == [path]


def test_two_runs_of_one_second_get_two_names(tmp_path: Path):
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first = launch.new_run_id("demo", tmp_path, now)
    (tmp_path / first).mkdir()

    assert first == "demo-20260102-030405"
    assert launch.new_run_id("demo", tmp_path, now) == "demo-20260102-030405-2"


def started_folder(folder: Path) -> Path:
    starter.write(folder)
    return folder / "config.toml"


def test_a_run_that_exists_is_only_gone_on_with_when_asked(tmp_path: Path):
    config = started_folder(tmp_path / "mine")
    runs = tmp_path / "runs"
    (runs / "r1").mkdir(parents=True)
    kept = settings.load(config, ("run.id=r1",), {}).model_dump(mode="json")
    (runs / "r1" / "config.toml").write_text(toml.dumps(kept))

    with pytest.raises(BadConfiguration, match="--resume r1"):
        launch.prepare(config, ("run.id=r1",), runs, resume=None)
    configuration, paths = launch.prepare(config, ("run.steps=99",), runs, resume="r1")
    with pytest.raises(BadConfiguration, match=r"changed: sampling\.temperature"):
        launch.prepare(config, ("sampling.temperature=0.7",), runs, resume="r1")

    assert configuration.run.id == paths.run_id == "r1"


def test_the_starting_point_overwrites_nothing(tmp_path: Path):
    (tmp_path / "mine.py").write_text("my work")

    with pytest.raises(BadConfiguration, match=r"mine\.py exists"):
        starter.write(tmp_path)

    assert (tmp_path / "mine.py").read_text() == "my work"


def test_a_folder_that_cannot_be_written_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = started_folder(tmp_path / "mine")

    assert cli.main(["run", str(config), "--runs", str(config)]) == 2
    assert cli.main(["data", "import", str(tmp_path / "mine" / "rows.jsonl"), "--verifier", "exact",
                     "--datasets", str(config)]) == 2  # fmt: skip

    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert all(line.startswith(f"sluice: {config}") for line in told), told


def test_runs_lists_the_others_beside_one_with_a_broken_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name, summary in (("broken", "{half"), ("whole", '{"status": "finished", "steps": 3}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").touch()
        (tmp_path / name / "lock").touch()
        (tmp_path / name / "summary.json").write_text(summary)

    assert cli.main(["runs", "--runs", str(tmp_path)]) == 0

    assert sorted(capsys.readouterr().out.splitlines()) == [
        "broken  with an unreadable summary.json  step -",
        "whole  finished  step 3",
    ]


def test_an_address_that_cannot_be_read_is_refused_without_its_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLUICE_STORE__URL", "")  # the command leaves it set

    assert cli.main(["sql", "SELECT 1", "--store", "postgresql://u:secret@[bad"]) == 2

    said = capsys.readouterr().err
    assert "store.url" in said
    assert "secret" not in said


def test_a_dry_run_shows_prompts_and_sizes_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    configuration = settings.load(started_folder(tmp_path / "mine"), environment={})

    assert show(configuration, sys.stdout) == 0

    said = capsys.readouterr().out
    for part in (
        "words: 10 to train on",
        "target '",
        "million parameters",
        "learner",
        "checkpoints",
    ):
        assert part in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["demo.toml", "gsm8k-smollm2.toml"])
def test_the_shipped_configurations_are_valid(name: str):
    configuration = settings.load(Path(settings.__file__).parent / "config" / name, environment={})

    assert all(source.eval_items for source in configuration.source)


def test_parameters_are_counted_as_the_model_has_them():
    smollm2 = {
        "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
    }  # fmt: skip

    assert shape_of(smollm2).parameters == 134_515_008


def test_estimates_grow_with_what_they_depend_on(tmp_path: Path):
    path = started_folder(tmp_path / "mine")
    shape = shape_of(
        {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
         "vocab_size": 30}
    )  # fmt: skip

    small = estimate(settings.load(path, (), {}), shape, 10)
    rows = estimate(settings.load(path, ("rollout.max_rows=512",), {}), shape, 10)
    steps = estimate(settings.load(path, ("run.steps=1000",), {}), shape, 10)
    streams = estimate(settings.load(path, ("learner.threads=4",), {}), shape, 10)

    assert streams.learner > small.learner
    assert rows.rollout > small.rollout
    assert rows.learner == small.learner
    assert steps.logs > small.logs


def test_a_folder_that_is_no_model_is_named(tmp_path: Path):
    overrides = (f"model.path='{tmp_path}/nothing'",)
    configuration = settings.load(started_folder(tmp_path / "mine"), overrides, {})

    with pytest.raises(BadConfiguration, match=r"model\.path .*nothing.*config\.json"):
        roles.prepare_model(configuration, RunPaths(tmp_path / "r"))


def test_a_tiny_model_folder_is_made_once_and_whole(tmp_path: Path):
    configuration = settings.load(started_folder(tmp_path / "mine"), environment={})
    paths = RunPaths(tmp_path / "r")

    first = roles.prepare_model(configuration, paths)
    before = (first / "tokenizer.json").stat().st_mtime_ns
    second = roles.prepare_model(configuration, paths)

    assert first == second == paths.model
    assert (second / "tokenizer.json").stat().st_mtime_ns == before
    assert [p.name for p in paths.root.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("override", "names", "complaint"),
    [
        ("run.id=''", ("policy",), "run"),
        ("run.id=r", ("polycy",), r"polycy.*dispatcher, rollout"),
        ("run.id=r", ("policy",), r"nats\.url"),
    ],
)
def test_a_worker_says_what_it_lacks(
    tmp_path: Path, override: str, names: tuple[str, ...], complaint: str
):
    with pytest.raises(BadConfiguration, match=complaint):
        worker.check(settings.load(started_folder(tmp_path / "m"), (override,), {}), names)


def test_a_run_goes_on_only_with_the_configuration_it_was_started_with(tmp_path: Path):
    path = started_folder(tmp_path / "mine")
    first = settings.load(path, (), {})
    started = RunStarted(
        writer_id=WRITER, at_us=AT_US, name="r", seed=0, versions={},
        config=json.dumps(settings.without_secrets(first)), config_sha256=settings.digest(first),
    )  # fmt: skip

    worker.check_same_run(started, settings.load(path, ("run.steps=99", "nats.url='nats://h'"), {}))
    worker.check_same_run(started, settings.load(path, ("learner.identity_band=0.5",), {}))
    other = settings.load(path, ("run.seed=5", "learner.learning_rate=0.5"), {})
    with pytest.raises(BadConfiguration, match=r"changed: learner\.learning_rate, run\.seed"):
        worker.check_same_run(started, other)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("policy.advantage='grpoo'", "grpoo"),
        ("source=[{domain='w', path='rows.jsonl', verifier={name='exactt'}}]", "exactt"),
        ("source=[{domain='w', generator='additionn'}]", "additionn"),
        ("prompt.max_tokens=1", "prompt"),
        (
            "source=[{domain='w', path='rows.jsonl', verifier={name='math'}, target_field='prompt'}]",
            "target",
        ),
    ],
)
def test_what_a_role_would_refuse_is_refused_before_anything_starts(
    tmp_path: Path, override: str, complaint: str, capsys: pytest.CaptureFixture[str]
):
    config = started_folder(tmp_path / "mine")

    code = cli.main(["run", str(config), "--set", override, "--runs", str(tmp_path / "runs")])

    assert code == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "runs" / ".services").exists()


def test_a_malformed_row_is_named_by_line_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = started_folder(tmp_path / "mine")
    rows = tmp_path / "mine" / "rows.jsonl"
    rows.write_text(rows.read_text() + "{broken\n")

    arguments = ["run", str(config), "--runs", str(tmp_path / "runs")]
    assert cli.main(arguments) == 2
    assert "rows.jsonl:11: " in capsys.readouterr().err
    assert cli.main([*arguments, "--dry-run", "--set", "source=[{domain='w', path='rows.jsonl', "
                     "verifier={name='exact'}, skip_bad=true}]"]) == 0  # fmt: skip


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("sampling.max_tokens=500", "longer than the model's"),
        ("source.0.solution_field='worked'", "for the warm-up"),
        ("learner.kl={name='k3', coefficient=0.1, path='.'}", "learner.kl.path"),
    ],
)
def test_what_no_role_could_work_with_is_refused_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, reason: str
):
    config = started_folder(tmp_path / "mine")

    runs = str(tmp_path / "runs")
    code = cli.main(["run", str(config), "--runs", runs, "--dry-run", "--set", override])

    assert code == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_verifier_that_hangs_is_refused_within_its_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    config = started_folder(tmp_path / "mine")
    grader = tmp_path / "mine" / "mine.py"
    head, _, _ = grader.read_text().partition("    def grade(")
    hangs = "    def grade(self, response, target, item):\n        while True: ...\n"

    def refusal(text: str) -> str:
        grader.write_text(text)
        assert cli.main(["run", str(config), "--dry-run", "--set", "verifier.deadline_s=0.2"]) == 2
        return capsys.readouterr().err

    without_canaries = refusal(re.sub(r"    canaries.*\n", "", head) + hangs)
    monkeypatch.setattr(pool, "BUILD_S", 1.0)
    with_canaries = refusal(head + hangs)

    assert "none of the first 10 gold answers scores 1" in without_canaries
    assert "exceeded 0.2 s" in without_canaries
    assert "not built within 1 s, canaries included" in with_canaries
