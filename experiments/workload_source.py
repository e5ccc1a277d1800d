"""A workload as options describe it: a trace that is read and changed, or a preset that is sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from experiments.registry import nearest
from slob_opt.errors import InputError
from slob_opt.problem import arrivals as processes
from slob_opt.problem.files.find import find_model
from slob_opt.problem.files.traces import RowFault, TraceReport, find_trace, read_trace
from slob_opt.problem.presets import load_preset, sample_preset
from slob_opt.problem.replay import at_rate, stretched, thinned
from slob_opt.problem.workload import Workload

IntArray = NDArray[np.int64]

# Streams of a seed, so that what one draws doesn't depend on whether the other does.
_ARRIVAL_STREAM, _THINNING_STREAM = 1, 2


class ArrivalKind(StrEnum):
    """An arrival process that replaces a trace's own times."""

    POISSON = "poisson"
    GAMMA = "gamma"
    WEIBULL = "weibull"
    ON_OFF = "on-off"


class Change(StrEnum):
    """What is done to the times of a trace."""

    THIN = "thin"
    STRETCH = "stretch"
    THIN_TO = "thin-to"
    STRETCH_TO = "stretch-to"


@dataclass(frozen=True, slots=True)
class ArrivalOptions:
    """An arrival process.

    Attributes
    ----------
    kind
        Which one.
    rate_per_s
        Mean rate, requests/s.
    cv
        Coefficient of variation of the gaps, for gamma and Weibull; ``None`` for the others.
    on_s, off_s
        Mean length of bursts and pauses, seconds, for on-off; ``None`` for the others.
    """

    kind: ArrivalKind
    rate_per_s: float
    cv: float | None = None
    on_s: float | None = None
    off_s: float | None = None

    def __post_init__(self) -> None:
        needs_cv = self.kind in (ArrivalKind.GAMMA, ArrivalKind.WEIBULL)
        if needs_cv != (self.cv is not None):
            raise InputError(f"--arrivals {self.kind.value} {'needs' if needs_cv else 'does not take'} --cv")
        for name, value in (("--on", self.on_s), ("--off", self.off_s)):
            if (self.kind is ArrivalKind.ON_OFF) != (value is not None):
                verb = "needs" if value is None else "does not take"
                raise InputError(f"--arrivals {self.kind.value} {verb} {name}")

    def times(self, count: int, seed: int) -> IntArray:
        """Return the first arrivals, (count,) int64, nanoseconds from 0."""

        def process(duration_s: float) -> IntArray:
            rng = np.random.default_rng([seed, _ARRIVAL_STREAM])
            if self.cv is not None:
                law = processes.gamma if self.kind is ArrivalKind.GAMMA else processes.weibull
                return law(self.rate_per_s, self.cv, duration_s, rng, is_stationary=True)
            if self.on_s is not None and self.off_s is not None:
                on_rate = self.rate_per_s * (self.on_s + self.off_s) / self.on_s
                return processes.on_off(on_rate, self.on_s, self.off_s, duration_s, rng)
            return processes.poisson(self.rate_per_s, duration_s, rng)

        return processes.first_arrivals(count, self.rate_per_s, process)


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """A trace, and what is done to it, in this order.

    Attributes
    ----------
    trace
        File, folder, or ``example``.
    kind
        Format; ``None`` looks at the first line.
    skip
        Faults of rows that are left out and counted.
    max_tokens
        Most tokens of prompt and output together; ``None`` is no limit.
    is_clipping
        Whether longer prompts are shortened.
    max_requests
        Stop after so many; ``None`` takes all.
    window_s
        ``[first, end)`` of the times to take, seconds; ``None`` takes all.
    arrivals
        Process whose times replace the trace's; ``None`` keeps those.
    change
        What is done to the times, with its number; ``None`` leaves them.
    seed
        Of ServeGen's sampling, of the arrivals and of thinning.
    """

    trace: str
    kind: str | None = None
    skip: tuple[RowFault, ...] = ()
    max_tokens: int | None = None
    is_clipping: bool = False
    max_requests: int | None = None
    window_s: tuple[float, float] | None = None
    arrivals: ArrivalOptions | None = None
    change: tuple[Change, float] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens is None and (self.is_clipping or RowFault.TOO_LONG in self.skip):
            raise InputError("rows are too long for a limit only: give --max-model-tokens or --model")
        if self.is_clipping and RowFault.TOO_LONG in self.skip:
            raise InputError("rows that are too long are clipped or skipped, not both")

    def effective(self) -> dict[str, object]:
        """Return plain JSON."""
        arrivals = self.arrivals
        return {
            "trace": self.trace,
            "trace_format": self.kind,
            "skip": [fault.value for fault in self.skip],
            "max_model_tokens": self.max_tokens,
            "clip": self.is_clipping,
            "max_requests": self.max_requests,
            "window_s": None if self.window_s is None else list(self.window_s),
            "arrivals": None
            if arrivals is None
            else {
                "kind": arrivals.kind.value,
                "rate_per_s": arrivals.rate_per_s,
                "cv": arrivals.cv,
                "on_s": arrivals.on_s,
                "off_s": arrivals.off_s,
            },
            "change": None if self.change is None else {"kind": self.change[0].value, "by": self.change[1]},
            "seed": self.seed,
        }

    def load(self, progress: Callable[[int], None] | None = None) -> tuple[Workload, TraceReport]:
        """Return the workload and the report on the trace's rows.

        Parameters
        ----------
        progress
            Called now and then with the number of rows read; ``None`` tells nobody.

        Raises
        ------
        InputError
            When the trace is missing or wrong, or nothing is left.
        """
        path = find_trace(self.trace)
        chosen, seed = self.arrivals, self.seed
        workload, report = read_trace(
            path,
            self.kind,
            skip=self.skip,
            max_tokens=self.max_tokens,
            is_clipping=self.is_clipping,
            max_requests=self.max_requests,
            window_s=self.window_s,
            arrivals=None if chosen is None else lambda count: chosen.times(count, seed),
            seed=seed,
            progress=progress,
        )
        return self._changed(workload), replace(report, file=self.trace)

    def _changed(self, workload: Workload) -> Workload:
        if self.change is None:
            return workload
        kind, number = self.change
        rng = np.random.default_rng([self.seed, _THINNING_STREAM])
        if kind is Change.THIN:
            return thinned(workload, number, rng)
        if kind is Change.STRETCH:
            return stretched(workload, number)
        return at_rate(workload, number, seed=rng if kind is Change.THIN_TO else None)


