"""Whether a message of answers is one that a rollout worker may send. Pure.

A worker that is wrong about what it sends must not be judged, let alone trained on: its group fails
with the reason, and is replaced.
"""

from broker.errors import Poison
from broker.messages import Generation, GroupGenerated, GroupRequested


def refuse_mistaken(event: GroupGenerated, asked: GroupRequested) -> None:
    """Raises Poison with what is wrong; answers that are merely bad pass. asked: the request in the log.

    Gold and verifier are those of the request, and a worker may not choose them.
    """
    request = event.request
    if request is not None and request.group != asked.group:
        raise Poison(
            f"answers of group {event.group.group_id} to the request of {request.group.group_id}"
        )
    if request is not None and request != asked:
        raise Poison(
            f"answers to a request that is not the stored one: other {_other(request, asked)}"
        )
    if event.status == "failed" or request is None:
        return
    indices = sorted(generation.index for generation in event.generations)
    if indices != list(range(request.size)):
        raise Poison(f"answers {indices}; expected 0 to {request.size - 1}")
    for generation in event.generations:
        _refuse_answer(generation, request)


def _other(request: GroupRequested, asked: GroupRequested) -> str:
    """Names of the fields that differ."""
    fields = GroupRequested.model_fields
    return ", ".join(n for n in fields if getattr(request, n) != getattr(asked, n))


def _refuse_answer(generation: Generation, request: GroupRequested) -> None:
    for name, array, dtype in (
        ("token_ids", generation.token_ids, "<i4"),
        ("logprobs", generation.logprobs, "<f4"),
    ):
        if array.dtype != dtype or len(array.shape) != 1:
            raise Poison(
                f"answer {generation.index}: {name} is {array.dtype} of shape {array.shape}; "
                f"expected {dtype} of shape (T,)"
            )
    if len(generation.token_ids) > request.sampling.max_tokens:
        raise Poison(
            f"answer {generation.index} has {len(generation.token_ids)} tokens; "
            f"at most {request.sampling.max_tokens} were asked for"
        )
    if generation.version_min < request.requested_version:
        raise Poison(
            f"answer {generation.index} is of weights version {generation.version_min}; "
            f"{request.requested_version} or newer was asked for"
        )
