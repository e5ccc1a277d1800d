"""Options of `slob simulate`, and what they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli import options as opt
from experiments.cli import workload_options as wopt
from experiments.cli.number_options import MAX_IN_FLIGHT, MAX_MICRO_BATCHES, MAX_SEED, MAX_TOKENS, number, whole
from experiments.problem_setup import ProblemOptions
from experiments.serving_problem import Source, SystemSource, is_preset
from experiments.serving_setup import DEFAULT_CHUNK, DEFAULT_ROWS, ServingOptions
from experiments.workload_source import PresetOptions
from slob_opt.errors import InputError


class EngineKind(StrEnum):
    """How an engine computes a micro-batch."""

    RAGGED = "ragged"
    PADDED = "padded"


_SYSTEM, _LOAD, _SERVING, _RUN, _OUTPUT = "System", "Workload", "Serving", "Simulation", "Output"


def _option(*names: str, panel: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def _whole(*names: str, panel: str, text: str, least: int, most: int) -> Any:
    return _option(*names, panel=panel, text=text, parser=whole(least, most), metavar="<int>")


def _number(*names: str, panel: str, text: str, **limits: float) -> Any:
    return _option(*names, panel=panel, text=text, parser=number(**limits), metavar="<float>")


Cluster = Annotated[
    str | None, _option("--cluster", "-c", panel=_SYSTEM, text="Cluster: catalogue id or file; default: the plan's.")
]
Model = Annotated[
    str | None,
    _option("--model", "-m", panel=_SYSTEM, text="Model: catalogue id, file or folder; default: the plan's."),
]
Plan = Annotated[
    Path | None, _option("--plan", panel=_SYSTEM, text="Plan file of slob plan; without it slob plans now.")
]
Objective = Annotated[
    opt.ObjectiveName | None,
    _option("--objective", panel=_SYSTEM, text="What to plan for; default throughput."),
]
Workload = Annotated[
    str,
    _option("--workload", "-w", panel=_LOAD, text="Preset, trace file or folder, or example, which ships with slob."),
]
Load = Annotated[
    float | None,
    _number(
        "--load", panel=_LOAD, text="Preset at the rate that offers so many requests in flight.", above=0, most=1e4
    ),
]
Rate = Annotated[
    float | None,
    _number("--rate", panel=_LOAD, text="Mean requests/s of a preset, or of --arrivals of a trace.", above=0, most=1e6),
]
Duration = Annotated[
    str | None,
    _option("--duration", panel=_LOAD, text="Length of the arrivals, as 60min; default: an hour, or the trace."),
]
Variant = Annotated[
    str | None, _option("--variant", panel=_LOAD, text="Other prompts (doc_summary: arxiv-4k, mooncake-128k).")
]
Daily = Annotated[
    bool, _option("--daily", panel=_LOAD, text="Keep a preset's quiet and busy hours; else an even load.")
]
Policies = Annotated[
    str, _option("--policy", "-p", panel=_SERVING, text="Policies to compare, comma-separated; see slob catalog.")
]
Params = Annotated[
    list[str] | None,
    _option("--param", panel=_SERVING, text="Parameter name=value, or policy.name=value; repeatable."),
]
DispatcherName = Annotated[str, _option("--dispatcher", panel=_SERVING, text="Who chooses the pipeline of a request.")]
Engine = Annotated[
    EngineKind, _option("--engine", panel=_SERVING, text="ragged packs tokens, padded computes rectangles.")
]
Lanes = Annotated[
    int | None,
    _whole("--lanes", panel=_SERVING, text="Micro-batches in flight of each pipeline; default: the plan's K.",
           least=1, most=MAX_MICRO_BATCHES),
]  # fmt: skip
Rows = Annotated[
    int, _whole("--max-rows", panel=_SERVING, text="Most requests in a pipeline.", least=1, most=MAX_IN_FLIGHT)
]
Chunk = Annotated[
    int,
    _whole(
        "--chunk", panel=_SERVING, text="Tokens of a micro-batch where the policy chunks.", least=1, most=MAX_TOKENS
    ),
]
KvBlocks = Annotated[
    int | None,
    _whole("--kv-blocks", panel=_SERVING, text="KV blocks of a pipeline; default: from the cards' memory.",
           least=1, most=10**9),
]  # fmt: skip
Noise = Annotated[
    float, _number("--noise", panel=_RUN, text="Standard deviation of the logarithm of stage times.", least=0, most=1)
]
Horizon = Annotated[str, _option("--horizon", panel=_RUN, text="How long after the last arrival answers still count.")]
Seed = Annotated[
    int, _whole("--seed", panel=_RUN, text="Seed of sample, dispatcher and noise.", least=0, most=MAX_SEED)
]
Trace = Annotated[
    bool, _option("--trace", panel=_OUTPUT, text="Write what each policy did: trace, timeline, Gantt chart.")
]
OutFolder = Annotated[
    Path | None,
    _option("--out", "-o", panel=_OUTPUT, text="Folder for summary, requests, store; default runs/simulate."),
]

TRACE_ONLY = (
    "trace_format", "skip", "clip", "max_requests", "since", "until", "arrivals", "cv", "on", "off", "thin", "stretch",
    "thin_to", "stretch_to",
)  # fmt: skip
"""Parameters that belong to traces."""

_SPELLED = {"since": "from", "trace_format": "trace-format", "max_requests": "max-requests"}


def source_of(given: Mapping[str, Any]) -> Source:
    """Return the workload that options name, without its rate where ``--load`` sets that.

    Raises
    ------
    InputError
        When there is no such workload, a value is wrong, or an option would have no effect.
    """
    if is_preset(given["workload"]):
        for name in TRACE_ONLY:
            if given[name] not in (None, False):
                raise InputError(f"--{_SPELLED.get(name, name.replace('_', '-'))} is for traces, not for presets")
        if given["load"] is not None and given["rate"] is not None:
            raise InputError("--load and --rate say the same thing; give one of them")
        length = given["duration"]
        duration_s = 3600.0 if length is None else wopt.seconds(length, "--duration")
        return Source(
            None,
            PresetOptions(
                given["workload"], None, duration_s, given["rate"], not given["daily"], given["variant"], given["seed"]
            ),
        )
    for name in ("load", "variant", "daily"):
        if given[name] not in (None, False):
            raise InputError(f"--{name} is for presets, not for traces")
    if given["rate"] is not None and given["arrivals"] is None:
        raise InputError("--rate of a trace needs --arrivals; --thin-to and --stretch-to keep the trace's own times")
    if given["duration"] is not None and given["until"] is not None:
        raise InputError("--duration and --until say the same thing; give one of them")
    until = given["until"] if given["duration"] is None else given["duration"]
    said = {**given, "trace": given["workload"], "model": None, "max_model_tokens": None, "until": until}
    return Source(wopt.trace_options(said), None)


def system_source(given: Mapping[str, Any]) -> SystemSource:
    """Return the system that options name.

    Raises
    ------
    InputError
        When options contradict each other or would have no effect.
    """
    planning = ("objective", "in_flight", "max_interval", "tp")
    if given["plan"] is not None:
        for name in planning:
            if given[name] is not None:
                raise InputError(f"--{name.replace('_', '-')} is for planning; --plan says it already")
        if given["cluster"] is None:
            for name in ("weight_bits", "kv_bits"):
                if given[name] is not None:
                    raise InputError(f"--{name.replace('_', '-')} needs --cluster and --model; the plan has its model")
    objective = "throughput" if given["objective"] is None else given["objective"].value
    problem = ProblemOptions(
        given["cluster"] or "", given["model"] or "", objective=objective, in_flight=given["in_flight"],
        max_interval=given["max_interval"], weight_bits=given["weight_bits"], kv_bits=given["kv_bits"], tp=given["tp"],
        memory_utilization=given["memory_utilization"],
    )  # fmt: skip
    default = ServingOptions()
    share = given["memory_utilization"]
    serving = ServingOptions(
        given["lanes"], given["max_rows"], given["chunk"], given["kv_blocks"],
        default.memory_utilization if share is None else share,
    )  # fmt: skip
    return SystemSource(given["plan"], given["cluster"], given["model"], problem, serving)


__all__ = ["DEFAULT_CHUNK", "DEFAULT_ROWS", "EngineKind", "source_of", "system_source"]
