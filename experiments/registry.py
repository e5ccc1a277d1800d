"""Names of planners, policies, dispatchers and studies, and where they are made; only here a name reaches a class.

Each entry holds an import path as text, so that listing names imports nothing and a command imports only what it runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from experiments.parameters import Parameter, checked, parameters_of
from experiments.parameters import nearest as nearest  # noqa: PLC0414 - others take it from here
from slob_opt.errors import InputError, SolverUnavailable

if TYPE_CHECKING:
    from slob_opt.planning.instance import PlacementInstance
    from slob_opt.planning.result import Planner
    from slob_opt.scheduling.policy import Dispatcher, Policy

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
    "paper": "experiments.studies.paper:run",
    "policies": "experiments.studies.policies:run",
    "tuning": "experiments.studies.tuning:run",
    "sensitivity": "experiments.studies.sensitivity:run",
    "adapter": "experiments.studies.adapter:run",
    "speed": "experiments.studies.speed:run",
}
"""Import path of each study's ``run(options) -> StudySummary``."""


@dataclass(frozen=True, slots=True)
class ServingEntry:
    """One policy or dispatcher.

    Attributes
    ----------
    name
        Name on the command line, in tables and in files.
    target
        Import path of the class, as ``package.module:Class``; its fields are its parameters.
    summary
        What it does, one line.
    fixed
        Fields that make this entry what it is, and so aren't parameters.
    is_clairvoyant
        Whether it is told true output lengths, which no server knows.
    """

    name: str
    target: str
    summary: str
    fixed: tuple[tuple[str, object], ...] = ()
    is_clairvoyant: bool = False


_POLICIES = "slob_opt.scheduling.policies"
_RTC = f"{_POLICIES}.run_to_completion:RunToCompletionPolicy"

_POLICY_ENTRIES = (
    ServingEntry(
        "rtc",
        _RTC,
        "run to completion, answers handed over whole, finished members keep computing",
        (("is_streamed", False), ("drops_finished", False)),
    ),
    ServingEntry(
        "rtc-streamed",
        _RTC,
        "run to completion, answers streamed",
        (("is_streamed", True), ("drops_finished", False), ("name", "rtc-streamed")),
    ),
    ServingEntry(
        "rtc-drops",
        _RTC,
        "run to completion, answers handed over whole, finished members leave",
        (("is_streamed", False), ("drops_finished", True), ("name", "rtc-drops")),
    ),
    ServingEntry(
        "rtc-streamed-drops",
        _RTC,
        "run to completion, answers streamed, finished members leave",
        (("is_streamed", True), ("drops_finished", True), ("name", "rtc-streamed-drops")),
    ),
    ServingEntry("orca", f"{_POLICIES}.fcfs:OrcaPolicy", "iteration-level, first come, first served, KV reserved"),
    ServingEntry("orca-paged", f"{_POLICIES}.fcfs:OrcaPagedPolicy", "orca with KV blocks on demand"),
    ServingEntry("prefill-first", f"{_POLICIES}.prefill_first:PrefillFirstPolicy", "prompts before decodes (vLLM v0)"),
    ServingEntry("chunked", f"{_POLICIES}.chunked:ChunkedPolicy", "chunked prefill without stalls (Sarathi, vLLM v1)"),
    ServingEntry("mlfq", f"{_POLICIES}.mlfq:MlfqPolicy", "skip-join multi-level feedback queue (FastServe)"),
    ServingEntry("andes", f"{_POLICIES}.andes:AndesPolicy", "greedy knapsack by gain in quality per KV token (Andes)"),
    ServingEntry(
        "srpt-clairvoyant",
        f"{_POLICIES}.srpt:SrptPolicy",
        "shortest remaining time first, told true output lengths",
        is_clairvoyant=True,
    ),
    ServingEntry("slob", "slob_opt.slob.batching:SlobPolicy", "mixed priorities, least padding: the method itself"),
)
POLICIES = {entry.name: entry for entry in _POLICY_ENTRIES}
"""Every policy by name."""