@dataclass(frozen=True, slots=True)
class PresetOptions:
    """A sample of a preset.

    Attributes
    ----------
    preset
        Its name.
    days
        Length in days of the preset; ``None`` where `duration_s` says it.
    duration_s
        Length, seconds; ``None`` where `days` says it.
    rate_per_s
        Mean rate over a day, requests/s; ``None`` keeps the preset's.
    is_even
        Whether the hours' profile is left out.
    variant
        Other prompt lengths; ``None`` keeps the preset's.
    seed
        Of the sample.
    """

    preset: str
    days: float | None = 1.0
    duration_s: float | None = None
    rate_per_s: float | None = None
    is_even: bool = False
    variant: str | None = None
    seed: int = 0

    @property
    def span_s(self) -> float:
        """Length of the sample, seconds."""
        if self.duration_s is not None:
            return self.duration_s
        return (self.days or 1.0) * load_preset(self.preset).day_s

    def effective(self) -> dict[str, object]:
        """Return plain JSON."""
        return {
            "preset": self.preset,
            "duration_s": self.span_s,
            "rate_per_s": load_preset(self.preset).mean_rate if self.rate_per_s is None else self.rate_per_s,
            "even": self.is_even,
            "variant": self.variant,
            "seed": self.seed,
        }

    def load(self) -> Workload:
        """Return the sample; raises InputError when preset or variant are unknown, or no request falls into it."""
        return sample_preset(
            self.preset,
            self.seed,
            duration_s=self.span_s,
            rate_per_s=self.rate_per_s,
            is_even=self.is_even,
            variant=self.variant,
        )


def parse_faults(text: str | None) -> tuple[RowFault, ...]:
    """Return the faults named in a comma-separated list, ``all`` for every one; raises InputError for unknown names."""
    if text is None:
        return ()
    named = [word.strip().lower() for word in text.split(",") if word.strip()]
    known = {fault.value: fault for fault in RowFault if fault is not RowFault.FAILED}  # those are skipped anyway
    if named == ["all"]:
        return tuple(known.values())
    for name in named:
        if name not in known:
            raise InputError(f"no fault {name!r}{nearest(name, [*known, 'all'])}", key="--skip")
    if not named:
        raise InputError(f"found nothing, expected some of {', '.join(known)}, or all", key="--skip")
    return tuple(known[name] for name in dict.fromkeys(named))


def model_limit(model: str | None, max_model_tokens: int | None) -> int | None:
    """Return the longest context of a model, or the limit that was given; ``None`` without either.

    Raises
    ------
    InputError
        When both are given, the model is unknown, or its longest context is.
    """
    if model is None:
        return max_model_tokens
    if max_model_tokens is not None:
        raise InputError("--model and --max-model-tokens say the same thing; give one of them")
    limit = find_model(model).max_position
    if limit is None:
        raise InputError(f"the longest context of model {model!r} is not known; give --max-model-tokens", key="--model")
    return limit
