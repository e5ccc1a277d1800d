"""Measuring the stages of a model on a device: what :mod:`runtime.calibration_fit` fits a profile to.

A stage is measured as a worker computes it: the step unpacked, its layers, and on the last stage the choice of tokens.
On a CPU the time of the computing thread counts, since emulated devices go by it as well, and whatever else runs on
the machine stays out of it; on a CUDA device the time between two events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from runtime.calibration_fit import ProfileFit, StageMeasurement, fit_profile
from runtime.calibration_shapes import (
    FULL,
    QUICK,
    ShapeLimits,
    Slice,
    blocks_of,
    calibration_shapes,
    calibration_slices,
    step_of,
)
from runtime.executor import Emulation, SliceSpec
from runtime.hardware import find_hardware
from runtime.held_slices import HeldSlices
from runtime.sampling import sample
from runtime.steps import StepInput
from slob_opt.cost.batch import BatchShape
from slob_opt.errors import InputError
from slob_opt.problem.measured import DTYPE_BITS, ModelFingerprint, with_dtype
from slob_opt.problem.model import ModelSpec

SHORT_S, MOST_RUNS = 0.004, 16
"""A stage that takes less is run several times in a row, up to so often: clocks and caches settle. Chosen."""


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """How a device is measured.

    Attributes
    ----------
    limits
        How large steps become.
    rounds
        How often every stage and shape is measured, in another order each time, after a round that doesn't count.
    threads
        Threads of a worker on the CPU; emulation needs one.
    block_tokens
        Tokens of a KV block.
    max_layers
        Most layers to hold at once; ``None`` holds the model.
    seed
        Of orders, tokens and activations.
    """

    limits: ShapeLimits = FULL
    rounds: int = 5
    threads: int = 1
    block_tokens: int = 16
    max_layers: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "threads", "block_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, expected at least 1")

    @classmethod
    def quick(cls) -> CalibrationOptions:
        """Return options that take seconds with a small model."""
        return cls(limits=QUICK, rounds=3)


@dataclass(frozen=True, slots=True)
class CalibrationProgress:
    """How far a calibration is.

    Attributes
    ----------
    done, total
        Measurements.
    left_s
        Seconds that the rest will take; ``None`` when that can't be said yet.
    what
        What is being done.
    """

    done: int
    total: int
    left_s: float | None
    what: str


Told = Callable[[CalibrationProgress], None]
Run = tuple[float, float]
"""Time of a run by the clock, and on the wall, seconds."""


class _Stages:
    """Slices of a model on a device, computed as a worker computes them, and a clock beside.

    Parameters
    ----------
    slices
        Layers of each stage; every stage is alone in a pipeline of its own, as long as the model.
    """

    def __init__(
        self, folder: Path, slices: Sequence[Slice], torch_device: str, dtype: str, options: CalibrationOptions,
        tell: Told,
    ) -> None:  # fmt: skip
        self.slices, self.device, self.dtype = slices, torch.device(torch_device), getattr(torch, dtype)
        self._held = HeldSlices(
            torch_device, torch_device, Emulation(), folder, dtype, options.block_tokens, options.limits.max_kv_tokens
        )
        self._pieces = [SliceSpec(index, 0, 1, first, end) for index, (first, end) in enumerate(slices)]
        self._held.load(self._pieces, lambda line: tell(CalibrationProgress(0, 0, None, line)))
        self._number = 0

    def make_caches(self, num_blocks: int) -> None:
        """Take KV for each stage; raises InputError when it doesn't fit."""
        rooms = self._held.block_room(self._pieces)
        if min(rooms) < num_blocks:
            raise InputError(
                f"the device has room for {min(rooms)} KV blocks a stage beside the weights, {num_blocks} are needed;"
                " measure less with --quick, or hold fewer layers"
            )
        self._held.make_caches([(piece, num_blocks) for piece in self._pieces])

    @torch.inference_mode()
    def run(self, index: int, step: StepInput, hidden: torch.Tensor | None, is_last: bool, clock: str) -> Run:
        """Compute a step on a stage; return its time by the clock and on the wall, seconds."""
        self._number += 1  # a worker unpacks every step anew
        step = replace(step, step=self._number, pipeline=index)
        if clock == "cuda":
            torch.cuda.synchronize(self.device)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            wall = time.perf_counter()
            begin.record()
            self._compute(index, step, hidden, is_last)
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1e3, time.perf_counter() - wall
        wall, own = time.perf_counter(), time.thread_time()
        self._compute(index, step, hidden, is_last)
        own_s, wall_s = time.thread_time() - own, time.perf_counter() - wall
        return (own_s if clock == "cpu" else wall_s), wall_s

    def _compute(self, index: int, step: StepInput, hidden: torch.Tensor | None, is_last: bool) -> None:
        found = self._held.compute(index, 0, step, hidden)
        if is_last:
            sample(found, step.sampling)


