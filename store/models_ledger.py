"""Tables of the LEDGER: supervision, steps, mixture, model weights, evaluations, incidents."""

from sqlalchemy import Column, Index, Table

from store.columns import (
    big,
    check,
    cleaned,
    flag,
    integer,
    json,
    metadata,
    one_of,
    real,
    step_status,
    txt,
    when,
)

supervision_event = Table(
    "supervision_event", metadata,
    big("event_id", key=True), txt("run_id", key=True), txt("sample_key"), when("recorded_at"),
    integer("step", null=True), txt("method"), txt("lifetime"), txt("field"), txt("old", null=True),
    txt("new", null=True), json("evidence"), txt("actor"), cleaned(),
    check("supervision_event", "lifetime", one_of("lifetime", "step", "run", "dataset")),
    check("supervision_event", "field", one_of(
        "field", "labeled", "target", "target_source", "confidence", "status", "visits",
        "solve_rate")),
    Index("ix_supervision_event_sample", "sample_key", "run_id", "event_id"),
)  # fmt: skip
"""Append-only: a trigger refuses UPDATE, DELETE and TRUNCATE."""

supervision_state = Table(
    "supervision_state", metadata,
    txt("run_id", key=True), txt("sample_key", key=True),
    flag("labeled", null=True),
    txt("target", null=True), txt("target_source", null=True), real("confidence", null=True),
    txt("status", null=True), big("visits", null=True), real("solve_rate", null=True),
    big("last_event_id"),
    check("supervision_state", "confidence", "confidence BETWEEN 0 AND 1"),
    check("supervision_state", "solve_rate", "solve_rate BETWEEN 0 AND 1"),
    check("supervision_state", "visits", "visits >= 0"),
    Index("ix_supervision_state_sample", "sample_key"),
)  # fmt: skip
"""The fold of supervision_event by event_id, a field at a time; NULL: never changed."""

learner_step = Table(
    "learner_step", metadata,
    txt("run_id", key=True), integer("step", key=True),
    Column("status", step_status, nullable=False),
    txt("reason", null=True),
    integer("start_version", null=True), integer("weights_version", null=True),
    integer("planned_groups", null=True), integer("dropped_groups", null=True),
    integer("groups", null=True), integer("generations", null=True), big("tokens", null=True),
    real("staleness_mean", null=True), integer("staleness_max", null=True), real("loss", null=True),
    real("grad_norm", null=True), real("entropy", null=True), real("kl", null=True),
    real("ratio_mean", null=True), real("clip_fraction", null=True), real("reward_mean", null=True),
    json("metrics", null=True), txt("digest", null=True), when("planned_at", null=True),
    when("committed_at", null=True), big("planned_seq", null=True), big("committed_seq", null=True),
    cleaned(),
)  # fmt: skip
"""From StepPlanned: start_version, planned_*, dropped_groups; all else from StepCommitted."""

batch_member = Table(
    "batch_member", metadata,
    txt("run_id", key=True), integer("step", key=True), txt("group_id", key=True),
    integer("position"), integer("staleness"), big("stream_seq"),
    Index("ix_batch_member_group", "run_id", "group_id"),
)  # fmt: skip
"""As planned, in training order; stream_seq: sequence in ANNOTATED."""

mixture = Table(
    "mixture", metadata,
    txt("run_id", key=True), integer("update_no", key=True), integer("step"),
    txt("domain", key=True), txt("mixer"), real("target_share"), big("requested"), big("generated"),
    big("admitted"), big("trained"), real("reward_mean", null=True),
    real("abs_advantage_mean", null=True), real("slope", null=True), txt("reason"),
    big("request_seq"), big("cut"), integer("window_no"), when("updated_at"), big("event_id"),
    cleaned(),
    check("mixture", "target", "target_share BETWEEN 0 AND 1"),
)  # fmt: skip
"""Counts are of the train groups up to request_seq, cut, window_no and step."""

weights = Table(
    "weights", metadata,
    txt("run_id", key=True), integer("version", key=True), integer("step"), txt("digest"),
    txt("uri"), big("bytes"), when("published_at"), big("event_id"),
)  # fmt: skip

checkpoint = Table(
    "checkpoint", metadata,
    txt("run_id", key=True), integer("step"), integer("version"), txt("digest"), txt("uri"),
    big("cursor_seq"), when("written_at"), big("event_id", key=True),
)  # fmt: skip

evaluation = Table(
    "evaluation", metadata,
    txt("run_id", key=True), integer("version", key=True), txt("benchmark", key=True),
    integer("step"), integer("items"), real("score", null=True), json("missing"),
    when("finished_at"), big("event_id"), cleaned(),
    check("evaluation", "score", "score BETWEEN 0 AND 1"),
)  # fmt: skip
"""score is NULL when an item is missing."""

evaluation_item = Table(
    "evaluation_item", metadata,
    txt("run_id", key=True), integer("version", key=True), txt("benchmark", key=True),
    txt("group_id", key=True), txt("sample_key"), txt("domain"), real("score", null=True),
    check("evaluation_item", "score", "score BETWEEN 0 AND 1"),
    Index("ix_evaluation_item_sample", "sample_key"),
)  # fmt: skip

incident = Table(
    "incident", metadata,
    txt("run_id", key=True), big("event_id", key=True), txt("kind"), txt("role"), txt("detail"),
    txt("group_id", null=True), when("occurred_at"), cleaned(),
)  # fmt: skip
