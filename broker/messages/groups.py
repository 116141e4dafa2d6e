"""What is said about a group: asked, answered, verified, decided."""

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, FiniteFloat, model_validator

from broker.arrays import Array
from broker.messages.base import (
    Count,
    Event,
    Json,
    Message,
    Outcome,
    Probability,
    Purpose,
    Status,
    Text,
    Token,
    VerdictStatus,
)


class ChatTurn(Message):
    """One message of a chat prompt."""

    role: Literal["system", "user", "assistant"]
    content: Text


class Sample(Message):
    """One item of a dataset or generator, complete: nobody looks anything up on the way."""

    key: str
    """`dataset:version:index`; histories join by it."""
    dataset: str
    dataset_version: str
    item_index: Count
    domain: Token
    difficulty: FiniteFloat | None
    prompt: Text | tuple[ChatTurn, ...]
    target: Text | None
    """Gold answer; None when unlabelled."""
    labeled: bool
    verifier: Json
    """Specification, `{"name": "math", ...}`."""
    options: Json = {}
    """What a verifier needs beside the target."""


class Sampling(Message):
    """Sampling parameters in force, all of them stated."""

    temperature: Annotated[float, Field(ge=0.0)]
    """Divides the logits before the softmax; 0 means greedy."""
    max_tokens: Annotated[int, Field(ge=1)]
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class MixtureCounters(Message):
    """How far the mixture had come with this request included."""

    update_no: Count
    """The `MixtureUpdated` whose target shares were in force."""
    target: dict[str, float]
    """Share per domain, sums to 1."""
    owed: dict[str, float]
    """Draws that each domain is behind its targets so far, whatever they were; sums to 0."""
    requested: dict[str, int]
    """Train groups requested per domain since the start of the run, retries included."""
    positions: dict[str, int]
    """Draws per domain since the start of the run: the sources' cursor."""


class GroupKey(Message):
    """What every message about a group repeats, in its headers too."""

    group_id: Token
    purpose: Purpose
    domain: Token
    request_seq: Count
    """Number of the request within the run, from 1; grows without gaps."""
    bundle: Token
    """Groups of one bundle live and end together."""
    bundle_size: Annotated[int, Field(ge=1)]


class GroupRequested(Event):
    """Please answer this sample `size` times."""

    KIND: ClassVar[str] = "group_requested"
    SCHEMA: ClassVar[int] = 2

    group: GroupKey
    sample: Sample
    prompt_text: Text
    """The prompt as rendered by the chat template."""
    prompt_ids: Array
    """int32, shape (P,)."""
    draw: Count
    pass_no: Count
    """How many times the source had been exhausted before."""
    attempt: Count
    """0 for the first; a stale or failed group is retried as a new one."""
    size: Annotated[int, Field(ge=1)]
    sampling: Sampling
    requested_version: Count
    """Newest committed version; the answers come from this one or a newer one (eval: exactly it)."""
    mixture: MixtureCounters | None
    """None unless purpose is train."""
    benchmark: Token | None = None
    """Evaluation only."""
    parent: Token | None = None
    role: Token | None = None
    cohort: Count | None = None
    """Deterministic mode: the cohort's number and how many groups it has."""
    cohort_size: Count | None = None


class VersionSpan(Message):
    """Tokens first..end-1 were sampled under `version`."""

    version: Count
    first: Count
    end: Count


class Generation(Message):
    """One sampled answer, with what the learner needs to weigh it."""

    index: Count
    token_ids: Array
    """int32, shape (T,); ends with an end token iff finish_reason is stop."""
    logprobs: Array
    """Log-probability of each token under the distribution it was sampled from, float32, shape (T,)."""
    finish_reason: Literal["stop", "length"]
    spans: tuple[VersionSpan, ...]
    """Contiguous from 0 to T."""
    text: Text
    """Decoded answer without end tokens; for verifiers and people only."""
    seed: Count
    started_at_us: Count
    finished_at_us: Count
    signals: dict[str, Array] = {}
    """Per-token or per-layer measurements, only when a policy asked for them."""

    @property
    def version_min(self) -> int:
        return min((s.version for s in self.spans), default=0)

    @property
    def version_max(self) -> int:
        return max((s.version for s in self.spans), default=0)

    @model_validator(mode="after")
    def _lengths_agree(self) -> "Generation":
        tokens = len(self.token_ids)
        if len(self.logprobs) != tokens:
            raise ValueError(f"logprobs has {len(self.logprobs)} values; token_ids has {tokens}")
        if not self.spans or self.spans[0].first != 0 or self.spans[-1].end != tokens:
            raise ValueError(f"spans {self.spans} do not cover tokens 0..{tokens}")
        for left, right in pairwise(self.spans):
            if left.end != right.first or left.first >= left.end:
                raise ValueError(f"spans {self.spans} are not contiguous")
        return self


