"""Where a result comes from: commit, versions, machine, time."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

VERSIONED = (
    "slob",
    "numpy",
    "scipy",
    "pydantic",
    "pulp",
    "highspy",
    "ortools",
    "mlflow",
    "matplotlib",
    "typer",
    "torch",
)
"""Distributions whose versions are recorded with every run."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a run.

    Attributes
    ----------
    name
        Host name.
    system
        Operating system and architecture.
    processor
        Name of the processor; ``None`` when the system does not tell.
    num_cores
        Logical cores that this process may use.
    memory_bytes
        Main memory, bytes; ``None`` when psutil is missing.
    """

    name: str
    system: str
    processor: str | None
    num_cores: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """What is needed to repeat a run.

    Attributes
    ----------
    commit
        Git commit of the source, ``-dirty`` appended when files differ; ``None`` outside a checkout.
    versions
        (distribution, version) of what is installed out of :data:`VERSIONED`.
    python
        Version of the interpreter.
    machine
        Where it ran.
    created
        Start of the run, ISO 8601 in UTC.
    """

    commit: str | None
    versions: tuple[tuple[str, str], ...]
    python: str
    machine: Machine
    created: str

    def as_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        machine = self.machine
        return {
            "commit": self.commit,
            "versions": dict(self.versions),
            "python": self.python,
            "machine": {
                "name": machine.name,
                "system": machine.system,
                "processor": machine.processor,
                "num_cores": machine.num_cores,
                "memory_bytes": machine.memory_bytes,
            },
            "created": self.created,
        }

    def as_tags(self) -> dict[str, str]:
        """Return short texts for a tracking store."""
        tags = {f"version.{name}": version for name, version in self.versions}
        tags |= {
            "commit": self.commit or "unknown",
            "version.python": self.python,
            "machine": self.machine.name,
            "machine.system": self.machine.system,
            "machine.cores": str(self.machine.num_cores),
        }
        if self.machine.processor:
            tags["machine.processor"] = self.machine.processor
        if self.machine.memory_bytes:
            tags["machine.memory_gib"] = f"{self.machine.memory_bytes / 2**30:.1f}"
        return tags


def source_commit(folder: Path | None = None) -> str | None:
    """Return the git commit of a folder (default: this source), ``-dirty`` appended; ``None`` when there is none."""
    root = folder or Path(__file__).resolve().parent.parent
    command = ["git", "-c", "safe.directory=*", "-C", str(root)]
    try:
        head = subprocess.run([*command, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        changed = subprocess.run(
            [*command, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")


def installed_version(distribution: str) -> str | None:
    """Return the installed version of a distribution without importing it; ``None`` when it is missing."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def _memory_bytes() -> int | None:
    try:
        import psutil
    except ModuleNotFoundError:
        return None
    return int(psutil.virtual_memory().total)


def read_machine() -> Machine:
    """Return what is known of this machine."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else (os.cpu_count() or 1)
    return Machine(platform.node(), f"{platform.system()} {platform.machine()}", _processor(), cores, _memory_bytes())


def collect(now: datetime | None = None) -> Provenance:
    """Return commit, versions and machine; runs git once, imports nothing heavy.

    Parameters
    ----------
    now
        Time to record; ``None`` takes the clock.
    """
    found = ((name, installed_version(name)) for name in VERSIONED)
    return Provenance(
        commit=source_commit(),
        versions=tuple((name, version) for name, version in found if version is not None),
        python=".".join(map(str, sys.version_info[:3])),
        machine=read_machine(),
        created=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
    )


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text, hex."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
