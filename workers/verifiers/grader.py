"""The inside of a grader process: reads calls, judges answers one after the other, tells what it found.

It may be killed at any moment. What was told stands; the rest is judged again elsewhere, so findings are sent
at least every few milliseconds and nothing here is remembered between calls but built verifiers.
"""

import os
import resource
import socket
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from functools import lru_cache
from typing import cast

from broker import frames
from broker.errors import BadConfiguration
from broker.messages import Json
from broker.specs import is_code
from workers.verifiers import registry
from workers.verifiers.classes import Answer, classify
from workers.verifiers.protocol import (
    DETAIL_CHARS,
    EXTRACTED_CHARS,
    Finding,
    Ungradable,
    Verifier,
    checked,
    judged,
    verifier_error,
)

OUT_OF_MEMORY = 70
"""Exit code of a grader that reached its address-space limit."""
FLUSH_S = 0.002


def serve(connection: socket.socket, memory_bytes: int) -> None:
    """Answer calls until the other end closes."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        while (call := frames.read(connection)) is not None:
            told = bytearray()
            for frame in _answer(call):
                told += frames.pack({**frame, "cpu_s": time.process_time()})
                if not frame.get("more"):
                    connection.sendall(told)
                    told.clear()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except ConnectionError:
        # Whoever asked is gone, and nobody else can.
        os._exit(0)


def _answer(call: frames.Frame) -> Iterator[frames.Frame]:
    """The frames that answer one call: ready, gold, findings, done; or error alone.

    No ready where the owner knows it, and no gold in the quick lane.
    """
    spec = cast("Mapping[str, object]", call["spec"])
    item = cast(Json, call["item"])
    try:
        verifier = registry.build(spec)
        registry.refuse_large(verifier, resource.getrlimit(resource.RLIMIT_AS)[0])
        with registry.users_code("prepare"):
            verifier.prepare()
        if call.get("quick"):
            # Every group begins there; what is judged alone afterwards need not be asked again.
            with registry.users_code("ready"):
                verifier.ready()
        name, version = registry.identity(spec)
        _judge_canaries(str(registry.normalised(spec)["name"]))
    except BadConfiguration as error:
        yield {"at": "error", "detail": str(error)}
        return
    alone_s = verifier.alone_s()
    if not call.get("known"):
        # A file of the user's own may change, and its version with it.
        stays = not is_code(str(registry.normalised(spec)["name"]))
        yield {
            "at": "ready", "verifier": name, "version": version, "alone_s": alone_s, "stays": stays,
        }  # fmt: skip
    answers = cast("list[tuple[int, str]]", call.get("answers", []))
    keyed = [Answer(*pair) for pair in cast("list[tuple[int, str, str]]", call.get("classify", []))]
    # In the quick lane a slow verifier judges nothing: the pool asks again, an answer at a time.
    if answers and not (call.get("quick") and alone_s > 0):
        target = cast("str | None", call["target"])
        keyed = yield from _judge(verifier, target, item, answers, quick=bool(call.get("quick")))
    found = classify(verifier, keyed, item, seconds=cast(float, call["seconds"]))
    yield {"at": "done", "classes": found.of, "unresolved": list(found.unresolved)}


@lru_cache(maxsize=64)
def _judge_canaries(name: str) -> None:
    """Known pairs of a verifier of the user's own; the built-in ones are judged when the worker starts."""
    kind = registry.verifier_class(name)
    if not is_code(name) or not kind.canaries:
        return
    verifier = registry.build(name)
    for canary in kind.canaries:
        finding = judge(verifier, canary.response, canary.target, {})
        if finding.score != canary.score:
            raise BadConfiguration(
                f"verifier {name}: canary {canary!r} scored {finding.score} ({finding.detail})"
            )


def _judge(
    verifier: Verifier,
    target: str | None,
    item: Json,
    answers: list[tuple[int, str]],
    *,
    quick: bool,
) -> Generator[frames.Frame, None, list[Answer]]:
    """Tells the findings; returns the answers that have a key."""
    target, problem = _checked_target(verifier, target, item)
    if not quick:
        yield {"at": "gold"}  # nobody is at fault in the quick lane
    told = time.monotonic()
    findings: list[tuple[int, dict[str, object], float]] = []
    keyed: list[Answer] = []
    for index, text in answers:
        started = time.monotonic()
        finding = judge(verifier, text, target, item) if problem is None else problem
        if problem is not None and problem.status == "ungradable":
            answer = judge(verifier, text, None, item)
            finding = Finding(
                "ungradable", None, answer.extracted, answer.answer_key, problem.detail
            )
        now = time.monotonic()
        fields = _short(finding)
        findings.append((index, fields, (now - started) * 1e3))
        if finding.extracted is not None and finding.answer_key is not None:
            keyed.append(
                Answer(index, cast(str, fields["extracted"]), cast(str, fields["answer_key"]))
            )
        if now - told > FLUSH_S:
            yield {"at": "found", "findings": findings}
            findings, told = [], now
    # Sent with what follows, unless comparing answers may take long, or kill.
    at_once = quick and type(verifier).same is Verifier.same
    yield {"at": "found", "findings": findings, "more": at_once}
    return keyed


def _checked_target(
    verifier: Verifier, target: str | None, item: Json
) -> tuple[str | None, Finding | None]:
    """The target, and what to say of every answer when it cannot be used."""
    try:
        verifier.check(target, item)
    except Ungradable as error:
        return target, Finding("ungradable", None, detail=str(error))
    except (MemoryError, RecursionError) as error:
        return target, Finding("ungradable", None, detail=f"target: {type(error).__name__}")
    except Exception as error:
        # The verifier may be the user's: its bug must show as its error, never as a wrong answer.
        return target, verifier_error(f"check: {type(error).__name__}: {error}")
    return target, None


def judge(verifier: Verifier, text: str, target: str | None, item: Json) -> Finding:
    """One answer's finding, whatever the verifier does but hang or die. MemoryError goes up."""
    try:
        return checked(verifier.grade(text, target, item))
    except Ungradable as error:
        return Finding("ungradable", None, detail=str(error))
    except MemoryError:
        raise
    except RecursionError:
        return judged(False, None, None, "nested too deep")
    except (Exception, SystemExit) as error:
        # As above. MemoryError goes up: the process is no longer to be trusted.
        return verifier_error(f"{type(error).__name__}: {error}")


def _short(finding: Finding) -> dict[str, object]:
    """A finding's fields as they travel, long texts cut."""
    return {
        "status": finding.status,
        "score": finding.score,
        "extracted": finding.extracted and finding.extracted[:EXTRACTED_CHARS],
        "answer_key": finding.answer_key and finding.answer_key[:EXTRACTED_CHARS],
        "detail": finding.detail[:DETAIL_CHARS],
        "components": dict(finding.components),
    }


def start_in_fork(connection: socket.socket, memory_bytes: int) -> None:
    """Become a grader after a fork: never returns."""
    try:
        serve(connection, memory_bytes)
    except BaseException as error:
        # Nothing may escape into the nursery's own code after the fork.
        print(f"grader: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)
