"""The role of an executor: it holds the stages of all pipelines and computes steps on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtime.steps import Event, StepInput

Progress = Callable[[str], None]
"""Takes a line that tells what is being done."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """Makes a device look like a slower or smaller one; results say so.

    Attributes
    ----------
    slowdown
        The device takes so many times the measured time of its own computation, from 1.
    memory_bytes
        What weights and KV may take; ``None`` leaves the device's own.
    """

    slowdown: float = 1.0
    memory_bytes: int | None = None

    @property
    def is_real(self) -> bool:
        """Whether nothing is emulated."""
        return self.slowdown == 1.0 and self.memory_bytes is None

    @property
    def words(self) -> str:
        """What is emulated, in words; empty when nothing is."""
        parts = [] if self.slowdown == 1.0 else [f"{self.slowdown:g}x slower"]
        if self.memory_bytes is not None:
            parts.append(f"{self.memory_bytes / 2**20:.0f} MiB")
        return ", ".join(parts)


NOT_EMULATED = Emulation()
"""A device as it is."""


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """Layers ``[first, end)`` of a pipeline, on one device.

    Attributes
    ----------
    pipeline, stage, num_stages
        Which stage of which pipeline, and how many that has.
    first, end
        Layers.
    """

    pipeline: int
    stage: int
    num_stages: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker: a device and all stages that it holds, of whichever pipelines.

    Attributes
    ----------
    name
        Of the device in the plan, as ``node0/1``.
    torch_device
        As torch names it: ``cpu``, ``cuda:0``.
    slices
        What it holds.
    emulation
        What it pretends to be.
    host, port
        Where a worker on another machine listens; ``None`` and 0 start a process on this one.
    """

    name: str
    torch_device: str
    slices: tuple[SliceSpec, ...]
    emulation: Emulation = NOT_EMULATED
    host: str | None = None
    port: int = 0


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """What an executor is to hold.

    Attributes
    ----------
    folder
        Model in Hugging Face format: ``config.json`` and safetensors.
    dtype
        ``float32``, ``bfloat16`` or ``float16``.
    block_tokens
        Tokens of a KV block.
    max_rows
        Most sequences in KV of a pipeline.
    num_blocks
        KV blocks of every pipeline; ``None`` derives them from the memory that the weights leave.
    max_step_tokens
        Most tokens of one step, for which room is left beside weights and KV.
    workers
        One for each device.
    deadline_s
        A step that takes longer is taken for a hung worker, seconds.
    is_padded
        Whether steps are computed as rectangles.
    """

    folder: Path
    dtype: str
    block_tokens: int
    max_rows: int
    num_blocks: int | None
    max_step_tokens: int
    workers: tuple[WorkerSpec, ...]
    deadline_s: float = 120.0
    is_padded: bool = False

    @property
    def num_pipelines(self) -> int:
        """Pipelines that workers hold stages of."""
        return 1 + max(piece.pipeline for worker in self.workers for piece in worker.slices)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a pipeline can hold, as found when it was loaded.

    Attributes
    ----------
    kv_blocks
        Blocks of its pool, the fewest over its stages.
    weight_bytes
        Of each stage.
    """

    kv_blocks: int
    weight_bytes: tuple[int, ...]


class Executor(Protocol):
    """Computes steps on the stages of all pipelines.

    Steps of one pipeline pass its stages in the order in which they were submitted. Not for several threads, but for
    :meth:`wake`.
    """

    def start(self, progress: Progress) -> Sequence[Capacity]:
        """Load all stages; return what each pipeline can hold.

        Raises
        ------
        InputError
            When the model's files are wrong, or a stage doesn't fit its device.
        EngineError
            When a worker dies or doesn't answer.
        """
        ...

    def submit(self, step: StepInput) -> None:
        """Send a step to the first stage of its pipeline; doesn't wait for it."""
        ...

    def poll(self, timeout_s: float | None) -> list[Event]:
        """Return what has happened since, at least one thing unless `timeout_s` is over or someone calls `wake`."""
        ...

    def wake(self) -> None:
        """Make a :meth:`poll` that waits return; may be called from any thread."""
        ...

    def drop(self, pipeline: int) -> None:
        """Forget a pipeline that was lost: its steps, and where its other workers still live, their slices."""
        ...

    def extend(self, workers: Sequence[WorkerSpec], progress: Progress) -> Sequence[Capacity]:
        """Load further pipelines on workers that live, or on new ones; return what each of them can hold.

        Their numbers follow those that are known. Raises as :meth:`start`; what was loaded before stays.
        """
        ...

    def close(self) -> None:
        """Stop all workers and free everything; may be called twice."""
        ...
