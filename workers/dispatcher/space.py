"""Whether the logs can hold what a run needs at once; refused before anything starts. Pure."""

from collections.abc import Collection

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
SIGNAL_BYTES = 4
"""Of one value of a signal."""


def signal_bytes(signals: Collection[str], *, answer_tokens: int, hidden_values: int) -> int:
    """What the rollout records of one answer for the policy: `rollout.signals`.

    hidden_values: of a model's hidden states at one token, (layers + 1) * hidden size.
    """
    per_token = len(set(signals) - {"hidden"})
    return SIGNAL_BYTES * (answer_tokens * per_token + hidden_values * ("hidden" in signals))


def largest_group_bytes(
    run: RunSettings, *, prompt_tokens: int, answer_tokens: int, answer_signal_bytes: int = 0
) -> int:
    """Size of a GroupAnnotated whose prompt and answers are all as long as they may be.

    REQUEST_BYTES + prompt_tokens * PROMPT_TOKEN_BYTES
    + group_size * (ROW_BYTES + answer_tokens * TOKEN_BYTES + answer_signal_bytes).
    Bodies that leave their message for the object store are counted as if they had not.
    """
    answers = run.group_size * (ROW_BYTES + answer_tokens * TOKEN_BYTES + answer_signal_bytes)
    return REQUEST_BYTES + prompt_tokens * PROMPT_TOKEN_BYTES + answers


def required_log_bytes(
    run: RunSettings,
    *,
    prompt_tokens: int,
    answer_tokens: int,
    checkpoint_every: int,
    snapshot_every: int,
    answer_signal_bytes: int = 0,
) -> int:
    """What a log must hold: nothing of a checkpoint interval may go, nor of what is under way.

    (interval + pace + 2) * groups_per_step largest groups: a redo needs the groups of every step since
    the checkpoint, and a policy those of every window since its snapshot; pace + 1 steps' worth are
    under way; one more is being trained.
    """
    steps = _interval(run, checkpoint_every, snapshot_every) + run.pace_steps + 2
    group = largest_group_bytes(
        run,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        answer_signal_bytes=answer_signal_bytes,
    )
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
    answer_signal_bytes: int = 0,
) -> None:
    """Raises BadConfiguration with the arithmetic when `nats.log_bytes` is too small."""
    needed = required_log_bytes(
        run,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        checkpoint_every=checkpoint_every,
        snapshot_every=snapshot_every,
        answer_signal_bytes=answer_signal_bytes,
    )
    if needed <= log_bytes:
        return
    group = largest_group_bytes(
        run,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        answer_signal_bytes=answer_signal_bytes,
    )
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
