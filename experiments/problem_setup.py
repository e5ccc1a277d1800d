"""From the options of a command to cluster, model, traffic, cost table and instance."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from experiments.registry import nearest
from slob_opt.cost.build import CostOptions, build_table
from slob_opt.cost.groups import most_equal_cards, skipped_degrees
from slob_opt.cost.table import CostTable
from slob_opt.errors import InputError, SkippedDegreeWarning
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.divisibility import allowed_tp_degrees, check_divisibility
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.traffic import TrafficProfile
from slob_opt.units import parse_seconds

OBJECTIVES = ("latency", "interval", "throughput")


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """What a user says of a problem; ``None`` takes the default of the part it belongs to.

    Attributes
    ----------
    cluster, model
        Catalogue id or file; a model may be a folder with a ``config.json``.
    traffic
        Traffic file; the three token counts override it.
    prompt_tokens, output_tokens, context_tokens
        Mean lengths, and KV tokens to hold a sequence.
    objective
        One of :data:`OBJECTIVES`; latency is interval with one sequence in flight.
    in_flight
        K of the interval objective.
    max_micro_batches
        Largest K of the throughput objective.
    max_interval, max_in_flight
        Caps of the throughput objective, as ``400ms`` and ``64``, or ``none``; default: the traffic profile's.
    weight_bits, kv_bits
        Bits per stored weight and per KV element.
    kv_mode, memory_utilization, batch_grid
        See :class:`slob_opt.cost.build.CostOptions`; the grid as ``1,2,4``.
    tp
        Tensor-parallel degrees that any node may form, as ``1,2,4``; a node takes those up to its number of cards, so
        that each stage may have its own degree. Default: what the cluster says.
    """

    cluster: str
    model: str
    traffic: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    context_tokens: int | None = None
    objective: str = "throughput"
    in_flight: int | None = None
    max_micro_batches: int | None = None
    max_interval: str | None = None
    max_in_flight: str | None = None
    weight_bits: float | None = None
    kv_bits: float | None = None
    kv_mode: str | None = None
    memory_utilization: float | None = None
    batch_grid: str | None = None
    tp: str | None = None


@dataclass(frozen=True, slots=True)
class ProblemSetup:
    """A problem, ready to plan.

    Attributes
    ----------
    options
        What the user said.
    cluster, model, traffic, cost_options
        What the table was built from.
    instance
        Table and objective.
    """

    options: ProblemOptions
    cluster: Cluster
    model: ModelSpec
    traffic: TrafficProfile
    cost_options: CostOptions
    instance: PlacementInstance

    @property
    def table(self) -> CostTable:
        """The instance's cost table."""
        return self.instance.table

    @property
    def rebuild(self) -> Callable[[], CostTable]:
        """Function that builds the table again from its inputs, for certification."""
        return lambda: build_table(self.cluster, self.model, self.traffic, self.cost_options)

    def with_objective(self, objective: Objective) -> ProblemSetup:
        """Return the same problem, judged by another objective."""
        name = f"{self.cluster.name}/{self.model.name}/{objective.name}"
        return replace(self, instance=PlacementInstance(self.table, objective, name))

    def effective(self) -> dict[str, object]:
        """Return what will be used, as plain JSON: every option of the problem has its mark here.

        The fingerprints cover all numbers of the cost table and the objective, so equal ones mean equal problems.
        """
        objective = self.instance.objective
        return {
            "cluster": {
                "given": self.options.cluster,
                "name": self.cluster.name,
                "num_nodes": len(self.cluster.nodes),
                "num_cards": len(self.cluster.devices),
                "tp_degrees": sorted({d for node in self.cluster.nodes for d in node.tp_degrees}),
                "skipped_tp_degrees": sorted({degree for _, degree in skipped_degrees(self.cluster, self.model)}),
            },
            "model": {
                "given": self.options.model,
                "name": self.model.name,
                "num_layers": self.model.num_layers,
                "weight_bits": float(self.model.weight_bits),
                "kv_bits": float(self.model.kv_bits),
            },
            "traffic": {"given": self.options.traffic, **asdict(self.traffic)},
            "cost": {**asdict(self.cost_options), "batch_grid": list(self.cost_options.batch_grid)},
            "objective": {"name": objective.name, **asdict(objective)},
            "num_devices": self.table.num_devices,
            "table_fingerprint": self.table.fingerprint,
            "instance_fingerprint": self.instance.fingerprint,
        }