class GroupGenerated(Event):
    """K answers to one request, or the reason there are none."""

    KIND: ClassVar[str] = "group_generated"
    SCHEMA: ClassVar[int] = 2

    group: GroupKey
    status: Status
    reason: str = ""
    request: GroupRequested | None
    """None only when the request itself could not be read."""
    generations: tuple[Generation, ...]
    """Empty iff failed."""
    engine: str = ""
    worker: str = ""


class Verdict(Message):
    """What a verifier found about one generation. Only ok and no_answer carry a score."""

    index: Count
    status: VerdictStatus
    score: Probability | None
    extracted: Text | None
    answer_key: Text | None
    """Canonical text of the answer, comparable across groups and visits."""
    answer_class: int | None
    """Equivalent answers within the group share it; None without an answer."""
    components: dict[str, FiniteFloat] = {}
    detail: Text = ""
    verifier: str
    verifier_version: str
    latency_ms: Annotated[float, Field(ge=0)]

    @model_validator(mode="after")
    def _score_fits_status(self) -> "Verdict":
        rewarded = self.status in ("ok", "no_answer")
        if rewarded != (self.score is not None):
            raise ValueError(
                f"score {self.score} with status {self.status}: a score belongs to ok and no_answer"
            )
        return self


class GroupVerified(Event):
    """The answers with their verdicts, joined by index."""

    KIND: ClassVar[str] = "group_verified"
    SCHEMA: ClassVar[int] = 2

    group: GroupKey
    status: Status
    reason: str = ""
    request: GroupRequested | None
    generations: tuple[Generation, ...]
    verdicts: tuple[Verdict, ...]
    engine: str = ""
    worker: str = ""


class Annotation(Message):
    """What the policy decided about one generation, and from what."""

    index: Count
    target: Text | None
    target_source: str
    """gold | pseudo | relabel | none."""
    admitted: bool
    reward: FiniteFloat | None
    advantage: FiniteFloat
    weight: Annotated[float, Field(ge=0.0)]
    """Of the row in the loss; 0 masks it."""
    token_weights: Array | None = None
    """float32, shape (T,); multiplies weight."""
    token_advantages: Array | None = None
    """float32, shape (T,); takes the place of `advantage`, which is then their mean. For a policy that
    credits the steps of one answer apart; no method that comes with Sluice does."""
    reason: str
    signals: dict[str, FiniteFloat] = {}


class GroupAnnotated(Event):
    """The policy's one decision about a group."""

    KIND: ClassVar[str] = "group_annotated"
    SCHEMA: ClassVar[int] = 3

    group: GroupKey
    outcome: Outcome
    reason: str
    """Why dropped or failed; `admitted` otherwise."""
    request: GroupRequested | None
    generations: tuple[Generation, ...]
    """Only for admitted groups: nobody trains on the others."""
    annotations: tuple[Annotation, ...]
    window: Count | None
    """Number of the window, from 1; step N trains window N. None unless admitted."""
    window_size: Count | None
    window_index: Count | None
    cut: Count | None
    """Sequence in VERIFIED that closed the window."""
    verified_seq: Count
    """Sequence in VERIFIED that this decision answers."""
    policy: str
    policy_version: str
    cohort_end: bool = False
    """Deterministic mode: the last decision about its cohort."""


class ShadowDecided(Event):
    """What another policy would have decided; recorded, never trained on."""

    KIND: ClassVar[str] = "shadow_decided"
    SCHEMA: ClassVar[int] = 2

    group: GroupKey
    outcome: Outcome
    reason: str
    annotations: tuple[Annotation, ...]
    window: Count | None
    verified_seq: Count
    policy: Token
    policy_version: str
