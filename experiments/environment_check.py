"""What `slob doctor` looks at: interpreter, packages, solvers, devices, shadowing."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments.package_origin import common_folder, package_folder
from experiments.provenance import installed_version
from slob_opt.errors import ShadowedPackageError

NEEDED = ("numpy", "scipy", "pydantic", "pyyaml")
EXTRAS = {
    "exact": ("pulp", "highspy", "ortools"),
    "experiments": ("mlflow", "matplotlib", "typer", "rich", "psutil"),
    "runtime": ("torch", "transformers", "safetensors"),
}
"""Distributions by extra, as in pyproject.toml."""

State = Literal["ok", "absent", "broken"]
MIN_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes
    ----------
    name
        What was looked at.
    state
        ``"ok"``, ``"absent"`` (optional and not there) or ``"broken"``.
    detail
        Version, path or what to do.
    """

    name: str
    state: State
    detail: str


def check_python(version: tuple[int, int, int] | None = None) -> Check:
    """Return whether the interpreter is recent enough."""
    found = version or (sys.version_info.major, sys.version_info.minor, sys.version_info.micro)
    text = ".".join(map(str, found))
    if found[:2] < MIN_PYTHON:
        return Check("python", "broken", f"{text}; slob needs 3.11 or newer")
    return Check("python", "ok", f"{text} at {sys.executable}")


def check_packages() -> tuple[Check, ...]:
    """Return one finding per package, by installed version and without importing it."""
    checks = []
    for name in NEEDED:
        version = installed_version(name)
        checks.append(Check(name, "ok" if version else "broken", version or f"needed: pip install {name}"))
    for extra, names in EXTRAS.items():
        for name in names:
            version = installed_version(name)
            advice = f"optional: pip install 'slob[{extra}]'"
            checks.append(Check(name, "ok" if version else "absent", version or advice))
    return tuple(checks)


SOLVERS = {
    "highs": "import highspy; name = 'HiGHS ' + highspy.Highs().version()",
    "cbc": "import pulp; name = 'CBC of PuLP' if pulp.PULP_CBC_CMD(msg=False).available() else 1 / 0",
    "cp-sat": "from ortools.sat.python import cp_model; cp_model.CpModel(); name = 'CP-SAT of OR-Tools'",
}
"""Programs that start each solver and set its name; each runs in a process of its own."""


def check_solvers(solvers: Mapping[str, str] | None = None) -> tuple[Check, ...]:
    """Return whether each solver starts; a package that is there and can't be loaded is broken.

    A foreign library may print past Python or take its process down, hence one child process each.

    Parameters
    ----------
    solvers
        Programs by name; ``None`` takes :data:`SOLVERS`.
    """
    return tuple(_check_solver(name, code) for name, code in (SOLVERS if solvers is None else solvers).items())


def _check_solver(name: str, code: str) -> Check:
    """Run one program and read its name off the last line."""
    program = [sys.executable, "-c", f"{code}\nprint(flush=True); print('@', name)"]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return Check(f"solver {name}", "broken", "did not start within 60 s")
    if done.returncode == 0:
        return Check(f"solver {name}", "ok", done.stdout.rpartition("@ ")[2].strip())
    last = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
    if last.startswith("ModuleNotFoundError"):
        return Check(f"solver {name}", "absent", f"{last.partition(': ')[2]}: pip install 'slob[exact]'")
    return Check(f"solver {name}", "broken", last)


def check_shadowing(find: Callable[[str], Path | None] = package_folder) -> Check:
    """Return whether our four packages come from one parent folder; `find` is as in :func:`common_folder`."""
    try:
        return Check("packages", "ok", f"all four from {common_folder(find)}")
    except ShadowedPackageError as error:
        return Check("packages", "broken", str(error))


def parse_nvidia_smi(text: str) -> tuple[tuple[str, str, str, str], ...]:
    """Return (PCI bus id, UUID, name, memory) of each card from ``nvidia-smi --format=csv,noheader``, in PCI order."""
    rows = [tuple(cell.strip() for cell in row) for row in csv.reader(io.StringIO(text)) if len(row) == 4]
    return tuple(sorted((row[0], row[1], row[2], row[3]) for row in rows))


def check_devices(cuda_device_order: str | None, run: Callable[[list[str]], str] | None = None) -> tuple[Check, ...]:
    """Return the visible NVIDIA cards by UUID, in PCI order, as nvidia-smi tells them; torch is not imported.

    Parameters
    ----------
    cuda_device_order
        What CUDA_DEVICE_ORDER says; ``None`` when it is unset.
    run
        Runs a command and returns its output; ``None`` runs nvidia-smi if there is one.
    """
    if run is None:
        if shutil.which("nvidia-smi") is None:
            return (Check("devices", "absent", "no nvidia-smi here: no NVIDIA cards to list"),)
        run = _run
    try:
        text = run(["nvidia-smi", "--query-gpu=pci.bus_id,uuid,name,memory.total", "--format=csv,noheader"])
    except (OSError, subprocess.SubprocessError) as error:
        return (Check("devices", "broken", f"nvidia-smi failed: {error}"),)
    cards = parse_nvidia_smi(text)
    if not cards:
        return (Check("devices", "absent", "nvidia-smi lists no card"),)
    checks = [
        Check(f"device {index}", "ok", f"{name}, {memory}, {uuid}, PCI {bus}")
        for index, (bus, uuid, name, memory) in enumerate(cards)
    ]
    if cuda_device_order != "PCI_BUS_ID" and len(cards) > 1:
        advice = "CUDA counts cards by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set; this list is in PCI order"
        checks.append(Check("device order", "absent", advice))
    return tuple(checks)


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


def check_console_script() -> Check:
    """Return whether the `slob` on the path is this installation's."""
    found = shutil.which("slob")
    ours = Path(sysconfig.get_path("scripts")) / "slob"
    if found is None:
        return Check("slob command", "absent", f"not on the path; this one is {ours}")
    if Path(found).resolve() != ours.resolve():
        return Check("slob command", "absent", f"{found} comes first on the path; this one is {ours}")
    return Check("slob command", "ok", found)


def check_all(cuda_device_order: str | None) -> tuple[Check, ...]:
    """Return all findings; the parameter is as in :func:`check_devices`."""
    parts: Iterable[Iterable[Check]] = (
        (check_python(), check_shadowing(), check_console_script()),
        check_packages(),
        check_solvers(),
        check_devices(cuda_device_order),
    )
    return tuple(check for part in parts for check in part)
