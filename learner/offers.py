"""The learner's newest weights, offered to engines straight from its memory.

Every version is stored and announced as ever; an offer only spares an engine the way through a file. An
engine asks for the version that was announced, one is served at a time, and what joins the two lives for
one transfer: a peer that dies costs a transfer, never a step.
"""

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
import torch
from transformers import PreTrainedModel

from broker.conversation import Conversation, CutOff
from broker.fingerprint import fingerprint
from broker.offer import Offer
from learner.model import named_weights

HELLO_LIMIT_S, HELLO_BYTES = 10.0, 4096
"""Of the first words of somebody who has still to show the token."""
SEND_LIMIT_S = 120.0
"""Of one transfer, and of each answer within it."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Offered:
    """One version, in the type that engines compute in; nothing changes it while a step is taken."""

    version: int
    digest: str
    tensors: dict[str, torch.Tensor]
    sums: dict[str, int]
    """Fingerprints."""

    @classmethod
    def of(
        cls, model: PreTrainedModel, version: int, digest: str, dtype: torch.dtype
    ) -> "Offered | None":
        """A copy of the model's weights; None when they are not finite."""
        tensors = {
            name: value.detach().to(dtype, copy=True).contiguous()
            for name, value in named_weights(model).items()
        }
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
            return None
        return cls(version, digest, tensors, {k: fingerprint(v) for k, v in tensors.items()})

    def listed(self) -> list[list[Any]]:
        """Name, type, shape and fingerprint of each tensor, as text and numbers."""
        return [
            [
                name,
                str(tensor.dtype).removeprefix("torch."),
                list(tensor.shape),
                str(self.sums[name]),
            ]
            for name, tensor in self.tensors.items()
        ]


class Client:
    """One engine, as vLLM's trainer side speaks to it (its `VLLMWeightSyncClient`), from any thread."""

    def __init__(self, conversation: Conversation, limit_s: float) -> None:
        self._conversation = conversation
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._ask("init", init_info)

    def start_weight_update(self) -> None:
        self._ask("start", {})

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._ask("update", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        # The label is the engine's own affair: it knows the version that it has asked for.
        self._ask("finish", {})

    def _ask(self, what: str, info: dict[str, Any]) -> None:
        """Raises CutOff, also for what the engine refuses."""
        asked = asyncio.run_coroutine_threadsafe(self._asked(what, info), self._loop)
        asked.result(self._limit_s + 1.0)

    async def _asked(self, what: str, info: dict[str, Any]) -> None:
        await self._conversation.say({"do": what, "info": info})
        answer = await self._conversation.hear(self._limit_s)
        if "done" not in answer:
            raise CutOff(f"{what}: {answer.get('error', answer)}")


class Sending(Protocol):
    """One transfer to one engine."""

    def run(self) -> None:
        """Blocks to its end, in a thread of its own. Raises whatever vLLM raises."""
        ...

    def abort(self) -> None:
        """Let go of a peer that does not answer; from another thread."""
        ...


Send = Callable[[Offered, Client, int], Sending]
"""The weights, who gets them, and how many GPUs the engine has."""


class Offers:
    """Serves engines that ask; at most one version is kept."""

    def __init__(self, send: Send, *, dtype: torch.dtype, limit_s: float = SEND_LIMIT_S) -> None:
        self._send = send
        self._dtype = dtype
        self._limit_s = limit_s
        self._token = secrets.token_hex(16)
        self._offered: Offered | None = None
        self._one_at_a_time = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._conversations: set[asyncio.Task[None]] = set()

    async def open(self, host: str, *, told: str) -> Offer:
        """Listen on an address of this machine; told: the name under which others reach it."""
        self._server = await asyncio.start_server(self._met, host)
        port = self._server.sockets[0].getsockname()[1]
        return Offer(host=told, port=port, token=self._token)

    def put(self, version: int, digest: str, model: PreTrainedModel) -> None:
        """Offer the model's weights in the place of those before; from the thread that trains."""
        self._offered = None  # so that its memory is there for the next
        self._offered = Offered.of(model, version, digest, self._dtype)

    def listed(self) -> list[list[Any]]:
        """Of what is offered at the moment; see `Offered.listed`."""
        return self._offered.listed() if self._offered is not None else []

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._conversations.add(task)
        conversation = Conversation(reader, writer)
        try:
            await self._serve(conversation)
        except CutOff as error:
            log.warning("weights_not_sent", reason=str(error))
        except asyncio.CancelledError:
            # Only `close` does so; asyncio's own server would report it as an error.
            pass
        finally:
            self._conversations.discard(task)
            await conversation.close()

    async def _serve(self, conversation: Conversation) -> None:
        asked = await conversation.hear(HELLO_LIMIT_S, most=HELLO_BYTES)
        async with self._one_at_a_time:
            offered = self._offered
            if reason := self._refusal(asked, offered):
                await conversation.say({"refused": reason})
                return
            assert offered is not None
            await conversation.say({"offered": offered.listed()})
            answer = await conversation.hear(self._limit_s)
            if "done" not in answer:
                raise CutOff(f"version {offered.version}: {answer.get('error', answer)}")
            await self._sent(
                self._send(offered, Client(conversation, self._limit_s), asked["ranks"])
            )
            log.info("weights_sent", version=offered.version, ranks=asked["ranks"])

    def _refusal(self, asked: dict[str, Any], offered: Offered | None) -> str:
        if not secrets.compare_digest(str(asked.get("token")).encode(), self._token.encode()):
            return "not the token of this offer"
        if not isinstance(asked.get("ranks"), int) or asked["ranks"] < 1:
            return f"ranks {asked.get('ranks')!r}; expected how many GPUs the engine has"
        if offered is None:
            return "no weights are offered at the moment"
        if (asked.get("version"), asked.get("digest")) != (offered.version, offered.digest):
            return f"version {offered.version} is offered, not {asked.get('version')}"
        return ""

    async def _sent(self, sending: Sending) -> None:
        """Raises CutOff when it fails or is not done within the limit."""
        try:
            async with asyncio.timeout(self._limit_s):
                await in_a_thread(sending.run)
        except TimeoutError:
            await in_a_thread(sending.abort)
            raise CutOff(f"not sent within {self._limit_s:g} s") from None
        except CutOff:
            await in_a_thread(sending.abort)
            raise
        except Exception as error:  # whatever vLLM, NCCL or CUDA may raise
            await in_a_thread(sending.abort)
            raise CutOff(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        conversations = list(self._conversations)
        for task in conversations:
            task.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)


def in_a_thread(function: Callable[[], None]) -> "asyncio.Future[None]":
    """In one that the process does not wait for: without its peer, a collective may never return."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if not future.done():
            future.set_result(None) if error is None else future.set_exception(error)

    def run() -> None:
        found: Exception | None = None
        try:
            function()
        except Exception as error:
            found = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return future


def own_address() -> str:
    """How other machines most likely reach this one; who cannot takes the stored weights."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
