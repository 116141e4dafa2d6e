"""Builds requests: the next draw, a retry, a cohort, an evaluation. Pure but for reading sources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.arrays import token_array
from broker.errors import BadConfiguration
from broker.messages import GroupKey, GroupRequested, MixtureCounters, MixtureUpdated, Sampling
from broker.settings import RunSettings
from workers.dispatcher.evaluation import item_id
from workers.dispatcher.groups import TrainId
from workers.dispatcher.mixture import after_draw, in_order, next_domain
from workers.dispatcher.rendering import Renderer
from workers.dispatcher.settings import EvaluationSettings, SamplingSettings
from workers.dispatcher.sources import Source

BUNDLE_SIZE = 1
"""Sources yield single samples."""


@dataclass(frozen=True)
class Place:
    """Where the next request comes in the run."""

    request_seq: int
    """Of the last request."""
    counters: MixtureCounters | None
    """As of the last train request."""
    mixture: MixtureUpdated
    version: int
    """Newest committed one."""


class RequestBuilder:
    def __init__(
        self,
        run: RunSettings,
        sources: Sequence[Source],
        renderer: Renderer,
        *,
        sampling: SamplingSettings,
        evaluation: EvaluationSettings,
        writer_id: str,
    ) -> None:
        self._run = run
        self.sources: Mapping[str, Source] = {source.domain: source for source in sources}
        self._renderer = renderer
        self._sampling = Sampling(temperature=sampling.temperature, max_tokens=sampling.max_tokens)
        self._greedy = Sampling(
            temperature=0.0, max_tokens=evaluation.max_tokens or sampling.max_tokens
        )
        self._writer_id = writer_id

    def exhausted(self, place: Place) -> bool:
        """No domain with a share has a sample left."""
        return not self._available(self._counters(place))

    def _available(self, counters: MixtureCounters) -> list[str]:
        return [
            domain
            for domain, source in self.sources.items()
            if counters.target[domain] > 0 and not source.exhausted(counters.positions[domain])
        ]

    def draw(self, place: Place, *, at_us: int) -> GroupRequested | None:
        """The request for the next sample; None when the sources are exhausted."""
        counters = self._counters(place)
        available = self._available(counters)
        if not available:
            return None
        domain = next_domain(counters.target, counters.owed, available=available)
        sample, pass_no = self.sources[domain].sample(counters.positions[domain])
        rendered = self._renderer.render(sample.prompt)
        counted = counters.model_copy(
            update={
                "owed": after_draw(counters.target, counters.owed, domain),
                "requested": _plus_one(counters.requested, domain),
                "positions": _plus_one(counters.positions, domain),
            }
        )
        draw = sum(counted.positions.values())
        return GroupRequested(
            writer_id=self._writer_id,
            at_us=at_us,
            group=_train_key(TrainId(draw, 0, 0), domain, place.request_seq + 1, BUNDLE_SIZE),
            sample=sample,
            prompt_text=rendered.text,
            prompt_ids=token_array(rendered.ids),
            draw=draw,
            pass_no=pass_no,
            attempt=0,
            size=self._run.group_size,
            sampling=self._sampling,
            requested_version=place.version,
            mixture=counted,
        )

    def retry(self, original: GroupRequested, place: Place, *, at_us: int) -> GroupRequested:
        """The same sample again, as a new group."""
        counters = self._counters(place)
        domain = original.group.domain
        old = TrainId.parse(original.group.group_id)
        new = old._replace(attempt=old.attempt + 1)
        return original.model_copy(
            update={
                "writer_id": self._writer_id,
                "at_us": at_us,
                "group": _train_key(new, domain, place.request_seq + 1, original.group.bundle_size),
                "attempt": new.attempt,
                "size": self._run.group_size,
                "sampling": self._sampling,
                "requested_version": place.version,
                "mixture": counters.model_copy(
                    update={"requested": _plus_one(counters.requested, domain)}
                ),
                "cohort": None,
                "cohort_size": None,
            }
        )

    def _counters(self, place: Place) -> MixtureCounters:
        """The counters before the next request, under the newest mixture."""
        domains = list(self.sources)
        zero = dict.fromkeys(domains, 0)
        shares = {share.domain: share.target for share in place.mixture.domains}
        before = place.counters
        if before is not None and set(before.positions) != set(domains):
            raise BadConfiguration(
                f"source: the run has drawn from {', '.join(before.positions)}; "
                f"the configuration names {', '.join(domains)}"
            )
        target = in_order(shares, domains)
        return MixtureCounters(
            update_no=place.mixture.update_no,
            target=target,
            owed=dict(before.owed) if before else dict.fromkeys(domains, 0.0),
            requested=dict(before.requested) if before else zero,
            positions=dict(before.positions) if before else zero,
        )

    def evaluation(
        self, version: int, benchmark: str, items: Sequence[int], *, request_seq: int, at_us: int
    ) -> list[GroupRequested]:
        """One greedy request for each of the held-out items with these numbers."""
        samples = self.sources[benchmark].evaluation()
        rendered = self._renderer.render_all([samples[item].prompt for item in items])
        requests = []
        for place, (item, text) in enumerate(zip(items, rendered, strict=True), start=1):
            group_id = item_id(version, benchmark, item)
            key = GroupKey(
                group_id=group_id,
                purpose="eval",
                domain=benchmark,
                request_seq=request_seq + place,
                bundle=group_id,
                bundle_size=1,
            )
            requests.append(
                GroupRequested(
                    writer_id=self._writer_id,
                    at_us=at_us,
                    group=key,
                    sample=samples[item],
                    prompt_text=text.text,
                    prompt_ids=token_array(text.ids),
                    draw=item,
                    pass_no=0,
                    attempt=0,
                    size=1,
                    sampling=self._greedy,
                    requested_version=version,
                    mixture=None,
                    benchmark=benchmark,
                )
            )
        return requests


def as_cohort(
    requests: Sequence[GroupRequested], number: int, *, size: int
) -> list[GroupRequested]:
    """The same requests as one cohort, or as the last of it."""
    return [
        request.model_copy(update={"cohort": number, "cohort_size": size}) for request in requests
    ]


def _plus_one(counts: Mapping[str, int], domain: str) -> dict[str, int]:
    return {**counts, domain: counts.get(domain, 0) + 1}


def _train_key(identity: TrainId, domain: str, request_seq: int, bundle_size: int) -> GroupKey:
    return GroupKey(
        group_id=str(identity),
        purpose="train",
        domain=domain,
        request_seq=request_seq,
        bundle=f"{identity.draw:08d}",
        bundle_size=bundle_size,
    )
