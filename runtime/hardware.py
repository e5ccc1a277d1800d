"""What a worker runs on, and whether a profile was measured on the like of it."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from slob_opt.errors import InputError
from slob_opt.problem.measured import HardwareFingerprint, MeasuredProfile

_CPUINFO = Path("/proc/cpuinfo")


def find_hardware(torch_device: str, *, threads: int | None = None) -> HardwareFingerprint:
    """Return what a device of this machine is.

    Parameters
    ----------
    torch_device
        As torch names it: ``cpu``, ``cuda:0``.
    threads
        Threads that a worker on the CPU computes with; ``None`` takes those of this process.

    Raises
    ------
    InputError
        When there is no such device here.
    """
    try:
        device = torch.device(torch_device)
    except RuntimeError as error:
        raise InputError(f"device {torch_device!r} is not known to torch; expected cpu or cuda:0") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"device {torch_device!r}: this machine has no CUDA device that torch can use")
        index = device.index or 0
        if index >= torch.cuda.device_count():
            raise InputError(f"device {torch_device!r}: this machine has {torch.cuda.device_count()} CUDA devices")
        return HardwareFingerprint("cuda", torch.cuda.get_device_name(index), 1, torch.__version__)
    if device.type != "cpu":
        raise InputError(f"device {torch_device!r}: expected cpu or cuda")
    return HardwareFingerprint("cpu", cpu_name(), threads or torch.get_num_threads(), torch.__version__)


def cpu_name() -> str:
    """Return the processor's name as the system tells it, with its family and model where they are told."""
    found: dict[str, str] = {}
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.split("\n\n", maxsplit=1)[0].splitlines():
        key, _, value = line.partition(":")
        found[key.strip()] = value.strip()
    name = found.get("model name") or platform.processor() or platform.machine() or "unknown processor"
    numbers = [
        f"{key} {found[label]}" for key, label in (("family", "cpu family"), ("model", "model")) if label in found
    ]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def check_hardware(profile: MeasuredProfile, found: HardwareFingerprint) -> None:
    """Raise InputError, naming what differs, unless a profile was measured on such hardware."""
    difference = profile.hardware.difference(found)
    if difference is not None:
        raise InputError(
            f"the profile of {profile.hardware.name} doesn't hold here: {difference}; calibrate on this machine"
        )
