"""Options of `slob workload`, and what they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.number_options import MAX_SEED, MAX_TOKENS, number, whole
from experiments.workload_source import (
    ArrivalKind,
    ArrivalOptions,
    Change,
    TraceOptions,
    model_limit,
    parse_faults,
)
from slob_opt.errors import InputError
from slob_opt.problem.files.traces import format_names
from slob_opt.units import parse_seconds

MAX_ROWS = 10**9
"""Most requests that can be asked for. Chosen."""

_TRACE, _TIMES, _SAMPLE, _OUTPUT = "Trace", "Times", "Sample", "Output"


def _option(*names: str, panel: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def _whole(*names: str, panel: str, text: str, least: int, most: int) -> Any:
    return _option(*names, panel=panel, text=text, parser=whole(least, most), metavar="<int>")


def _number(*names: str, panel: str, text: str, **limits: float) -> Any:
    return _option(*names, panel=panel, text=text, parser=number(**limits), metavar="<float>")


Trace = Annotated[
    str, typer.Argument(help="Trace file (.gz too), folder of ServeGen, or example, which ships with slob.")
]
TraceFormat = Annotated[
    str | None,
    _option(
        "--trace-format", panel=_TRACE, text=f"Format, else told from the first line: {', '.join(format_names())}."
    ),
]
Skip = Annotated[
    str | None,
    _option(
        "--skip",
        panel=_TRACE,
        text="Rows to leave out and count: zero-tokens, too-long, negative-time, unsorted, or all.",
    ),
]
MaxModelTokens = Annotated[
    int | None,
    _whole(
        "--max-model-tokens",
        panel=_TRACE,
        text="Most tokens of prompt and output together.",
        least=2,
        most=MAX_TOKENS,
    ),
]
Model = Annotated[
    str | None, _option("--model", "-m", panel=_TRACE, text="The same, from a model: catalogue id, file or folder.")
]
Clip = Annotated[bool, _option("--clip", panel=_TRACE, text="Shorten prompts that are too long instead.")]
MaxRequests = Annotated[
    int | None, _whole("--max-requests", panel=_TRACE, text="Stop after so many.", least=1, most=MAX_ROWS)
]
Since = Annotated[
    str | None, _option("--from", panel=_TIMES, text="Leave out what comes before, as 600s or 10min; becomes 0.")
]
Until = Annotated[str | None, _option("--until", panel=_TIMES, text="Leave out what comes from here on, as 70min.")]
Arrivals = Annotated[
    ArrivalKind | None, _option("--arrivals", panel=_TIMES, text="Process whose times replace the trace's own.")
]
Rate = Annotated[float | None, _number("--rate", panel=_TIMES, text="Its mean rate, requests/s.", above=0, most=1e6)]
Cv = Annotated[
    float | None, _number("--cv", panel=_TIMES, text="Variation of its gaps (gamma, weibull).", least=0.1, most=20)
]
On = Annotated[str | None, _option("--on", panel=_TIMES, text="Mean length of a burst (on-off), as 22s.")]
Off = Annotated[str | None, _option("--off", panel=_TIMES, text="Mean length of a pause (on-off), as 53s.")]
Thin = Annotated[
    float | None, _number("--thin", panel=_TIMES, text="Keep a random share; bursts get weaker.", above=0, most=1)
]
Stretch = Annotated[
    float | None, _number("--stretch", panel=_TIMES, text="Multiply all times; 2 halves the rate.", above=0, most=1e6)
]
ThinTo = Annotated[
    float | None, _number("--thin-to", panel=_TIMES, text="Thin to a rate, requests/s.", above=0, most=1e6)
]
StretchTo = Annotated[
    float | None, _number("--stretch-to", panel=_TIMES, text="Stretch to a rate, requests/s.", above=0, most=1e6)
]
Days = Annotated[
    float | None, _number("--days", panel=_SAMPLE, text="Length in days of the preset; default 1.", above=0, most=3660)
]
Duration = Annotated[str | None, _option("--duration", panel=_SAMPLE, text="Length instead of days, as 60min.")]
PresetRate = Annotated[
    float | None,
    _number("--rate", panel=_SAMPLE, text="Mean requests/s over a day; default: the preset's.", above=0, most=1e6),
]
Even = Annotated[bool, _option("--even", panel=_SAMPLE, text="The same rate at every hour.")]
Variant = Annotated[
    str | None, _option("--variant", panel=_SAMPLE, text="Other prompts (doc_summary: arxiv-4k, mooncake-128k).")
]
Seed = Annotated[int, _whole("--seed", panel=_TIMES, text="Seed of whatever is random.", least=0, most=MAX_SEED)]
SampleSeed = Annotated[int, _whole("--seed", panel=_SAMPLE, text="Seed of the sample.", least=0, most=MAX_SEED)]
OutTrace = Annotated[Path, _option("--out", "-o", panel=_OUTPUT, text="File to write: .csv or .jsonl, and .gz.")]
OutSample = Annotated[
    Path | None, _option("--out", "-o", panel=_OUTPUT, text="Write the sample to this file: .csv or .jsonl, and .gz.")
]


def seconds(text: str, option: str, *, allow_zero: bool = False) -> float:
    """Return a time in seconds from the text of an option; raises InputError that names the option."""
    try:
        return float(parse_seconds(text, allow_zero=allow_zero))
    except InputError as error:
        raise error.located(key=option) from error


def trace_options(given: Mapping[str, Any]) -> TraceOptions:
    """Return the trace that options name.

    Parameters
    ----------
    given
        Values by the names of the command's parameters.

    Raises
    ------
    InputError
        When a value is wrong, or an option would have no effect.
    """
    return TraceOptions(
        trace=given["trace"],
        kind=given["trace_format"],
        skip=parse_faults(given["skip"]),
        max_tokens=model_limit(given["model"], given["max_model_tokens"]),
        is_clipping=given["clip"],
        max_requests=given["max_requests"],
        window_s=_window(given["since"], given["until"]),
        arrivals=_arrivals(given),
        change=_change(given),
        seed=given["seed"],
    )


def _window(since: str | None, until: str | None) -> tuple[float, float] | None:
    if since is None and until is None:
        return None
    first = 0.0 if since is None else seconds(since, "--from", allow_zero=True)
    end = 1e9 if until is None else seconds(until, "--until")  # 31 years: later than any trace
    if first >= end:
        raise InputError(f"the window from {first:g} s until {end:g} s is empty")
    return first, end


def _arrivals(given: Mapping[str, Any]) -> ArrivalOptions | None:
    if given["arrivals"] is None:
        for name in ("rate", "cv", "on", "off"):
            if given[name] is not None:
                raise InputError(f"--{name} needs --arrivals")
        return None
    if given["rate"] is None:
        raise InputError("--arrivals needs --rate")
    on, off = (None if given[name] is None else seconds(given[name], f"--{name}") for name in ("on", "off"))
    return ArrivalOptions(given["arrivals"], given["rate"], given["cv"], on, off)


def _change(given: Mapping[str, Any]) -> tuple[Change, float] | None:
    chosen = [(kind, given[kind.value.replace("-", "_")]) for kind in Change]
    said = [(kind, value) for kind, value in chosen if value is not None]
    if len(said) > 1:
        raise InputError(f"--{said[0][0].value} and --{said[1][0].value} exclude each other")
    return said[0] if said else None


def figure(value: float | None) -> str:
    """Return a number with four digits, or a dash."""
    return "–" if value is None else f"{value:.4g}"


def span_text(span_s: float) -> str:
    """Return a length of time for people.

    Examples
    --------
    >>> span_text(3435.9), span_text(86400.0), span_text(75.5)
    ('57.27 min', '24 h', '75.5 s')
    """
    for unit, length_s in (("h", 3600.0), ("min", 60.0)):
        if span_s >= 2 * length_s:
            return f"{span_s / length_s:.4g} {unit}"
    return f"{span_s:.4g} s"
