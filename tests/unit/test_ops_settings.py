"""The configuration: what it accepts, and how clearly it refuses."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadConfiguration
from ops import settings, toml, worker
from ops.preflight import refuse_impossible
from tests.configurations import MINIMAL, written
from workers.dispatcher.space import required_log_bytes


def test_a_bad_value_is_named_with_its_key_and_what_was_expected(tmp_path: Path):
    path = written(tmp_path, MINIMAL.replace("steps = 3", "steps = -3"))

    with pytest.raises(BadConfiguration, match=r"run\.steps: .*greater than or equal to 1.*-3"):
        settings.load(path, environment={})


def test_an_unknown_key_is_refused_by_name(tmp_path: Path):
    path = written(tmp_path, MINIMAL.replace("steps = 3", "steps = 3\nstep = 4"))

    with pytest.raises(BadConfiguration, match=r"run\.step: "):
        settings.load(path, environment={})


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ('{ name = "gspo", clip = 1.0 }', r"learner\.loss\.gspo\.clip: no such key; .*clip_low"),
        ('"gsp"', r"learner\.loss: .*'gspo'"),
    ],
)
def test_an_unknown_loss_or_option_of_one_is_refused_by_name(tmp_path: Path, loss, message):
    path = written(tmp_path, f"{MINIMAL}\n[learner]\nloss = {loss}\n")

    with pytest.raises(BadConfiguration, match=message):
        settings.load(path, environment={})


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(BadConfiguration, match=r"none\.toml: no such configuration file"):
        settings.load(tmp_path / "none.toml", environment={})


def test_two_sources_of_one_domain_are_refused(tmp_path: Path):
    twice = MINIMAL + '[[source]]\ndomain = "math"\ngenerator = "addition"\n'

    with pytest.raises(BadConfiguration, match="expected each domain once"):
        settings.load(written(tmp_path, twice), environment={})


def test_a_deterministic_run_on_an_engine_that_cannot_be_one_is_refused(tmp_path: Path):
    text = MINIMAL.replace("steps = 3", "steps = 3\ndeterministic = true\nmax_staleness = 0")

    with pytest.raises(BadConfiguration, match=r"needs rollout\.engine = 'torch'; got 'vllm'"):
        settings.load(written(tmp_path, text), ("rollout.engine=vllm",), environment={})


def test_a_gpu_chosen_by_index_is_refused_for_an_engine_that_would_take_another(tmp_path: Path):
    path = written(tmp_path)

    with pytest.raises(BadConfiguration, match=r"'cuda:1'.*expected 'cuda' and .*VISIBLE_DEVICES"):
        settings.load(path, ("rollout.engine=vllm", "model.device='cuda:1'"), environment={})
    settings.load(path, ("rollout.engine=vllm", "model.device=cuda"), environment={})
    settings.load(path, ("model.device='cuda:1'",), environment={})


def test_programs_larger_than_their_grader_are_refused(tmp_path: Path):
    part = '{verifier = {name = "code", memory_bytes = 3_000_000_000}}'
    large = f'verifier = {{name = "compose", parts = [{part}]}}'
    path = written(tmp_path, MINIMAL.replace('verifier = {name = "./mine.py:Grader"}', large))

    with pytest.raises(BadConfiguration, match=r"memory_bytes 3000000000: .*= 2147483648"):
        settings.load(path, environment={})
    settings.load(path, ("verifier.memory_bytes=3_000_000_000",), environment={})


def test_logs_that_cannot_hold_a_checkpoint_interval_are_refused(tmp_path: Path):
    small = settings.load(written(tmp_path), ("nats.log_bytes=1_048_576",), environment={})
    refuse_impossible(small)
    long = settings.load(
        written(tmp_path), ("nats.log_bytes=1_048_576", "run.steps=100"), environment={}
    )

    with pytest.raises(BadConfiguration, match=r"nats\.log_bytes = 1,048,576: .*checkpoint_every"):
        refuse_impossible(long)


def test_logs_that_cannot_hold_the_signals_of_a_wide_model_are_refused(tmp_path: Path):
    path = written(tmp_path)
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 31, "hidden_size": 4096}')

    for model in (
        f"model={{path='{tmp_path}'}}",
        "model={tiny={characters='01', hidden=4096, layers=31}}",
    ):
        refuse_impossible(settings.load(path, (model,), environment={}))
        wide = settings.load(
            path, (model, "rollout.signals=['hidden']", "nats.log_bytes=4_194_304"), {}
        )
        with pytest.raises(BadConfiguration, match=r"nats\.log_bytes"):
            refuse_impossible(wide)


def test_a_policy_with_a_memory_needs_room_for_every_window_since_its_snapshot(tmp_path: Path):
    c = settings.load(
        written(tmp_path),
        (
            "run.id=r", "run.steps=100", "nats.url=nats://nowhere:1", "learner.checkpoint_every=1",
            "policy.shadow=[{preset = 'dbb'}]",
        ),
        environment={},
    )  # fmt: skip
    sizes = {"prompt_tokens": c.prompt.max_tokens, "answer_tokens": c.sampling.max_tokens}
    needed = required_log_bytes(c.run, **sizes, checkpoint_every=1, snapshot_every=16)
    enough, tight = (
        c.model_copy(update={"nats": c.nats.model_copy(update={"log_bytes": log_bytes})})
        for log_bytes in (needed, needed - 1)
    )

    worker.check(enough, ("policy",))

    with pytest.raises(BadConfiguration, match="16 between snapshots"):
        worker.check(tight, ("policy",))
    # Elsewhere the policy's methods need not be there to be asked.
    worker.check(tight, ("rollout",))


def test_the_configurations_that_come_with_it_are_possible():
    shipped = sorted(Path(settings.__file__).parent.rglob("*.toml"))

    for path in shipped:
        refuse_impossible(settings.load(path, environment={}))
    assert len(shipped) >= 3


def test_set_overrides_the_environment_which_overrides_the_file(tmp_path: Path):
    path = written(tmp_path)
    environment = {"SLUICE_RUN__STEPS": "5", "SLUICE_NATS__PASSWORD": "s3 cret", "SLUICE": "x"}

    from_file = settings.load(path, environment={})
    from_environment = settings.load(path, environment=environment)
    from_set = settings.load(path, ("run.steps=7",), environment)

    assert [c.run.steps for c in (from_file, from_environment, from_set)] == [3, 5, 7]
    assert from_environment.nats.password == "s3 cret"


def test_an_assignment_reaches_into_an_array(tmp_path: Path):
    assert settings.load(written(tmp_path), ("source.0.share=3",), {}).source[0].share == 3


@pytest.mark.parametrize(
    "assignment", ["run.steps", "=3", "run.steps.deep=3", "source.9.share=3", "source.x.share=3"]
)
def test_a_malformed_assignment_is_quoted_in_the_error(tmp_path: Path, assignment: str):
    with pytest.raises(BadConfiguration, match="--set '"):
        settings.load(written(tmp_path), (assignment,), {})


def test_an_assignment_into_an_array_without_a_place_is_shown_with_one(tmp_path: Path):
    with pytest.raises(BadConfiguration, match=r"as in source\.0\.share=3"):
        settings.load(written(tmp_path), ("source.share=3",), {})


@pytest.mark.parametrize(
    "assignment", ["learner.learning_rate=inf", "source.0.share=nan", "run.seed=-1"]
)
def test_a_number_that_nothing_can_be_computed_with_is_refused(tmp_path: Path, assignment: str):
    with pytest.raises(BadConfiguration, match="Input should be"):
        settings.load(written(tmp_path), (assignment,), {})


def test_a_verifier_may_be_a_name_alone(tmp_path: Path):
    named = settings.load(written(tmp_path), ("source.0.verifier='math'",), {})
    assert named.source[0].verifier == {"name": "math"}


def test_relative_paths_are_relative_to_the_file(tmp_path: Path):
    found = settings.load(written(tmp_path), environment={})

    assert found.model.path == tmp_path / "weights"
    assert found.source[0].path == tmp_path.parent / "rows.jsonl"
    assert found.source[0].verifier == {"name": f"{tmp_path}/mine.py:Grader"}


def test_what_is_recorded_holds_no_address_and_no_password(tmp_path: Path):
    secrets = ("nats.url='nats://h'", "nats.password='pass'", "store.url='postgresql://u:pass@h'")

    recorded = settings.without_secrets(settings.load(written(tmp_path), secrets, {}))

    assert "pass" not in str({k: v for k, v in recorded["nats"].items() if v})
    assert "url" not in recorded["store"]


def test_the_digest_ignores_where_a_run_lives_and_sees_what_it_trains(tmp_path: Path):
    path = written(tmp_path)
    digests = [
        settings.digest(settings.load(path, overrides, {}))
        for overrides in ((), ("nats.url='nats://elsewhere'", "run.steps=9"), ("run.seed=1",))
    ]

    assert digests[0] == digests[1] != digests[2]


def test_a_configuration_written_for_the_run_reads_back_equal(tmp_path: Path):
    first = settings.load(
        written(tmp_path),
        (
            "run.id=r1",
            "prompt.system='a \"quoted\"\nline'",
        ),
        {},
    )

    copy = tmp_path / "copy.toml"
    copy.write_text(toml.dumps(first.model_dump(mode="json")))

    assert settings.load(copy, environment={}) == first


scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=("Cs",)))
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), values, max_size=4))
def test_toml_written_is_toml_read(tree: dict[str, object]):
    assert tomllib.loads(toml.dumps(tree)) == tree


@pytest.mark.parametrize("password", ["12345", 's3 "cret"', "[nats]"])
def test_a_password_of_the_environment_is_text_whatever_it_looks_like(
    tmp_path: Path, password: str
):
    found = settings.load(written(tmp_path), environment={"SLUICE_NATS__PASSWORD": password})

    assert found.nats.password == password


def test_no_message_shows_a_credential(tmp_path: Path):
    with pytest.raises(BadConfiguration) as refused:
        settings.load(written(tmp_path), ("nats.password=12345", "nats.url=[77777]"), {})

    assert "nats.password" in str(refused.value)
    assert "nats.url" in str(refused.value)
    assert "12345" not in str(refused.value)
    assert "77777" not in str(refused.value)