def _whole_numbers(text: str, what: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        numbers = ()
    if not numbers or numbers[0] < 1:
        raise InputError(f"{what} is {text!r}, expected whole numbers from 1 separated by commas, as 1,2,4")
    return numbers


def with_tp(cluster: Cluster, degrees: tuple[int, ...]) -> Cluster:
    """Return the cluster with the given tensor-parallel degrees allowed on every node that has as many equal cards.

    A node too small for all of them works card by card.

    Raises
    ------
    InputError
        When no node has as many equal cards as one of the degrees.
    """
    largest = max(most_equal_cards(node) for node in cluster.nodes)
    too_large = [d for d in degrees if d > largest]
    if too_large:
        raise InputError(
            f"--tp {too_large[0]}: the largest node of cluster {cluster.name} has {largest} equal "
            f"card{'s' if largest > 1 else ''}"
        )
    nodes = tuple(
        replace(node, tp_degrees=tuple(d for d in degrees if d <= most_equal_cards(node)) or (1,))
        for node in cluster.nodes
    )
    return replace(cluster, nodes=nodes)


def warn_of_skipped_degrees(cluster: Cluster, model: ModelSpec) -> None:
    """Warn once of the tensor-parallel degrees that the cluster offers and the model's heads don't allow."""
    skipped = skipped_degrees(cluster, model)
    if not skipped:
        return
    degrees = ", ".join(str(d) for d in sorted({degree for _, degree in skipped}))
    nodes = list(dict.fromkeys(name for name, _ in skipped))
    few = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    most = max(len(node.devices) for node in cluster.nodes)
    heads, kv_heads = model.layers[0].num_heads, model.layers[0].num_kv_heads
    warnings.warn(
        f"TP {degrees} of {few} left out: {model.name} has {heads} heads and {kv_heads} KV heads, "
        f"allowed are {', '.join(map(str, allowed_tp_degrees(model, most)))}",
        SkippedDegreeWarning,
        stacklevel=2,
    )


def with_bits(model: ModelSpec, weight_bits: float | None, kv_bits: float | None) -> ModelSpec:
    """Return the model with other bits per weight or KV element.

    Raises
    ------
    InputError
        When the model states its bytes itself, so that bits would change nothing.
    """
    if weight_bits is not None:
        if all(layer.weight_bytes is not None for layer in model.layers):
            raise InputError(f"--weight-bits would change nothing: model {model.name} states the bytes of its weights")
        model = replace(model, weight_bits=weight_bits)
    if kv_bits is not None:
        if all(layer.kv_bytes_per_token is not None for layer in model.layers):
            raise InputError(f"--kv-bits would change nothing: model {model.name} states its KV bytes per token")
        model = replace(model, kv_bits=kv_bits)
    return model


def _traffic(options: ProblemOptions) -> TrafficProfile:
    from slob_opt.problem.files import load_traffic

    traffic = TrafficProfile() if options.traffic is None else load_traffic(options.traffic)
    lengths = {
        name: value
        for name in ("prompt_tokens", "output_tokens", "context_tokens")
        if (value := getattr(options, name)) is not None
    }
    return replace(traffic, **lengths)


def _objective(options: ProblemOptions, traffic: TrafficProfile) -> Objective:
    if options.objective not in OBJECTIVES:
        raise InputError(f"no objective {options.objective!r}{nearest(options.objective, OBJECTIVES)}")
    caps = {
        "max_micro_batches": "--max-micro-batches",
        "max_interval": "--max-interval",
        "max_in_flight": "--max-in-flight",
    }
    if options.objective != "throughput":
        for name, option in caps.items():
            if getattr(options, name) is not None:
                raise InputError(f"{option} belongs to --objective throughput, not to {options.objective}")
        if options.objective == "latency" and options.in_flight not in (None, 1):
            raise InputError(
                f"--in-flight {options.in_flight}: latency is the interval of one sequence in flight; "
                "use --objective interval"
            )
        return IntervalObjective(1 if options.in_flight is None else options.in_flight)
    if options.in_flight is not None:
        raise InputError(
            "--in-flight belongs to --objective interval; throughput chooses K itself up to --max-micro-batches"
        )
    default = ThroughputObjective.for_traffic(traffic)
    max_interval_s, max_in_flight = default.max_interval_s, default.max_in_flight
    if options.max_interval is not None:
        max_interval_s = None if _is_none(options.max_interval) else float(_located(options.max_interval))
    if options.max_in_flight is not None:
        text = options.max_in_flight
        if not _is_none(text) and not (text.strip().isdecimal() and int(text) >= 1):
            raise InputError(f"--max-in-flight is {text!r}, expected a whole number from 1 or none")
        max_in_flight = None if _is_none(text) else int(text)
    most = default.max_micro_batches if options.max_micro_batches is None else options.max_micro_batches
    return ThroughputObjective(most, max_interval_s, max_in_flight)


def _is_none(text: str) -> bool:
    return text.strip().lower() == "none"


def _located(text: str) -> float:
    try:
        return parse_seconds(text)
    except InputError as error:
        raise error.located(key="--max-interval") from error


def _cost_options(options: ProblemOptions) -> CostOptions:
    default = CostOptions()
    grid = None if options.batch_grid is None else _whole_numbers(options.batch_grid, "--batch-grid")
    share = options.memory_utilization
    return replace(
        default,
        batch_grid=default.batch_grid if grid is None else grid,
        memory_utilization=default.memory_utilization if share is None else share,
        kv_mode=options.kv_mode or default.kv_mode,
    )


def set_up(options: ProblemOptions) -> ProblemSetup:
    """Return the problem that the options describe.

    Raises
    ------
    InputError
        When something is missing, unknown or contradictory, or an option would change nothing.

    Warns
    -----
    SkippedDegreeWarning
        When the cluster offers tensor-parallel degrees that the model's heads don't allow.
    """
    from slob_opt.problem.files import find_cluster, find_model

    cluster, model = find_cluster(options.cluster), find_model(options.model)
    if options.tp is not None:
        degrees = _whole_numbers(options.tp, "--tp")
        check_divisibility(model, degrees)  # what was asked for is refused; what a cluster offers is left out
        cluster = with_tp(cluster, degrees)
    warn_of_skipped_degrees(cluster, model)
    model = with_bits(model, options.weight_bits, options.kv_bits)
    traffic = _traffic(options)
    cost_options = _cost_options(options)
    objective = _objective(options, traffic)
    table = build_table(cluster, model, traffic, cost_options)
    name = f"{cluster.name}/{model.name}/{objective.name}"
    return ProblemSetup(options, cluster, model, traffic, cost_options, PlacementInstance(table, objective, name))
