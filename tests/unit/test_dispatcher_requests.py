"""Requests follow the mixture, however often it is announced anew."""

from collections import Counter
from pathlib import Path

from broker.messages import MixtureShare, MixtureUpdated
from tests.builders import AT_US, WRITER
from tests.dispatcher_world import a_run, a_tokenizer_folder, two_sources
from workers.dispatcher import sources
from workers.dispatcher.rendering import Renderer
from workers.dispatcher.requests import Place, RequestBuilder
from workers.dispatcher.settings import EvaluationSettings, PromptSettings, SamplingSettings


def a_mixture(update_no: int, **targets: float) -> MixtureUpdated:
    shares = tuple(
        MixtureShare(
            domain=domain, target=target, requested=0, generated=0, admitted=0, trained=0,
            reward_mean=None, abs_advantage_mean=None, slope=None,
        )
        for domain, target in targets.items()
    )  # fmt: skip
    return MixtureUpdated(
        writer_id=WRITER, at_us=AT_US, update_no=update_no, mixer="static", window=update_no, step=0,
        request_seq=0, cut=0, domains=shares, reason="",
    )  # fmt: skip


def drawn(folder: Path, mixtures: list[MixtureUpdated]) -> Counter[str]:
    """Domains of one draw under each of the mixtures in turn."""
    renderer = Renderer(a_tokenizer_folder(folder), PromptSettings(max_tokens=64))
    builder = RequestBuilder(
        a_run(), sources.load(two_sources(), renderer, seed=0), renderer,
        sampling=SamplingSettings(max_tokens=8), evaluation=EvaluationSettings(), writer_id=WRITER,
    )  # fmt: skip
    found: Counter[str] = Counter()
    counters = None
    for number, mixture in enumerate(mixtures):
        request = builder.draw(Place(number, counters, mixture, version=0), at_us=AT_US)
        assert request is not None
        counters = request.mixture
        found[request.group.domain] += 1
    return found


def test_updates_that_change_nothing_do_not_favour_the_first_domain(tmp_path: Path):
    same = [a_mixture(update_no=n, addition=0.5, ordering=0.5) for n in range(20)]

    assert drawn(tmp_path, same) == {"addition": 10, "ordering": 10}


def test_an_update_that_changes_the_shares_owes_nothing_for_the_time_before(tmp_path: Path):
    mixtures = [a_mixture(0, addition=1.0, ordering=0.0)] * 10
    mixtures += [a_mixture(1, addition=0.5, ordering=0.5)] * 10

    assert drawn(tmp_path, mixtures) == {"addition": 15, "ordering": 5}


def test_updates_after_every_other_draw_do_not_round_in_one_direction(tmp_path: Path):
    # Each update alone gives two draws as 1 and 1; together they are to be 70 % and 30 %.
    mixtures = []
    for n in range(50):
        share = 0.7 + 0.001 * (n % 3)
        mixtures += [a_mixture(n, addition=share, ordering=1 - share)] * 2

    assert drawn(tmp_path, mixtures) == {"addition": 70, "ordering": 30}
