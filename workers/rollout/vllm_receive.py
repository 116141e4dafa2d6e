"""The engine's side of a weight transfer straight from the learner's memory.

The engine asks for a version that was announced. What can be refused is refused before anything changes, and
then the stored weights are taken; a transfer that breaks later leaves an engine that is to be ended.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broker.conversation import Conversation, CutOff
from broker.offer import Offer
from workers.rollout.engine import EngineError, Untaken

CONNECT_LIMIT_S = 5.0
TURN_LIMIT_S = 300.0
"""The learner serves one engine after the other."""
CALL_LIMIT_S = 120.0

Listed = Sequence[Sequence[Any]]
"""Name, type, shape and fingerprint of each tensor."""


class Caller(Protocol):
    """What of `AsyncLLM` is needed here."""

    async def collective_rpc(
        self, method: str, *, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> list[Any]: ...


class Incoming:
    """One transfer, once the learner has agreed to it."""

    def __init__(self, conversation: Conversation, listed: Listed) -> None:
        self._conversation = conversation
        self._sums = {name: int(told) for name, _, _, told in listed}

    @classmethod
    async def ask(
        cls, offer: Offer, version: int, digest: str, *, ranks: int,
        misfit: Callable[[Listed], str | None],
    ) -> "Incoming":  # fmt: skip
        """Raises Untaken. misfit: what of the tensors does not fit the model."""
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                streams = await asyncio.open_connection(offer.host, offer.port)
        except (OSError, TimeoutError) as error:
            raise Untaken(f"{offer.host}:{offer.port}: {error or 'no answer'}") from error
        conversation = Conversation(*streams)
        try:
            return cls(
                conversation, await _agreed(conversation, offer, version, digest, ranks, misfit)
            )
        except BaseException:
            await conversation.close()
            raise

    async def into(self, llm: Caller) -> None:
        """Do what the learner's side of vLLM asks, to the end. Raises Untaken or EngineError."""
        changed = False
        try:
            while True:
                asked = await self._conversation.hear(CALL_LIMIT_S)
                what, info = asked.get("do"), asked.get("info")
                changed = changed or what != "init"
                await self._do(llm, what, info)
                await self._conversation.say({"done": True})
                if what == "finish":
                    break
        except Exception as error:  # whatever vLLM's processes raise, too
            told = f"{type(error).__name__}: {error}"
            await self._tell(told)
            if changed:
                raise EngineError(f"a transfer broke: {told}") from error
            raise Untaken(told) from error

    async def close(self) -> None:
        await self._conversation.close()

    async def _do(self, llm: Caller, what: object, info: Any) -> None:
        match what:
            case "init":
                await llm.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": info})
            case "start":
                await llm.collective_rpc("start_weight_update")
                await llm.collective_rpc("watch_weights")
            case "update":
                await llm.collective_rpc("take_chunk", args=(info,))
            case "finish":
                await llm.collective_rpc("finish_weight_update")
                self._check(await llm.collective_rpc("watched_weights"))
                await llm.collective_rpc("shutdown_weight_transfer_engine")
            case _:
                raise CutOff(f"the learner asks for {what!r}")

    def _check(self, arrived: list[dict[str, str]]) -> None:
        """Each GPU has seen the whole model; what it saw is what was offered."""
        for rank, sums in enumerate(arrived):
            odd = sorted(
                name
                for name in self._sums.keys() | sums.keys()
                if str(self._sums.get(name)) != sums.get(name)
            )
            if odd:
                raise CutOff(
                    f"{len(odd)} tensors arrived differently at GPU {rank}, such as {odd[0]}"
                )

    async def _tell(self, error: str) -> None:
        try:
            await self._conversation.say({"error": error})
        except CutOff:
            return  # it may be what broke


async def _agreed(
    conversation: Conversation, offer: Offer, version: int, digest: str, ranks: int,
    misfit: Callable[[Listed], str | None],
) -> Listed:  # fmt: skip
    """What is offered, once both sides have agreed."""
    hello = {"token": offer.token, "version": version, "digest": digest, "ranks": ranks}
    try:
        await conversation.say(hello)
        answer = await conversation.hear(TURN_LIMIT_S)
        if "offered" not in answer:
            raise Untaken(str(answer.get("refused", answer)))
        if problem := misfit(answer["offered"]):
            await conversation.say({"error": problem})
            raise Untaken(problem)
        await conversation.say({"done": True})
    except CutOff as error:
        raise Untaken(str(error)) from error
    return answer["offered"]
