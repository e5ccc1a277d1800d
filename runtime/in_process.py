"""An executor without processes: every stage in the caller's own, one step after the other."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

from runtime.emulation import Slowdown
from runtime.executor import Capacity, ExecutorSpec, Progress, SliceSpec, WorkerSpec
from runtime.held_slices import HeldSlices
from runtime.sampling import sample
from runtime.steps import Event, StageFree, StepInput, StepOutput, WorkerLost
from slob_opt.errors import EngineError

_log = logging.getLogger(__name__)


class InProcessExecutor:
    """Computes each step in :meth:`poll`, through all stages of its pipeline.

    For tests, and for a model that is whole on one device: nothing overlaps.

    Parameters
    ----------
    spec
        What it holds.
    """

    def __init__(self, spec: ExecutorSpec) -> None:
        self.spec = spec
        self._held: dict[str, HeldSlices] = {}
        self._stages: dict[int, list[tuple[HeldSlices, SliceSpec]]] = {}
        self._steps: deque[StepInput] = deque()
        self._woken = threading.Event()

    def start(self, progress: Progress) -> Sequence[Capacity]:
        """Load all stages."""
        return self.extend(self.spec.workers, progress)

    def extend(self, workers: Sequence[WorkerSpec], progress: Progress) -> Sequence[Capacity]:
        """Load further pipelines."""
        spec, found = self.spec, {}
        for worker in workers:
            held = self._held.get(worker.name)
            if held is None:
                held = self._held[worker.name] = HeldSlices(
                    worker.name, worker.torch_device, worker.emulation, spec.folder, spec.dtype, spec.block_tokens,
                    spec.max_step_tokens,
                )  # fmt: skip
            held.load(worker.slices, progress)
            for piece, room in zip(worker.slices, held.block_room(worker.slices), strict=True):
                found[piece.pipeline, piece.stage] = (held, piece, room)
        capacities = []
        for pipeline in sorted({pipeline for pipeline, _ in found}):
            stages = [found[key] for key in sorted(found) if key[0] == pipeline]
            blocks = min(room for _, _, room in stages)
            if spec.num_blocks is not None:
                blocks = min(blocks, spec.num_blocks)
            for held, piece, _ in stages:
                held.make_caches([(piece, blocks)])
            progress(f"pipeline {pipeline}: {blocks} KV blocks of {spec.block_tokens} tokens")
            self._stages[pipeline] = [(held, piece) for held, piece, _ in stages]
            capacities.append(Capacity(blocks, tuple(held.weight_bytes(piece) for held, piece, _ in stages)))
        return capacities

    def submit(self, step: StepInput) -> None:
        """Put a step in the queue."""
        if step.pipeline not in self._stages:
            raise EngineError(f"pipeline {step.pipeline} isn't loaded")
        self._steps.append(step)

    def poll(self, timeout_s: float | None) -> list[Event]:
        """Compute the next step; without one wait for :meth:`wake`."""
        if not self._steps:
            self._woken.wait(timeout_s)
            self._woken.clear()
            return []
        step = self._steps.popleft()
        try:
            return self._computed(step)
        except Exception as error:  # noqa: BLE001 - the worker's edge: the engine is told, and the log
            _log.exception("a step failed")
            reason = f"a step failed: {type(error).__name__}: {error}"
        stages = self._stages[step.pipeline]
        for held, _ in stages:
            held.recover()
        return [WorkerLost(stages[0][0].name, (step.pipeline,), reason)]

    def _computed(self, step: StepInput) -> list[Event]:
        hidden = None
        starts, ends = [], []
        for held, piece in self._stages[step.pipeline]:
            with Slowdown(held.device, held.emulation) as timer:
                hidden = held.compute(step.pipeline, piece.stage, step, hidden)
                is_last = piece.stage == piece.num_stages - 1
                if is_last:
                    tokens, logprobs = sample(hidden, step.sampling)
            starts.append(timer.start_ns)
            ends.append(timer.end_ns)
        output = StepOutput(
            step.pipeline, step.lane, step.step, tokens, logprobs, tuple(starts), tuple(ends)
        )  # fmt: skip
        return [StageFree(step.pipeline, step.step, ends[0]), output]

    def wake(self) -> None:
        """Make a waiting :meth:`poll` return."""
        self._woken.set()

    def drop(self, pipeline: int) -> None:
        """Forget a pipeline."""
        for held, _ in self._stages.pop(pipeline, []):
            held.drop(pipeline)
        self._steps = deque(step for step in self._steps if step.pipeline != pipeline)

    def close(self) -> None:
        """Free everything."""
        self._steps.clear()
        self._stages.clear()
        self._held.clear()
        self.wake()
