"""What a role would fail at is refused before anything starts, with the reason."""

from pathlib import Path

import pytest

from broker.errors import BadConfiguration
from ops import cli, settings, starter
from ops.preflight import refuse_missing_device, refuse_unusable
from ops.settings import Configuration

CHECK = """
    def check(self, target, item):
        return {}[target]

    def grade("""


def configured(folder: Path, *overrides: str) -> Configuration:
    starter.write(folder)
    return settings.load(folder / "config.toml", overrides, {})


def test_a_device_that_is_not_there_is_refused_with_torchs_reason():
    with pytest.raises(BadConfiguration, match=r"model\.device 'cuda:99': .*(CUDA|NVIDIA)"):
        refuse_missing_device("cuda:99")
    with pytest.raises(BadConfiguration, match=r"model\.device 'gpu': .*Expected one of cpu, cuda"):
        refuse_missing_device("gpu")


@pytest.mark.parametrize("url", ["mysql://h/x", "nonsense"])
def test_a_store_that_is_no_postgres_is_refused(tmp_path: Path, url: str):
    with pytest.raises(BadConfiguration, match=r"store\.url .*expected postgresql://"):
        refuse_unusable(configured(tmp_path, f"store.url='{url}'"))


def test_the_device_is_tried_before_a_run(tmp_path: Path):
    with pytest.raises(BadConfiguration, match=r"model\.device 'gpu'"):
        refuse_unusable(configured(tmp_path, "model.device='gpu'"))


def test_a_group_too_small_for_its_advantage_is_refused(tmp_path: Path):
    with pytest.raises(
        BadConfiguration, match=r"run\.group_size 1: policy\.advantage grpo .*at least 2"
    ):
        refuse_unusable(configured(tmp_path, "run.group_size=1"))


def test_an_advantage_of_single_answers_takes_groups_of_one(tmp_path: Path):
    refuse_unusable(configured(tmp_path, "run.group_size=1", "policy.advantage='reinforce_pp'"))


@pytest.mark.parametrize("command", [("run", "--dry-run"), ("calibrate",)])
def test_what_a_users_check_raises_is_told_in_one_line(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    starter.write(tmp_path)
    mine = tmp_path / "mine.py"
    mine.write_text(mine.read_text().replace("\n    def grade(", CHECK))

    verb, *more = command
    code = cli.main([verb, str(tmp_path / "config.toml"), *more])

    said = capsys.readouterr()
    assert code == {"run": 2, "calibrate": 1}[verb]
    assert "KeyError: '" in said.out + said.err