def calibrate(
    folder: Path,
    spec: ModelSpec,
    torch_device: str,
    dtype: str,
    options: CalibrationOptions | None = None,
    tell: Told | None = None,
) -> ProfileFit:
    """Return the profile of a device for a model, measured now.

    Sets the number of torch's threads in this process meanwhile. Nothing else should run on the device.

    Parameters
    ----------
    folder
        The model in Hugging Face format.
    spec
        The same model as planners know it; its bits are set to those of `dtype`.
    torch_device
        As torch names it.
    dtype
        One of :data:`~slob_opt.problem.measured.DTYPE_BITS`.
    options
        ``None`` takes the defaults.
    tell
        Called with the progress, often.

    Raises
    ------
    InputError
        When the model, the device or the options are wrong, or the layers don't fit.
    """
    options, tell = options or CalibrationOptions(), tell or _nobody
    if dtype not in DTYPE_BITS:
        raise InputError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPE_BITS)}")
    spec = with_dtype(spec, dtype)
    ModelFingerprint.of(spec, dtype)  # refuses what a profile can't tell before anything is loaded
    hardware = find_hardware(torch_device, threads=options.threads)
    is_cuda = hardware.kind == "cuda"
    clock = "cuda" if is_cuda else "cpu" if options.threads == 1 else "wall"
    shapes = calibration_shapes(options.limits.within(spec.max_position))
    num_blocks = max(blocks_of(shape, options.block_tokens) for shape in shapes)
    slices = calibration_slices(spec.num_layers, options.max_layers)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        stages = _Stages(folder, slices, torch_device, dtype, options, tell)
        stages.make_caches(num_blocks)
        found = _measure(stages, spec, shapes, clock, options, tell)
    finally:
        torch.set_num_threads(threads_before)
    framework_bytes = _framework_bytes(torch_device) if is_cuda else 0
    tell(CalibrationProgress(len(found), len(found), 0.0, "fitting"))
    return fit_profile(spec, dtype, hardware, found, clock=clock, framework_bytes=framework_bytes)


def _nobody(progress: CalibrationProgress) -> None:
    del progress


def _measure(
    stages: _Stages, spec: ModelSpec, shapes: Sequence[BatchShape], clock: str, options: CalibrationOptions, tell: Told
) -> list[StageMeasurement]:
    """Return a measurement for each stage and shape: medians over rounds in which all of them take turns.

    Whatever slows the machine for a while meets all shapes alike.
    """
    rng = np.random.default_rng(options.seed)
    steps = [step_of(shape, options.block_tokens, spec.vocab_size, seed=options.seed) for shape in shapes]
    most = max(step.tokens.size for step in steps)
    drawn = torch.randn(most, spec.hidden_size, generator=torch.Generator().manual_seed(options.seed))
    activations = drawn.to(stages.device, stages.dtype)
    samples: list[list[list[Run]]] = [[[] for _ in shapes] for _ in stages.slices]
    cost_s = np.zeros((len(stages.slices), len(shapes)))
    total, done = (options.rounds + 1) * cost_s.size, 0
    for number in range(options.rounds + 1):
        for at in rng.permutation(len(shapes)).tolist():
            for index, (first, end) in enumerate(stages.slices):
                hidden = None if first == 0 else activations[: steps[at].tokens.size]
                began = time.perf_counter()
                runs: list[Run] = []
                while not runs or (len(runs) < MOST_RUNS and sum(wall for _, wall in runs) < SHORT_S):
                    runs.append(stages.run(index, steps[at], hidden, end == spec.num_layers, clock))
                cost_s[index, at] = time.perf_counter() - began
                if number:
                    samples[index][at] += runs
                done += 1
            left_s = float(cost_s.mean()) * (total - done) if number else None
            what = f"round {number} of {options.rounds}" if number else "warming up"
            tell(CalibrationProgress(done, total, left_s, what))
    return [
        _median(piece, shape, samples[index][at])
        for at, shape in enumerate(shapes)
        for index, piece in enumerate(stages.slices)
    ]


def _median(piece: Slice, shape: BatchShape, runs: list[Run]) -> StageMeasurement:
    own, wall = np.array(runs).T
    low, middle, high = np.quantile(own, [0.25, 0.5, 0.75])
    spread = float((high - low) / middle) if middle > 0 else 0.0
    return StageMeasurement(*piece, shape, float(middle), float(np.median(wall)), own.size, spread)


def _framework_bytes(torch_device: str) -> int:
    """Bytes of a CUDA device that are in use beside torch's own tensors and spare blocks: context, kernels."""
    free, total = torch.cuda.mem_get_info(torch_device)
    return max(0, total - free - torch.cuda.memory_reserved(torch_device))
