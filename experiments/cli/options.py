"""Options that several commands share, and what they add up to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.number_options import (
    MAX_IN_FLIGHT,
    MAX_MICRO_BATCHES,
    MAX_SEED,
    MAX_TOKENS,
    MAX_WORKERS,
    number,
    whole,
)
from slob_opt.errors import InputError
from slob_opt.planning.result import SolveLimits
from slob_opt.units import parse_bytes


class OutputFormat(StrEnum):
    """What is printed on stdout."""

    TABLE = "table"
    JSON = "json"


class ObjectiveName(StrEnum):
    """What a plan is judged by."""

    LATENCY = "latency"
    INTERVAL = "interval"
    THROUGHPUT = "throughput"


class KvMode(StrEnum):
    """How KV memory of sliding-window layers is reserved."""

    SAFE = "safe"
    TIGHT = "tight"


class Engine(StrEnum):
    """What a plan can be exported to."""

    VLLM = "vllm"


_PROBLEM, _COST, _SEARCH, _OUTPUT = "Problem", "Cost model", "Search", "Output"


def _option(*names: str, panel: str, text: str, **more: object) -> object:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)  # type: ignore[arg-type]  # Any in typer


def _whole(*names: str, panel: str, text: str, least: int, most: int) -> object:
    return _option(*names, panel=panel, text=text, parser=whole(least, most), metavar="<int>")


def _number(*names: str, panel: str, text: str, **limits: float) -> object:
    return _option(*names, panel=panel, text=text, parser=number(**limits), metavar="<float>")


Cluster = Annotated[str, _option("--cluster", "-c", panel=_PROBLEM, text="Cluster: catalogue id or file.")]
Model = Annotated[
    str, _option("--model", "-m", panel=_PROBLEM, text="Model: catalogue id, file, or folder with a config.json.")
]
Clusters = Annotated[
    list[str] | None, _option("--cluster", "-c", panel=_PROBLEM, text="Cluster: catalogue id or file; repeatable.")
]
Models = Annotated[
    list[str] | None, _option("--model", "-m", panel=_PROBLEM, text="Model: catalogue id, file or folder; repeatable.")
]
Suite = Annotated[
    str | None, _option("--suite", panel=_PROBLEM, text="Bundled instances instead of --cluster and --model: demo.")
]
Traffic = Annotated[
    str | None, _option("--traffic", panel=_PROBLEM, text="Traffic file; the token options override its lengths.")
]
PromptTokens = Annotated[
    int | None, _whole("--prompt-tokens", panel=_PROBLEM, text="Mean prompt length.", least=1, most=MAX_TOKENS)
]
OutputTokens = Annotated[
    int | None, _whole("--output-tokens", panel=_PROBLEM, text="Mean output length.", least=1, most=MAX_TOKENS)
]
ContextTokens = Annotated[
    int | None,
    _whole(
        "--context-tokens",
        panel=_PROBLEM,
        text="KV tokens to hold per sequence; default prompt + output.",
        least=1,
        most=MAX_TOKENS,
    ),
]
ObjectiveOption = Annotated[
    ObjectiveName,
    _option(
        "--objective", panel=_PROBLEM, text="latency (one sequence), interval (K sequences), throughput (tokens/s)."
    ),
]
InFlight = Annotated[
    int | None,
    _whole("--in-flight", "-k", panel=_PROBLEM, text="K of the interval objective.", least=1, most=MAX_IN_FLIGHT),
]
MaxMicroBatches = Annotated[
    int | None,
    _whole(
        "--max-micro-batches",
        panel=_PROBLEM,
        text="Largest K of the throughput objective; default 16.",
        least=1,
        most=MAX_MICRO_BATCHES,
    ),
]
MaxInterval = Annotated[
    str | None,
    _option(
        "--max-interval", panel=_PROBLEM, text="Longest token interval, as 400ms, or none; default: the traffic's."
    ),
]
MaxInFlight = Annotated[
    str | None,
    _option("--max-in-flight", panel=_PROBLEM, text="Most sequences per pipeline, or none; default: the traffic's."),
]
WeightBits = Annotated[
    float | None, _number("--weight-bits", panel=_COST, text="Bits per stored weight.", above=0, most=64)
]
KvBits = Annotated[float | None, _number("--kv-bits", panel=_COST, text="Bits per KV element.", above=0, most=64)]
KvModeOption = Annotated[
    KvMode | None, _option("--kv-mode", panel=_COST, text="safe: sliding-window layers reserve the full context.")
]
MemoryUtilization = Annotated[
    float | None,
    _number(
        "--memory-utilization",
        panel=_COST,
        text="Share of a card's memory to use; default 0.92.",
        above=0,
        most=1,
    ),
]
BatchGrid = Annotated[
    str | None, _option("--batch-grid", panel=_COST, text="Micro-batch sizes to choose from, as 1,2,4,8.")
]
Tp = Annotated[
    str | None,
    _option("--tp", panel=_COST, text="Tensor-parallel degrees any node may form, as 1,2,4; each stage may differ."),
]
Methods = Annotated[
    str | None, _option("--methods", panel=_SEARCH, text="Methods, comma-separated, or all (those worth starting).")
]
TimeLimit = Annotated[float, _number("--time-limit", panel=_SEARCH, text="Seconds per method; 0 is no limit.", least=0)]
MemoryLimit = Annotated[
    str | None, _option("--memory-limit", panel=_SEARCH, text="Memory of a solver process, as 4GiB.")
]
Seed = Annotated[int, _whole("--seed", panel=_SEARCH, text="Seed of whatever is random.", least=0, most=MAX_SEED)]
Workers = Annotated[
    int,
    _whole(
        "--workers",
        panel=_SEARCH,
        text="Threads of a solver; one keeps runs repeatable.",
        least=1,
        most=MAX_WORKERS,
    ),
]
Processes = Annotated[
    int, _whole("--workers", panel=_SEARCH, text="Processes that run at a time.", least=1, most=MAX_WORKERS)
]
Format = Annotated[OutputFormat, _option("--format", panel=_OUTPUT, text="table for people, json for programs.")]
ShowConfig = Annotated[
    bool, _option("--show-config", panel=_OUTPUT, text="Print the effective configuration as JSON and stop.")
]
OutFolder = Annotated[
    Path | None, _option("--out", "-o", panel=_OUTPUT, text="Folder for plans, plots, report, store.")
]
OutFile = Annotated[Path | None, _option("--out", "-o", panel=_OUTPUT, text="Write the plan to this file.")]
NoTrack = Annotated[bool, _option("--no-track", panel=_OUTPUT, text="Don't store the run in MLflow.")]
Experiment = Annotated[
    str | None, _option("--experiment", panel=_OUTPUT, text="MLflow experiment; default: the command's own.")
]
WhatIf = Annotated[
    bool, _option("--what-if", panel=_OUTPUT, text="Show what ten per cent more of each resource would bring.")
]

Export = Annotated[
    Engine | None, _option("--export", panel=_OUTPUT, text="Print how to start another engine with this plan.")
]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where results go.

    Attributes
    ----------
    format
        What is printed.
    out
        File or folder; ``None`` writes nothing.
    experiment
        MLflow experiment; ``None`` does not track.
    """

    format: OutputFormat
    out: Path | None
    experiment: str | None

    def effective(self) -> dict[str, object]:
        """Return plain JSON."""
        return {
            "format": self.format.value,
            "out": None if self.out is None else str(self.out),
            "track": self.experiment is not None,
            "experiment": self.experiment,
        }


def solve_limits(time_limit: float, memory_limit: str | None, seed: int, workers: int) -> SolveLimits:
    """Return the limits of each method; a time limit of 0 is none.

    Raises
    ------
    InputError
        When the memory limit is no size.
    """
    try:
        memory = None if memory_limit is None else int(parse_bytes(memory_limit))
    except InputError as error:
        raise error.located(key="--memory-limit") from error
    return SolveLimits(time_limit or None, memory, seed, workers)


def limits_config(limits: SolveLimits) -> dict[str, object]:
    """Return limits as plain JSON."""
    return {
        "time_s": limits.time_s,
        "memory_bytes": limits.memory_bytes,
        "seed": limits.seed,
        "workers": limits.workers,
        "is_reproducible": limits.workers == 1,
    }
