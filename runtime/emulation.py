"""Making a device look like a slower or smaller one, by what it really took."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType

import psutil
import torch

from runtime.executor import Emulation, WorkerSpec
from slob_opt.errors import InputError

HOST_SHARE = 0.5
"""Share of the memory that is free on the host which a CPU device without a cap of its own may take. Chosen."""

CUDA_SHARE = 0.92
"""Share of a GPU's free memory, as planners take it."""

SPIN_S = 200e-6
"""The end of a wait, which is spun so that it's precise."""


class Slowdown:
    """Makes a block of work take `slowdown` times what it took, as a context manager.

    The wait ends at start + slowdown x the measured time of the work: the thread's CPU time on a CPU, so that what
    others do on a shared core isn't multiplied, and the time between two events on a GPU.

    Parameters
    ----------
    device
        Where the work runs.
    emulation
        Only its slowdown matters.

    Attributes
    ----------
    start_ns, end_ns
        ``time.monotonic_ns`` around the block, the wait included; set when it's over.
    """

    def __init__(self, device: torch.device, emulation: Emulation) -> None:
        self._factor, self._is_cuda = emulation.slowdown, device.type == "cuda"
        self._device = device
        self.start_ns = self.end_ns = 0

    def __enter__(self) -> Slowdown:
        """Begin to measure."""
        self.start_ns = time.monotonic_ns()
        if self._is_cuda:
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self._events[0].record()
        self._cpu_ns = time.thread_time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the rest of the emulated time."""
        if self._is_cuda:
            self._events[1].record()
            self._events[1].synchronize()
            worked_ns = int(self._events[0].elapsed_time(self._events[1]) * 1e6)
        else:
            worked_ns = time.thread_time_ns() - self._cpu_ns
        if self._factor > 1.0 and kind is None:
            wait_until(self.start_ns + int(self._factor * worked_ns))
        self.end_ns = time.monotonic_ns()


def wait_until(at_ns: int) -> None:
    """Return when ``time.monotonic_ns`` has reached a time; most of the wait sleeps, its end spins."""
    left_s = (at_ns - time.monotonic_ns()) / 1e9
    if left_s > SPIN_S:
        time.sleep(left_s - SPIN_S)
    while time.monotonic_ns() < at_ns:
        pass


def room_bytes(device: torch.device, emulation: Emulation, *, already_used: int) -> int:
    """Return the bytes that a device has for weights, KV and activations together.

    Parameters
    ----------
    device
        As torch names it.
    emulation
        Its memory caps the device's own.
    already_used
        Of our own, which the device reports as taken.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        own = int(free * CUDA_SHARE) + already_used
    else:
        own = int(psutil.virtual_memory().available * HOST_SHARE) + already_used
    return own if emulation.memory_bytes is None else min(own, emulation.memory_bytes)


def check_cores(workers: Sequence[WorkerSpec], cores: int | None = None) -> None:
    """Refuse CPU workers whose emulated speeds need more cores than there are.

    A worker that is slowed down s times computes 1 / s of the time; half a core is left to the engine.

    Raises
    ------
    InputError
        With the numbers.
    """
    own = len(os.sched_getaffinity(0)) if cores is None else cores
    local = [worker for worker in workers if worker.torch_device == "cpu" and worker.host is None]
    if all(worker.emulation.is_real for worker in local):
        return
    need = sum(1 / worker.emulation.slowdown for worker in local)
    if need > own - 0.5 + 1e-9:
        raise InputError(
            f"{len(local)} emulated CPU workers compute {need:.3g} cores' worth at a time, this machine has {own} and"
            " half a one is the engine's: slow them down more, or the emulation isn't what it says"
        )
