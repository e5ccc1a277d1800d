"""Names of planners and studies, and where they are made; the only place where a name reaches a class.

Each entry holds an import path as text, so that listing names imports nothing and a command imports only what it runs.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from slob_opt.errors import InputError, SolverUnavailable

if TYPE_CHECKING:
    from slob_opt.planning.instance import PlacementInstance
    from slob_opt.planning.result import Planner

Kind = Literal["heuristic", "baseline", "exact"]


@dataclass(frozen=True, slots=True)
class PlannerEntry:
    """One method: where it lives and where it makes sense.

    Attributes
    ----------
    name
        Name on the command line, in tables and in files.
    target
        Import path of the class, as ``package.module:Class``; called without arguments.
    kind
        ``"heuristic"`` (slob), ``"baseline"`` (what people use today) or ``"exact"`` (optimum or a bound).
    summary
        What it does, one line.
    max_devices
        Planning devices up to which it is worth starting; ``None`` is no limit.
    max_devices_general
        The same when counts of device types don't say it all (links differ, layers differ or devices share cards); 0
        rules such instances out, ``None`` is no other limit than `max_devices`.
    objectives
        Objectives it can solve: ``"interval"``, ``"throughput"``.
    """

    name: str
    target: str
    kind: Kind
    summary: str
    max_devices: int | None = None
    max_devices_general: int | None = None
    objectives: tuple[str, ...] = ("interval", "throughput")


_BASELINES = "slob_opt.planning.baselines"

# Limits: exhaustive looks at every ordered subset (6! orders); device-indexed models of 16 devices and more rarely
# close within a minute; parametric has at least a bound within its time limit at 250 devices of seven classes, larger
# tables were not tried; pattern-ilp needs type counts, nodes of equal cards or at most 13 devices, else it has a bound.
_ENTRIES = (
    PlannerEntry("slob", "slob_opt.slob.placement:SlobPlanner", "heuristic", "the SLoB placement heuristic"),
    PlannerEntry("even", f"{_BASELINES}.even:EvenPlanner", "baseline", "equal layer counts on all devices"),
    PlannerEntry(
        "memory-proportional",
        f"{_BASELINES}.memory_proportional:MemoryProportionalPlanner",
        "baseline",
        "layers in proportion to memory",
    ),
    PlannerEntry(
        "speed-proportional",
        f"{_BASELINES}.speed_proportional:SpeedProportionalPlanner",
        "baseline",
        "layers in proportion to speed",
    ),
    PlannerEntry(
        "petals-greedy", f"{_BASELINES}.petals_greedy:PetalsGreedyPlanner", "baseline", "Petals-like greedy blocks"
    ),
    PlannerEntry(
        "parallax-dp", f"{_BASELINES}.parallax_dp:ParallaxDpPlanner", "baseline", "Parallax-like grouping by DP"
    ),
    PlannerEntry(
        "speed-chain", f"{_BASELINES}.speed_chain:SpeedChainPlanner", "baseline", "one pipeline through all devices"
    ),
    PlannerEntry(
        "parametric",
        "slob_opt.planning.parametric:ParametricPlanner",
        "exact",
        "exact search over type counts or subsets, no solver; a priced bound where that is out of reach",
        max_devices=512,
    ),
    PlannerEntry(
        "pattern-ilp",
        "solvers.pattern_ilp:PatternIlpPlanner",
        "exact",
        "integer program over type-count, node-block or subset patterns with priced columns",
        max_devices=64,
        max_devices_general=48,
    ),
    PlannerEntry(
        "cpsat", "solvers.planners:CpSatPlanner", "exact", "device-indexed model in OR-Tools CP-SAT", max_devices=16
    ),
    PlannerEntry(
        "ilp", "solvers.planners:IlpPlanner", "exact", "device-indexed integer program in HiGHS", max_devices=16
    ),
    PlannerEntry(
        "exhaustive",
        "slob_opt.planning.exhaustive:ExhaustivePlanner",
        "exact",
        "looks at every plan; for tiny instances",
        max_devices=6,
    ),
)
PLANNERS = {entry.name: entry for entry in _ENTRIES}
"""Every planner by name, in the order in which `slob compare` runs them."""

STUDIES = {
    "gap": "experiments.studies.gap:run",
    "scale": "experiments.studies.scale:run",
}
"""Import path of each study's ``run(options) -> StudySummary``."""


def nearest(text: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name closest to `text`, else the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(text.lower(), names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f", expected one of {', '.join(names)}"


def load_target(target: str) -> Any:
    """Return the object at an import path ``package.module:name``.

    Raises
    ------
    SolverUnavailable
        When the module or a package that it needs is not installed.
    """
    module_name, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise SolverUnavailable(
            f"{target} can't be loaded: no module {error.name!r}; "
            "install everything with pip install 'slob[exact,experiments]'"
        ) from error


def planner_entry(name: str) -> PlannerEntry:
    """Return the entry of a planner.

    Raises
    ------
    InputError
        When there is no such planner; names the nearest one.
    """
    entry = PLANNERS.get(name)
    if entry is None:
        raise InputError(f"no planner {name!r}{nearest(name, PLANNERS)}")
    return entry


def make_planner(name: str) -> Planner:
    """Return a new planner; imports its module on the first call.

    Raises
    ------
    InputError
        When there is no such planner.
    SolverUnavailable
        When a package that it needs is not installed.
    """
    planner: Planner = load_target(planner_entry(name).target)()
    return planner


def unsuitable(entry: PlannerEntry, instance: PlacementInstance) -> str | None:
    """Return why a planner is not worth starting on an instance; ``None`` when it is."""
    table = instance.table
    objective = "throughput" if instance.is_throughput else "interval"
    if objective not in entry.objectives:
        return f"solves {' and '.join(entry.objectives)} only"
    counts_suffice = table.has_uniform_links and table.has_identical_layers and table.has_exclusive_devices
    if not counts_suffice and entry.max_devices_general is not None and table.num_devices > entry.max_devices_general:
        if entry.max_devices_general == 0:
            return "needs equal links, equal layers and no tensor-parallel choices"
        return f"up to {entry.max_devices_general} devices where links or layers differ, here {table.num_devices}"
    if entry.max_devices is not None and table.num_devices > entry.max_devices:
        return f"up to {entry.max_devices} devices, here {table.num_devices}"
    return None


def parse_methods(text: str | None) -> tuple[str, ...] | None:
    """Return the planners named in a comma-separated list; ``None`` for ``None`` and ``"all"``.

    Raises
    ------
    InputError
        When a name is unknown or the list is empty.
    """
    if text is None or text.strip().lower() == "all":
        return None
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    if not names:
        raise InputError(f"--methods is {text!r}, expected names such as slob,parametric or all")
    return tuple(planner_entry(name).name for name in names)


def default_methods(instance: PlacementInstance) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the methods worth running on an instance, and the others as (name, reason)."""
    reasons = [(entry.name, unsuitable(entry, instance)) for entry in PLANNERS.values()]
    runs = tuple(name for name, reason in reasons if reason is None)
    return runs, tuple((name, reason) for name, reason in reasons if reason is not None)
