"""Study files: what a serving study sweeps, fixed before it runs. YAML, unknown keys refused."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from experiments.problem_setup import ProblemOptions, set_up
from experiments.registry import nearest, policy_entry
from experiments.serving_run import PolicyChoice
from experiments.serving_setup import ServingOptions, ServingSystem, make_system, plan_placement
from slob_opt.errors import InputError
from slob_opt.metrics.satisfaction import Decay, SatisfactionSpec
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.files.checking import Seconds, StrictSchema, VersionedSchema, check
from slob_opt.problem.files.documents import read_document
from slob_opt.problem.placement import Pipeline, Placement, Stage
from slob_opt.problem.presets import load_preset

FOLDER = Path(__file__).parent / "files"
"""Where the files are that ship with the studies."""

Value = bool | int | float | str


class MetricSchema(StrictSchema):
    """Satisfaction; what is left out stays at the default of :class:`SatisfactionSpec`."""

    ttft: Seconds | None = None
    tokens_per_s: float | None = None
    scale: Seconds | None = None
    first_weight: float | None = None
    weight_decay: float | None = None
    weight_floor: float | None = None
    decay: Literal["hyperbolic", "exponential", "quadratic"] | None = None

    def spec(self) -> SatisfactionSpec:
        """Return the specification; raises InputError when a number is out of range."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        for short, name in (("ttft", "ttft_s"), ("scale", "scale_s")):
            if short in given:
                given[name] = float(given.pop(short))
        if "decay" in given:
            given["decay"] = Decay(given["decay"])
        return SatisfactionSpec(**{name: value for name, value in given.items() if value is not None})


class StageSchema(StrictSchema):
    """A stage: a device (cards of one node joined by ``+``) and how many layers it executes."""

    device: str
    layers: int


class PipelineSchema(StrictSchema):
    """A pipeline with K lanes."""

    lanes: int
    stages: list[StageSchema]


class SystemSchema(StrictSchema):
    """A cluster (catalogue id, or a file beside the study file), a model, and a placement: written out or planned."""

    name: str
    cluster: str
    model: str
    weight_bits: float | None = None
    kv_bits: float | None = None
    pipelines: list[PipelineSchema] | None = None
    objective: Literal["latency", "interval", "throughput"] = "throughput"
    in_flight: int | None = None
    max_rows: int = ServingOptions().max_rows
    chunk_tokens: int | None = None


class PolicySchema(StrictSchema):
    """A policy with its dispatcher and parameters, by a label of its own."""

    label: str
    policy: str
    params: dict[str, Value] = {}  # noqa: RUF012 - pydantic copies it
    dispatcher: str = "least-outstanding"
    dispatcher_params: dict[str, Value] = {}  # noqa: RUF012 - pydantic copies it


class SweepSchema(StrictSchema):
    """Loads, seeds and policies of one system under one preset; claims look at sweeps of that role only."""

    name: str
    system: str
    preset: str
    variant: str | None = None
    loads: list[float]
    engines: list[Literal["ragged", "padded"]] = ["ragged"]  # noqa: RUF012 - pydantic copies it
    policies: list[str]
    seeds: list[int] | None = None
    role: Literal["claims", "frontier", "ablation", "tuning"] = "claims"


class QuickSchema(StrictSchema):
    """What ``--quick`` runs instead."""

    sweeps: list[str]
    seeds: list[int]
    duration: Seconds
    max_loads: int = 100


class FamilySchema(StrictSchema):
    """Another way to measure satisfaction, by name."""

    name: str
    metric: MetricSchema


class TuningSchema(StrictSchema):
    """How the parameters of policies were chosen: candidates by label, simulated on sweeps of role ``tuning``."""

    seeds: list[int]
    duration: Seconds
    grids: dict[str, list[dict[str, Value]]]


class StudySchema(VersionedSchema):
    """A whole study file."""

    study: Literal["paper", "policies", "sensitivity"]
    about: str = ""
    metric: MetricSchema = MetricSchema()
    family: list[FamilySchema] = []  # noqa: RUF012 - pydantic copies it
    duration: Seconds
    grace: Seconds
    seeds: list[int]
    systems: list[SystemSchema]
    policies: list[PolicySchema]
    sweeps: list[SweepSchema]
    quick: QuickSchema
    tuning: TuningSchema | None = None