_BLIND = "slob_opt.scheduling.dispatchers.blind"

_DISPATCHER_ENTRIES = (
    ServingEntry("random", f"{_BLIND}:RandomDispatcher", "any pipeline, each with the same chance"),
    ServingEntry("weighted", f"{_BLIND}:WeightedDispatcher", "any pipeline, fast ones with a larger chance"),
    ServingEntry("round-robin", f"{_BLIND}:RoundRobinDispatcher", "the next pipeline in turn"),
    ServingEntry("least-outstanding", f"{_BLIND}:LeastOutstandingDispatcher", "the pipeline with fewest requests"),
    ServingEntry("power-of-two", f"{_BLIND}:PowerOfTwoDispatcher", "the less loaded of two drawn by chance"),
    ServingEntry(
        "shortest-time",
        "slob_opt.scheduling.dispatchers.shortest_time:ShortestTimeDispatcher",
        "shortest expected time to the last token",
    ),
    ServingEntry("slob", "slob_opt.slob.dispatch:SlobDispatcher", "least expected loss of satisfaction"),
)
DISPATCHERS = {entry.name: entry for entry in _DISPATCHER_ENTRIES}
"""Every dispatcher by name."""

_NO_PARAMETERS = ("name", "kv_use", "holds_finished", "is_streamed", "is_clairvoyant", "seed")
"""Fields by which drivers tell policies apart, and the seed, which is given apart."""


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


def policy_names() -> tuple[str, ...]:
    """Return the names of all policies."""
    return tuple(POLICIES)


def dispatcher_names() -> tuple[str, ...]:
    """Return the names of all dispatchers."""
    return tuple(DISPATCHERS)


def policy_entry(name: str) -> ServingEntry:
    """Return the entry of a policy; raises InputError that names the nearest one when there is none."""
    return _serving_entry("policy", name, POLICIES)


def dispatcher_entry(name: str) -> ServingEntry:
    """Return the entry of a dispatcher; raises InputError that names the nearest one when there is none."""
    return _serving_entry("dispatcher", name, DISPATCHERS)


def _serving_entry(role: str, name: str, known: Mapping[str, ServingEntry]) -> ServingEntry:
    entry = known.get(name)
    if entry is None:
        raise InputError(f"no {role} {name!r}{nearest(name, known)}")
    return entry


def parameters(entry: ServingEntry) -> dict[str, Parameter]:
    """Return what may be set of a policy or dispatcher, by name; imports its module."""
    return parameters_of(load_target(entry.target), (*_NO_PARAMETERS, *(name for name, _ in entry.fixed)))


def make_policy(name: str, params: Mapping[str, object] | None = None) -> Policy:
    """Return a new policy.

    Parameters
    ----------
    name
        As :func:`policy_names` has them.
    params
        Values of its parameters, see :func:`parameters`; numbers and truth values may be text. ``None`` sets none.

    Raises
    ------
    InputError
        When there is no such policy or parameter, or a value isn't of its kind.
    """
    entry = policy_entry(name)
    given = checked(f"policy {name!r}", params or {}, parameters(entry))
    policy: Policy = load_target(entry.target)(**given, **dict(entry.fixed))
    return policy


def make_dispatcher(name: str, params: Mapping[str, object] | None = None, *, seed: int = 0) -> Dispatcher:
    """Return a new dispatcher.

    Parameters
    ----------
    name
        As :func:`dispatcher_names` has them.
    params
        As for :func:`make_policy`.
    seed
        Of its choices; dispatchers without chance have no use for it.

    Raises
    ------
    InputError
        When there is no such dispatcher or parameter, or a value isn't of its kind.
    """
    entry = dispatcher_entry(name)
    made = load_target(entry.target)
    given = checked(f"dispatcher {name!r}", params or {}, parameters(entry))
    if "seed" in parameters_of(made):
        given["seed"] = seed
    dispatcher: Dispatcher = made(**given, **dict(entry.fixed))
    return dispatcher
