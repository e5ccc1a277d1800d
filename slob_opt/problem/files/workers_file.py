"""Reading a workers file: on which real device each device of a plan runs, and what is emulated of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from slob_opt.errors import InputError
from slob_opt.problem.files.checking import Size, StrictSchema, VersionedSchema, check
from slob_opt.problem.files.documents import read_document


class EmulateSchema(StrictSchema):
    """What a device pretends to be: ``{slowdown: 3, memory: 600MiB}``."""

    slowdown: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    memory: Size | None = None


class WorkerSchema(StrictSchema):
    """A worker: ``{device: box/0, torch: "cuda:0"}``, or ``{device: far/0, connect: "10.0.0.2:7070", torch: cpu}``."""

    device: str = Field(min_length=1)
    torch: str = Field(default="cpu", pattern=r"^(cpu|cuda(:[0-9]+)?|mps)$")
    connect: str | None = None
    emulate: EmulateSchema = EmulateSchema()


class WorkersSchema(VersionedSchema):
    """A whole workers file; devices that it doesn't name run on the CPU of this machine."""

    workers: list[WorkerSchema] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """Where the worker of a device runs.

    Attributes
    ----------
    device
        Its name in the plan.
    torch
        As torch names the real device.
    slowdown, memory_bytes
        What is emulated; 1 and ``None`` are nothing.
    host, port
        Of a worker on another machine; ``None`` and 0 are this one.
    """

    device: str
    torch: str
    slowdown: float
    memory_bytes: int | None
    host: str | None
    port: int


def load_workers(path: str | Path) -> tuple[WorkerEntry, ...]:
    """Return the workers in a YAML or JSON file; an empty file gives none.

    Raises
    ------
    InputError
        With file, key, what was found and what was expected.
    """
    file = Path(path)
    schema = check(WorkersSchema, read_document(file), file=str(file))
    found: list[WorkerEntry] = []
    for index, item in enumerate(schema.workers):
        key = f"workers[{index}]"
        if any(item.device == other.device for other in found):
            raise InputError(f"device {item.device!r} stands twice", file=str(file), key=f"{key}.device")
        host, port = (None, 0) if item.connect is None else _address(item.connect, str(file), f"{key}.connect")
        found.append(WorkerEntry(item.device, item.torch, item.emulate.slowdown, item.emulate.memory, host, port))
    return tuple(found)


def _address(text: str, file: str, key: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"found {text!r}, expected host:port, as 10.0.0.2:7070", file=file, key=key)
    return host, int(port)
