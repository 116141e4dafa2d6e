"""Grading a file of answers, for `sluice grade`: the same graders and limits as in a run.

A line is `{id, gold, response}` and may carry `verifier`, `options`, `tests` (or `test_cases`) and `names`. A
wrong answer is a score of 0; a line that cannot be read raises with its number.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import cast

from broker.errors import BadConfiguration
from broker.messages import Json
from broker.specs import code_in
from workers.verifiers import registry
from workers.verifiers.pool import Pool
from workers.verifiers.protocol import Finding
from workers.verifiers.registry import Specification
from workers.verifiers.settings import VerifierSettings
from workers.verifiers.together import together

AT_ONCE = 64


@dataclass(frozen=True)
class Line:
    """One answer to grade."""

    number: int
    id: object
    gold: str | None
    response: str
    spec: Json
    item: Json


def grade_file(
    path: Path, verifier: Specification, settings: VerifierSettings | None = None
) -> Iterator[dict[str, object]]:
    """Yields `{id, score, status, extracted, answer_key, detail}` for each line, in order.

    verifier: for lines that name none. Raises BadConfiguration for an unknown verifier or option, a file that
    cannot be opened, and a line that cannot be read, with its number.
    """
    settings = settings or VerifierSettings(pool=2)
    with registry.users_code("ready"):
        registry.build(verifier).ready()
    lines = read_lines(path, verifier)
    with asyncio.Runner() as runner:
        pool = Pool(
            size=settings.pool, deadline_s=settings.deadline_s, memory_bytes=settings.memory_bytes
        )
        runner.run(pool.__aenter__())
        try:
            while batch := list(islice(lines, AT_ONCE)):
                yield from runner.run(_graded(pool, batch))
        finally:
            runner.run(pool.__aexit__(None, None, None))


async def _graded(pool: Pool, batch: list[Line]) -> list[dict[str, object]]:
    return await together(_one(pool, line) for line in batch)


async def _one(pool: Pool, line: Line) -> dict[str, object]:
    graded = await pool.grade(line.spec, line.gold, {0: line.response}, line.item)
    if graded.broken:
        raise BadConfiguration(f"line {line.number}: {graded.broken}")
    return _row(line, graded.findings[0])


def _row(line: Line, finding: Finding) -> dict[str, object]:
    return {
        "id": line.id,
        "score": finding.score,
        "status": finding.status,
        "extracted": finding.extracted,
        "answer_key": finding.answer_key,
        "detail": finding.detail,
    }


def read_lines(path: Path, verifier: Specification) -> Iterator[Line]:
    """The lines of a file; blank ones are skipped."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise BadConfiguration(f"{path}: cannot be opened: {error.strerror}") from error
    with file:
        for number, raw in enumerate(file, 1):
            if raw.strip():
                yield read_line(raw, number, str(path), verifier)


def read_line(raw: bytes, number: int, origin: str, verifier: Specification) -> Line:
    """One line; BadConfiguration names the line and the field."""
    where = f"{origin}:{number}"
    try:
        row = json.loads(raw.decode("utf-8"))
    except ValueError as error:
        raise BadConfiguration(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise BadConfiguration(f"{where}: expected an object, got {type(row).__name__}")
    response = row.get("response")
    if not isinstance(response, str):
        raise BadConfiguration(f"{where}: response: expected text, got {response!r:.80}")
    own = row.get("verifier", verifier)
    if not isinstance(own, str | dict):
        raise BadConfiguration(f"{where}: verifier: expected a name or an object, got {own!r:.80}")
    code = code_in(row.get("verifier"))
    if code is not None:
        raise BadConfiguration(
            f"{where}: verifier {code!r:.80} is code: only --verifier may name that"
        )
    try:
        registry.build(cast(Specification, own))
    except BadConfiguration as error:
        raise BadConfiguration(f"{where}: {error}") from error
    return Line(
        number,
        row.get("id", number),
        _gold(row.get("gold")),
        _sound(response),
        registry.normalised(cast(Specification, own)),
        _item(row),
    )


def _gold(value: object) -> str | None:
    """Text as it is; other JSON in its JSON spelling."""
    if value is None:
        return None
    return _sound(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _item(row: Mapping[str, object]) -> Json:
    options = row.get("options", {})
    item: Json = dict(options) if isinstance(options, dict) else {"options": options}
    tests = row.get("tests", row.get("test_cases"))
    named = {"tests": tests, "names": row.get("names")}
    return item | {name: value for name, value in named.items() if value is not None}


def _sound(text: str) -> str:
    """JSON can spell lone surrogates, which no message may hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
