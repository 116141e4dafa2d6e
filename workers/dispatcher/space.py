"""Whether the logs can hold what a run needs at once; refused before anything starts. Pure."""

from broker.errors import BadConfiguration
from broker.settings import RunSettings

REQUEST_BYTES = 3_072
"""Envelope, keys, counters and headers of one message."""
ROW_BYTES = 1_536
"""Of one answer: seed, times and spans, verdict with extracted text, annotation with signals."""
TOKEN_BYTES = 14
"""Of one token of an answer: id 4, log-probability 4, text 6."""
PROMPT_TOKEN_BYTES = 16
"""Of one token of a prompt: id 4, text 6 in the sample and 6 as rendered."""


def largest_group_bytes(run: RunSettings, *, prompt_tokens: int, answer_tokens: int) -> int:
    """Size of a GroupAnnotated whose prompt and answers are all as long as they may be.

    REQUEST_BYTES + prompt_tokens * PROMPT_TOKEN_BYTES
    + group_size * (ROW_BYTES + answer_tokens * TOKEN_BYTES).
    Bodies that leave their message for the object store are counted as if they had not.
    """
    answers = run.group_size * (ROW_BYTES + answer_tokens * TOKEN_BYTES)
    return REQUEST_BYTES + prompt_tokens * PROMPT_TOKEN_BYTES + answers


def required_log_bytes(
    run: RunSettings,
    *,
    prompt_tokens: int,
    answer_tokens: int,
    checkpoint_every: int,
    snapshot_every: int,
) -> int:
    """What a log must hold: nothing of a checkpoint interval may go, nor of what is under way.

    (interval + pace + 2) * groups_per_step largest groups: a redo needs the groups of every step since
    the checkpoint, and a policy those of every window since its snapshot; pace + 1 steps' worth are
    under way; one more is being trained.
    """
    steps = _interval(run, checkpoint_every, snapshot_every) + run.pace_steps + 2
    group = largest_group_bytes(run, prompt_tokens=prompt_tokens, answer_tokens=answer_tokens)
    return steps * run.groups_per_step * group


def _interval(run: RunSettings, checkpoint_every: int, snapshot_every: int) -> int:
    """Steps whose groups must stay, the longer interval; no run has more than all of its own."""
    return min(max(checkpoint_every, snapshot_every), run.steps)


def refuse_small_logs(
    run: RunSettings,
    *,
    prompt_tokens: int,
    answer_tokens: int,
    checkpoint_every: int,
    snapshot_every: int,
    log_bytes: int,
) -> None:
    """Raises BadConfiguration with the arithmetic when `nats.log_bytes` is too small."""
    needed = required_log_bytes(
        run,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        checkpoint_every=checkpoint_every,
        snapshot_every=snapshot_every,
    )
    if needed <= log_bytes:
        return
    group = largest_group_bytes(run, prompt_tokens=prompt_tokens, answer_tokens=answer_tokens)
    steps = _interval(run, checkpoint_every, snapshot_every)
    what = (
        f"checkpoint_every {steps}"
        if checkpoint_every >= snapshot_every
        else f"{steps} between snapshots of a policy with a memory"
    )
    raise BadConfiguration(
        f"nats.log_bytes = {log_bytes:,}: expected at least {needed:,}, for "
        f"({what} + pace {run.pace_steps} + 2) steps of "
        f"{run.groups_per_step} groups of up to {group:,} bytes; "
        "lower learner.checkpoint_every or run.pace, or raise nats.log_bytes"
    )
