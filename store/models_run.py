"""Tables of runs, of the recorder's own position, and of what is asked: datasets, samples, prompts."""

from sqlalchemy import Column, Index, Table, text

from store.columns import (
    big,
    check,
    cleaned,
    finite,
    flag,
    integer,
    json,
    metadata,
    one_of,
    raw,
    real,
    txt,
    when,
    wide,
)

run = Table(
    "run", metadata,
    txt("run_id", key=True), txt("name", null=True), json("config", null=True),
    txt("config_sha256", null=True), wide("seed"), json("versions", null=True),
    when("started_at", null=True), when("ended_at", null=True), txt("status"), txt("reason"),
    big("last_event_id"), cleaned(),
    check("run", "status", one_of(
        "status", "running", "draining", "finished", "stopped", "no_progress", "failed")),
)  # fmt: skip
"""config without secrets; last_event_id: the newest of RunStarted, RunDraining, RunEnded seen."""

run_end = Table(
    "run_end", metadata,
    txt("run_id", key=True), big("event_id", key=True), txt("status"), txt("reason"),
    json("last_sequences"), when("ended_at"),
    flag("closed"), cleaned(),
)  # fmt: skip
"""Each RunEnded; closed once all logs were read to last_sequences and open groups were dropped."""

recorder_cursor = Table(
    "recorder_cursor", metadata,
    txt("run_id", key=True), txt("log", key=True), big("sequence"),
    Column("dead_lettered", big("dead_lettered").type, nullable=False, server_default=text("0")),
    when("updated_at"),
)  # fmt: skip
"""Where the recorder stands; written in the transaction of the rows."""

recorder_gap = Table(
    "recorder_gap", metadata,
    txt("run_id", key=True), txt("log", key=True), big("first_seq", key=True), big("last_seq"),
    big("floor"), when("noticed_at"),
)  # fmt: skip
"""Sequences of a log that were purged before they were recorded: rows of this run are missing.

floor: requests up to it had ended, and theirs are the messages that may be missing.
"""

dataset = Table(
    "dataset", metadata,
    txt("dataset", key=True), txt("dataset_version", key=True), big("rows", null=True),
    txt("manifest_sha256", null=True), when("imported_at", null=True),
)  # fmt: skip

sample = Table(
    "sample", metadata,
    txt("sample_key", key=True), txt("dataset"), txt("dataset_version"), big("item_index"),
    txt("domain"), real("difficulty", null=True), txt("prompt"), flag("prompt_is_chat"),
    raw("prompt_sha256"), txt("target", null=True), flag("labeled"), json("verifier"),
    json("options"), cleaned(),
    check("sample", "difficulty", finite("difficulty")),
    Index("ix_sample_prompt", "prompt_sha256"),
    Index("ix_sample_dataset", "dataset", "dataset_version", "item_index"),
)  # fmt: skip
"""A chat prompt is stored as the JSON text of its turns. First seen wins: a key names one content."""

rendered_prompt = Table(
    "rendered_prompt", metadata,
    raw("prompt_sha256", key=True), txt("text"), raw("token_ids"), integer("tokens"), cleaned(),
)  # fmt: skip
"""sha256 over the token ids' bytes (int32, little-endian) and the text; once however often asked."""