class StudyFile:
    """A study file, checked: names fit together and every policy, preset and system exists.

    Parameters
    ----------
    path
        The file; clusters named by a file are looked for beside it.
    study
        Name of the study that it must be for.

    Attributes
    ----------
    schema
        Its content.
    fingerprint
        SHA-256 of its text, hex.

    Raises
    ------
    InputError
        With file, key, what was found and what was expected.
    """

    def __init__(self, path: Path, study: str) -> None:
        self.path = path
        self.schema = check(StudySchema, read_document(path), file=str(path))
        self.fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()
        if self.schema.study != study:
            raise self._fault("study", f"found {self.schema.study!r}, expected {study!r}")
        self._check_names()
        self.spec = self._metric("metric", self.schema.metric)
        self.family = tuple(
            (item.name, self._metric(f"family[{index}].metric", item.metric))
            for index, item in enumerate(self.schema.family)
        )
        self.choices = {item.label: self._choice(index) for index, item in enumerate(self.schema.policies)}
        self._systems: dict[str, ServingSystem] = {}

    def _fault(self, key: str, message: str) -> InputError:
        return InputError(message, file=str(self.path), key=key)

    def _check_names(self) -> None:
        schema = self.schema
        for key, names in (
            ("systems", [item.name for item in schema.systems]),
            ("policies", [item.label for item in schema.policies]),
            ("sweeps", [item.name for item in schema.sweeps]),
        ):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise self._fault(key, f"{twice!r} stands twice")
        labels, systems = [item.label for item in schema.policies], [item.name for item in schema.systems]
        for index, sweep in enumerate(schema.sweeps):
            self._known(f"sweeps[{index}].system", sweep.system, systems)
            for at, label in enumerate(sweep.policies):
                self._known(f"sweeps[{index}].policies[{at}]", label, labels)
            try:
                load_preset(sweep.preset).prompt_of(sweep.variant)
            except InputError as error:
                raise self._fault(f"sweeps[{index}].preset", error.message) from error
            self._positive(f"sweeps[{index}].loads", sweep.loads)
            if sweep.seeds is not None:
                self._seeds(f"sweeps[{index}].seeds", sweep.seeds)
        for at, name in enumerate(schema.quick.sweeps):
            self._known(f"quick.sweeps[{at}]", name, [item.name for item in schema.sweeps])
        self._seeds("seeds", schema.seeds)
        self._seeds("quick.seeds", schema.quick.seeds)

    @property
    def clairvoyant(self) -> frozenset[str]:
        """Labels of policies that are told true output lengths, which no server knows."""
        return frozenset(item.label for item in self.schema.policies if policy_entry(item.policy).is_clairvoyant)

    def _known(self, key: str, name: str, known: Sequence[str]) -> None:
        if name not in known:
            raise self._fault(key, f"found {name!r}{nearest(name, known)}")

    def _positive(self, key: str, loads: Sequence[float]) -> None:
        if not loads or not all(0 < load <= 1e4 for load in loads) or list(loads) != sorted(set(loads)):
            raise self._fault(key, f"found {list(loads)}, expected rising loads above 0, in requests in flight")

    def _seeds(self, key: str, seeds: Sequence[int]) -> None:
        if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
            raise self._fault(key, f"found {list(seeds)}, expected different whole numbers from 0")

    def _metric(self, key: str, metric: MetricSchema) -> SatisfactionSpec:
        try:
            return metric.spec()
        except InputError as error:
            raise self._fault(key, error.message) from error

    def _choice(self, index: int) -> PolicyChoice:
        item = self.schema.policies[index]
        choice = PolicyChoice(item.label, item.policy, item.dispatcher, item.params, item.dispatcher_params)
        try:
            choice.policies(1)
            choice.make_dispatcher(2, 0)
        except InputError as error:
            raise self._fault(f"policies[{index}]", error.message) from error
        return choice

    def system(self, name: str) -> ServingSystem:
        """Return a system of the file, built once.

        Raises
        ------
        InputError
            When its cluster, model or placement is wrong.
        """
        if name not in self._systems:
            index = next(i for i, item in enumerate(self.schema.systems) if item.name == name)
            try:
                self._systems[name] = self._build(self.schema.systems[index])
            except InputError as error:
                raise error.located(file=str(self.path), key=f"systems[{index}]") from error
        return self._systems[name]

    def _build(self, item: SystemSchema) -> ServingSystem:
        beside = self.path.parent / item.cluster
        cluster = str(beside) if beside.is_file() else item.cluster
        setup = set_up(
            ProblemOptions(
                cluster,
                item.model,
                objective=item.objective,
                in_flight=item.in_flight,
                weight_bits=item.weight_bits,
                kv_bits=item.kv_bits,
            )
        )
        options = ServingOptions(None, item.max_rows, item.chunk_tokens)
        if item.pipelines is None:
            placement = plan_placement(setup.cluster, setup.model, setup.traffic, setup.instance.objective)
        else:
            placement = Placement(tuple(pipeline_of(pipeline, setup.cluster) for pipeline in item.pipelines))
        return make_system(item.name, setup.cluster, setup.model, placement, options)


def pipeline_of(item: PipelineSchema, cluster: Cluster) -> Pipeline:
    """Return a pipeline that is written out; raises InputError when a device isn't in the cluster."""
    index = {device.name: i for i, device in enumerate(cluster.devices)}
    stages, first = [], 0
    for stage in item.stages:
        names = [name.strip() for name in stage.device.split("+")]
        for name in names:
            if name not in index:
                raise InputError(f"no device {name!r} in cluster {cluster.name}{nearest(name, index)}", key="pipelines")
        stages.append(Stage(tuple(index[name] for name in names), first, first + stage.layers))
        first += stage.layers
    return Pipeline(tuple(stages), item.lanes)


def study_file(name: str, path: Path | None) -> StudyFile:
    """Return the study file at a path, or the one that ships with the study of a name."""
    return StudyFile(FOLDER / f"{name}.yaml" if path is None else path, name)
