"""Checkpoints on disk: safetensors for tensors, msgpack for the rest, verified when loaded, no pickle.

A checkpoint appears under its name only when it is complete and on disk: written under a temporary
name, synced, renamed. Layout of `step-00000020-v00000019/`: model.safetensors, optimizer.safetensors,
state.msgpack (which holds the digests of the other two).
"""

import hashlib
import os
import shutil
import uuid
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import msgpack

from broker.errors import SluiceError

SCHEMA = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.msgpack"
TEMPORARY = ".tmp-"


class BadCheckpoint(SluiceError):
    """A checkpoint that is missing, incomplete or changed."""


@dataclass(frozen=True)
class CheckpointState:
    """What a checkpoint says beside its tensors."""

    step: int
    version: int
    cursor: int
    """Sequence in ANNOTATED up to which everything is trained into it."""
    rng: bytes
    """torch's CPU generator."""
    config_sha256: str
    """Of the settings that decide how a step is computed."""
    world_size: int
    threads: int
    libraries: dict[str, str]
    model_sha256: str
    optimizer_sha256: str


@dataclass(frozen=True)
class Checkpoint:
    state: CheckpointState
    model: bytes
    optimizer: bytes


def folder_name(step: int, version: int) -> str:
    """Both, since a step whose redo came out differently is checkpointed again as a newer version."""
    return f"step-{step:08d}-v{version:08d}"


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Store a checkpoint under `folder`, durably; replaces one of the same name. Returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / folder_name(checkpoint.state.step, checkpoint.state.version)
    if _holds(final, checkpoint.state):
        return final
    # A name of its own: a learner that was replaced may still be writing the same checkpoint.
    temporary = folder / f"{TEMPORARY}{final.name}-{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    state = {"schema": SCHEMA, **asdict(checkpoint.state)}
    packed = bytes(msgpack.packb(state, use_bin_type=True) or b"")
    for name, data in (
        (MODEL, checkpoint.model),
        (OPTIMIZER, checkpoint.optimizer),
        (STATE, packed),
    ):
        _write_synced(temporary / name, data)
    _sync_folder(temporary)
    if final.exists():
        # Damaged, or left by an earlier life with other settings that never announced it.
        shutil.rmtree(final)
    temporary.rename(final)
    _sync_folder(folder)
    return final


def read(path: Path) -> Checkpoint:
    """Load and verify a checkpoint. Raises BadCheckpoint saying what is wrong with it."""
    try:
        fields = msgpack.unpackb((path / STATE).read_bytes(), raw=False)
        model = (path / MODEL).read_bytes()
        optimizer = (path / OPTIMIZER).read_bytes()
    except (OSError, ValueError, msgpack.UnpackException) as error:
        raise BadCheckpoint(f"checkpoint {path}: {error}") from error
    if not isinstance(fields, dict) or fields.pop("schema", None) != SCHEMA:
        raise BadCheckpoint(f"checkpoint {path}: expected schema {SCHEMA}")
    try:
        state = CheckpointState(**fields)
    except TypeError as error:
        raise BadCheckpoint(f"checkpoint {path}: {error}") from error
    for name, data, expected in (
        (MODEL, model, state.model_sha256),
        (OPTIMIZER, optimizer, state.optimizer_sha256),
    ):
        found = hashlib.sha256(data).hexdigest()
        if found != expected:
            raise BadCheckpoint(
                f"checkpoint {path}: {name} has sha256 {found}; expected {expected}"
            )
    return Checkpoint(state, model, optimizer)


def _holds(path: Path, state: CheckpointState) -> bool:
    """The same checkpoint is there already and verifies: an earlier life wrote it and died."""
    try:
        return path.exists() and read(path).state == state
    except BadCheckpoint:
        return False


def remove_others(folder: Path, keep: Collection[str]) -> list[str]:
    """Delete every checkpoint and every unfinished one but those named; the names deleted."""
    removed = sorted(
        path.name
        for path in folder.glob("*")
        if path.is_dir() and path.name not in keep and path.name.startswith(("step-", TEMPORARY))
    )
    for name in removed:
        shutil.rmtree(folder / name)
    return removed


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
