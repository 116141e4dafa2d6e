"""Model weights as they travel: one file per version, named by version and digest, never half written.

Through the run's object store (`object:NAME`) or as files in a shared directory (`file:PATH`).
"""

import asyncio
import hashlib
import os
import re
import time
import uuid
from pathlib import Path
from typing import Literal

from broker.bus import Bus
from broker.errors import TooLong
from broker.messages import WeightsPublished

Kind = Literal["object", "directory"]

OBJECTS_PREFIX = "weights/"
TRIED_EVERY_S = 0.5
UNFINISHED_S = 3600.0
"""A file under its temporary name this old was left by a process that is dead."""
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{64})\.safetensors")


def file_name(version: int, digest: str) -> str:
    return f"{version:06d}-{digest}.safetensors"


async def publish(
    bus: Bus, kind: Kind, directory: Path, version: int, digest: str, data: bytes
) -> str:
    """Store the bytes (sha256 `digest`), whole or not at all; returns the uri to publish.

    Repeating it after a crash is harmless. `directory` is used by kind "directory" only.
    """
    name = file_name(version, digest)
    if kind == "object":
        await bus.put_object(OBJECTS_PREFIX + name, data)
        return f"object:{OBJECTS_PREFIX}{name}"
    path = (directory / name).resolve()
    await asyncio.to_thread(_write_whole, path, data)
    return f"file:{path}"


async def fetch(bus: Bus, published: WeightsPublished, cache_dir: Path, wait_s: float) -> Path:
    """The file of a published version, its digest checked; TooLong after `wait_s`.

    An object is copied into `cache_dir`; a file in the shared directory is used in place.
    """
    scheme, _, name = published.uri.partition(":")
    if scheme not in ("object", "file"):
        raise ValueError(f"weights uri {published.uri!r}: expected object:NAME or file:PATH")
    cached = cache_dir / file_name(published.version, published.digest)
    path = Path(name) if scheme == "file" else cached
    problem = "not there"
    try:
        async with asyncio.timeout(wait_s):
            while True:
                if await asyncio.to_thread(_has_digest, path, published.digest):
                    return path
                if scheme == "object":
                    problem = await _copy_object(bus, name, cached, published.digest, wait_s)
                    if not problem:
                        return cached
                elif path.exists():
                    problem = "digest differs"
                await asyncio.sleep(TRIED_EVERY_S)
    except TimeoutError:
        raise TooLong(
            f"weights version {published.version} ({published.uri}): {problem} after {wait_s:g} s"
        ) from None


async def _copy_object(bus: Bus, name: str, path: Path, digest: str, wait_s: float) -> str:
    """What is wrong; nothing when `path` now holds the object."""
    data = await bus.get_object(name, wait_s=wait_s)
    if data is None:
        return "not there"
    if await asyncio.to_thread(_sha256, data) != digest:
        return "digest differs"
    await asyncio.to_thread(_write_whole, path, data)
    return ""


async def delete(bus: Bus, uri: str) -> None:
    """Remove what a uri names; no error when it is gone already."""
    scheme, _, name = uri.partition(":")
    if scheme == "object":
        await bus.delete_object(name)
    elif scheme == "file":
        await asyncio.to_thread(Path(name).unlink, missing_ok=True)
    else:
        raise ValueError(f"weights uri {uri!r}: expected object:NAME or file:PATH")


async def stored(bus: Bus, directory: Path) -> dict[str, tuple[int, str]]:
    """What lies in either place, published or not: uri -> version and digest.

    Files that a dead process left half written are deleted on the way.
    """
    uris = [f"object:{name}" for name in await bus.list_objects(OBJECTS_PREFIX)]
    uris += [f"file:{path}" for path in await asyncio.to_thread(_files, directory)]
    found = {}
    for uri in uris:
        match = _NAME.fullmatch(uri.rpartition("/")[2])
        if match:
            found[uri] = int(match[1]), match[2]
    return found


def _files(directory: Path) -> list[Path]:
    for path in directory.glob(".*.part"):
        if time.time() - path.stat().st_mtime > UNFINISHED_S:
            path.unlink(missing_ok=True)
    return sorted(path.resolve() for path in directory.glob("*.safetensors"))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _has_digest(path: Path, digest: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest


def _write_whole(path: Path, data: bytes) -> None:
    """Under a temporary name first, on disk before it gets its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
