"""What a trace file is about: the system that served, and the inputs it was made from."""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.errors import InputError
from slob_opt.metrics.trace_values import Fields, items, optional, text, text_pairs, texts, whole

SCHEMA_VERSION = 1
"""Of trace files; another meaning of a key is another version."""

ENGINES = ("ragged", "padded")
"""How an engine computes a micro-batch: packed tokens, or rectangles with pads."""


@dataclass(frozen=True, slots=True)
class TraceStage:
    """A stage of a pipeline.

    Attributes
    ----------
    devices
        Names of its cards; several are a tensor-parallel group.
    first, end
        Layers ``[first, end)``.
    """

    devices: tuple[str, ...]
    first: int
    end: int

    def __post_init__(self) -> None:
        if not self.devices:
            raise InputError("a stage has no device, expected at least one name")
        if not 0 <= self.first < self.end:
            raise InputError(f"a stage has layers [{self.first}, {self.end}), expected at least one from 0")

    @property
    def name(self) -> str:
        """Its devices, joined by a plus sign."""
        return "+".join(self.devices)

    def as_json(self) -> dict[str, object]:
        """Return plain JSON."""
        return {"devices": list(self.devices), "first": self.first, "end": self.end}

    @classmethod
    def of_json(cls, data: object, key: str) -> TraceStage:
        """Return what :meth:`as_json` gave; raises InputError that names the key."""
        fields = Fields.of(data, ("devices", "first", "end"), key)
        found = (fields.get("devices", texts), fields.get("first", whole), fields.get("end", whole))
        return fields.make(lambda: cls(*found))


@dataclass(frozen=True, slots=True)
class TracePipeline:
    """A pipeline.

    Attributes
    ----------
    num_lanes
        Micro-batches in flight at most.
    stages
        In the order of execution.
    """

    num_lanes: int
    stages: tuple[TraceStage, ...]

    def __post_init__(self) -> None:
        if self.num_lanes < 1:
            raise InputError(f"a pipeline has {self.num_lanes} lanes, expected at least 1")
        end = 0
        for stage in self.stages:
            if stage.first != end:
                raise InputError(f"a stage begins at layer {stage.first}, expected {end}")
            end = stage.end
        if not self.stages:
            raise InputError("a pipeline has no stage, expected at least one")

    def as_json(self) -> dict[str, object]:
        """Return plain JSON."""
        return {"num_lanes": self.num_lanes, "stages": [stage.as_json() for stage in self.stages]}

    @classmethod
    def of_json(cls, data: object, key: str) -> TracePipeline:
        """Return what :meth:`as_json` gave; raises InputError that names the key."""
        fields = Fields.of(data, ("num_lanes", "stages"), key)
        lanes, stages = fields.get("num_lanes", whole), fields.get("stages", items)
        made = tuple(TraceStage.of_json(item, f"{key}.stages[{i}]") for i, item in enumerate(stages))
        return fields.make(lambda: cls(lanes, made))


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What a trace is about.

    Attributes
    ----------
    source
        Who made it, as ``simulator`` or ``runtime``.
    workload, cluster, model
        Names.
    policy
        Label of the policy.
    dispatcher
        Of the dispatcher; ``None`` where there was nothing to choose.
    engine
        One of :data:`ENGINES`.
    seed
        Of whatever was random; 0 where nothing was.
    pipelines
        What served. At least one.
    fingerprints
        (input, SHA-256 in hex), as of workload, cluster, model and placement.
    """

    source: str
    workload: str
    cluster: str
    model: str
    policy: str
    dispatcher: str | None
    engine: str
    seed: int
    pipelines: tuple[TracePipeline, ...]
    fingerprints: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise InputError(f"engine is {self.engine!r}, expected one of {', '.join(ENGINES)}")
        if not self.pipelines:
            raise InputError("the header names no pipeline, expected at least one")

    def as_json(self) -> dict[str, object]:
        """Return the content of the first line."""
        return {
            "kind": "header",
            "schema_version": SCHEMA_VERSION,
            "source": self.source,
            "workload": self.workload,
            "cluster": self.cluster,
            "model": self.model,
            "policy": self.policy,
            "dispatcher": self.dispatcher,
            "engine": self.engine,
            "seed": self.seed,
            "fingerprints": dict(self.fingerprints),
            "pipelines": [pipeline.as_json() for pipeline in self.pipelines],
        }

    @classmethod
    def of_json(cls, data: object) -> TraceHeader:
        """Return what :meth:`as_json` gave; raises InputError that names the key."""
        if isinstance(data, dict) and data.get("kind") != "header":
            raise InputError(f"found {data.get('kind')!r}, expected the header", key="kind")
        if isinstance(data, dict) and data.get("schema_version") != SCHEMA_VERSION:
            raise InputError(f"found {data.get('schema_version')!r}, expected {SCHEMA_VERSION}", key="schema_version")
        fields = Fields.of(data, _HEADER_KEYS)
        pipelines = tuple(
            TracePipeline.of_json(item, f"pipelines[{i}]") for i, item in enumerate(fields.get("pipelines", items))
        )
        names = {name: fields.get(name, text) for name in ("source", "workload", "cluster", "model", "policy")}
        engine, dispatcher = fields.get("engine", text), fields.get("dispatcher", optional(text))
        seed, prints = fields.get("seed", whole), fields.get("fingerprints", text_pairs)
        return fields.make(
            lambda: cls(
                **names, dispatcher=dispatcher, engine=engine, seed=seed, pipelines=pipelines, fingerprints=prints
            )
        )


_HEADER_KEYS = (
    "kind", "schema_version", "source", "workload", "cluster", "model", "policy", "dispatcher", "engine", "seed",
    "fingerprints", "pipelines",
)  # fmt: skip
