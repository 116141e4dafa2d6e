"""Tables of groups and their answers: the large ones. Looked up by group, by step, by sample."""

from sqlalchemy import Column, Enum, Index, Table, text

from store.columns import (
    big,
    check,
    cleaned,
    finite,
    flag,
    group_state,
    integer,
    json,
    metadata,
    one_of,
    raw,
    real,
    txt,
    when,
)


def _state(*, key: bool = False) -> Column[Enum]:
    return Column("state", group_state, nullable=False, primary_key=key)


prompt_group = Table(
    "prompt_group", metadata,
    txt("run_id", key=True), txt("group_id", key=True), txt("sample_key", null=True),
    txt("domain", null=True), txt("purpose", null=True), txt("role", null=True),
    txt("bundle", null=True), integer("bundle_size", null=True), txt("parent", null=True),
    txt("benchmark", null=True), big("draw", null=True), integer("pass_no", null=True),
    integer("attempt", null=True), integer("size", null=True), big("cohort", null=True),
    big("request_seq", null=True), integer("requested_version", null=True),
    raw("prompt_sha256", null=True), _state(), txt("outcome", null=True),
    integer("window_no", null=True), integer("window_index", null=True),
    txt("drop_reason", null=True), integer("dropped_step", null=True),
    integer("dropped_staleness", null=True), integer("trained_step", null=True),
    when("requested_at", null=True), when("terminal_at", null=True),
    flag("verified_ok", null=True),
    big("requests_seq", null=True), big("generated_seq", null=True), big("verified_seq", null=True),
    big("annotated_seq", null=True),
    integer("ends"),
    check("prompt_group", "purpose", one_of("purpose", "train", "eval", "probe")),
    check("prompt_group", "outcome", one_of("outcome", "admitted", "dropped", "failed")),
    check("prompt_group", "size", "size >= 1"),
    check("prompt_group", "terminal", "(state >= 'measured') = (terminal_at IS NOT NULL)"),
    check("prompt_group", "trained", "(state = 'trained') = (trained_step IS NOT NULL)"),
    Index("ix_prompt_group_sample", "sample_key"),
    Index("ix_prompt_group_open", "run_id", postgresql_where=text("terminal_at IS NULL")),
    postgresql_with={"fillfactor": 70},
)  # fmt: skip
"""The lifecycle. *_seq: sequence of the group's message in that log; request_seq: number of the request.

ends: which ends were ever seen, see store.rows.End; exactly one bit belongs there.
Everything but the key may be NULL for a while, since the logs are read side by side.
"""

group_count = Table(
    "group_count", metadata,
    txt("run_id", key=True), txt("purpose", key=True), txt("domain", key=True), _state(key=True),
    txt("drop_reason", key=True), big("groups"),
)  # fmt: skip
"""Rollup of prompt_group, kept by a trigger."""

generation = Table(
    "generation", metadata,
    txt("run_id", key=True), txt("group_id", key=True), integer("generation_index", key=True),
    integer("prompt_tokens", null=True), integer("tokens"), raw("token_ids"),
    integer("logprob_count"), txt("finish_reason"), integer("version_min"), integer("version_max"),
    json("version_spans"), txt("text"), raw("text_sha256"), real("logprob_mean", null=True),
    json("sampling", null=True), big("seed"), txt("engine"), txt("worker"), when("started_at"),
    when("finished_at"), cleaned(),
    check("generation", "finish", one_of("finish_reason", "stop", "length")),
    check("generation", "counts", "tokens >= 0 AND logprob_count BETWEEN 0 AND tokens"),
    check("generation", "versions", "0 <= version_min AND version_min <= version_max"),
    check("generation", "logprob", finite("logprob_mean")),
)  # fmt: skip
"""token_ids: int32, little-endian. logprob_count: how many log-probabilities are finite.

version_spans: [[version, first, end], ...].
"""

verdict = Table(
    "verdict", metadata,
    txt("run_id", key=True), txt("group_id", key=True), integer("generation_index", key=True),
    big("event_id", key=True),
    txt("verifier"), txt("verifier_version"), txt("status"), real("score", null=True),
    txt("extracted", null=True), txt("answer_key", null=True), integer("answer_class", null=True),
    json("components"), txt("detail"), real("latency_ms", null=True), when("verified_at"), cleaned(),
    Index("ix_verdict_revised", "run_id", "event_id", postgresql_where=text("event_id > 0")),
    check("verdict", "status", one_of(
        "status", "ok", "no_answer", "timeout", "verifier_error", "ungradable")),
    check("verdict", "score",
          "score BETWEEN 0 AND 1 AND (status IN ('ok', 'no_answer')) OR score IS NULL"),
)  # fmt: skip
"""event_id 0: the run's own verdict; otherwise the LEDGER sequence of a revision. The highest counts."""

group_decision = Table(
    "group_decision", metadata,
    txt("run_id", key=True), txt("group_id", key=True), flag("shadow", key=True),
    txt("policy", key=True), txt("policy_version"), txt("outcome"), txt("reason"),
    integer("window_no", null=True), big("verified_seq"), big("cut", null=True), big("event_id"),
    when("decided_at"), cleaned(),
    Index("ix_group_decision_shadow", "run_id", "event_id", postgresql_where=text("event_id > 0")),
    check("group_decision", "outcome", one_of("outcome", "admitted", "dropped", "failed")),
)  # fmt: skip
"""What a policy decided about a group as a whole; about each answer: annotation.

event_id: LEDGER sequence of a shadow decision; 0 for the live one.
"""

annotation = Table(
    "annotation", metadata,
    txt("run_id", key=True), txt("group_id", key=True), integer("generation_index", key=True),
    txt("policy", key=True), txt("policy_version"), flag("shadow", key=True),
    integer("window_no", null=True), txt("target", null=True), txt("target_source"),
    flag("admitted"), real("reward", null=True), real("advantage"), real("weight", null=True),
    raw("token_weights", null=True), txt("reason"), json("signals"), cleaned(),
    check("annotation", "finite",
          f"(reward IS NULL OR ({finite('reward')})) AND {finite('advantage')} "
          "AND (weight IS NULL OR (weight >= 0 AND weight < 'Infinity'))"),
)  # fmt: skip
"""token_weights: float32, little-endian, one per token."""
