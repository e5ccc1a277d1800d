"""Presets as they are written in ``presets.json``, made into distributions and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from slob_opt.errors import InputError
from slob_opt.problem.catalogue.lookup import nearest, read_data
from slob_opt.problem.distributions import Distribution, LogNormal, LogNormalMixture, Weibull
from slob_opt.problem.rate_profile import RateProfile
from slob_opt.problem.sessions import SessionShape, TurnCounts

_PACKAGE = "slob_opt.problem.presets"

EXAMPLE_TRACE = Path(__file__).with_name("example.csv")
"""A trace in our own format: half a day of ``office_chat``, sampled with seed 0."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A synthetic workload.

    Attributes
    ----------
    id
        Name, as ``office_chat``.
    about
        One sentence.
    day_s
        Length of a day, seconds. Where it is shorter than 24 h, nights are left out: one day follows the other.
    arrivals
        Kind and numbers of the arrival process, see :mod:`slob_opt.problem.presets.sampling`.
    profile
        How the rate changes over the day; ``None`` when it doesn't.
    prompt
        Prompt tokens; ``None`` where `session` makes them.
    session
        Shape of a conversation; ``None`` where each request stands alone.
    output
        Output tokens; their largest value is each request's ``max_new_tokens``.
    ttft_s, tpot_s
        Service targets, seconds.
    variants
        Other prompt lengths by name.
    sources
        (what, where it is from); says what was fitted and what was chosen.
    """

    id: str
    about: str
    day_s: float
    arrivals: Mapping[str, Any]
    profile: RateProfile | None
    prompt: Distribution | None
    session: SessionShape | None
    output: Distribution
    ttft_s: float
    tpot_s: float
    variants: Mapping[str, Distribution]
    sources: tuple[tuple[str, str], ...]

    @property
    def mean_rate(self) -> float:
        """Requests/s over a whole day."""
        kind = self.arrivals["kind"]
        if kind == "gamma":
            return float(self.arrivals["rate"])
        if kind == "on/off":
            on, off = float(self.arrivals["mean_on_s"]), float(self.arrivals["mean_off_s"])
            return float(self.arrivals["on_rate"]) * on / (on + off)
        each = self.arrivals["mean_size"] if kind == "batches" else 1.0
        turns = 1.0 if self.session is None else self.session.turns.mean
        return float(self.arrivals["per_day"] / self.day_s * each * turns)

    def prompt_of(self, variant: str | None) -> Distribution | None:
        """Return the prompt lengths of a variant, or the preset's own for ``None``.

        Raises
        ------
        InputError
            When there is no such variant.
        """
        if variant is None:
            return self.prompt
        if variant not in self.variants:
            known = f"expected one of {', '.join(self.variants)}" if self.variants else "it has none"
            raise InputError(f"preset {self.id} has no variant {variant!r}; {known}")
        return self.variants[variant]


@cache
def _rows() -> dict[str, Mapping[str, Any]]:
    return {row["id"]: row for row in read_data("presets.json", _PACKAGE)["presets"]}


def preset_ids() -> tuple[str, ...]:
    """Return the names of all presets."""
    return tuple(_rows())


@cache
def load_preset(name: str) -> Preset:
    """Return a preset by name.

    Raises
    ------
    InputError
        When there is no such preset; the nearest one is named.
    """
    rows = _rows()
    if name not in rows:
        near = nearest(name, rows, 1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(rows)}"
        raise InputError(f"no preset {name!r}; {hint}")
    row = rows[name]
    output = _distribution(row["output"])
    return Preset(
        id=name,
        about=row["about"],
        day_s=float(row["day_s"]),
        arrivals=row["arrivals"],
        profile=_profile(row),
        prompt=_distribution(row["input"]) if "input" in row else None,
        session=_session(row["session"], output) if "session" in row else None,
        output=output,
        ttft_s=float(row["ttft_s"]),
        tpot_s=float(row["tpot_s"]),
        variants={key: _distribution(value) for key, value in row.get("variants", {}).items()},
        sources=tuple(row["sources"].items()),
    )


def _distribution(row: Mapping[str, Any]) -> Distribution:
    least, most = row["clip"]
    if row["kind"] == "lognormal":
        return LogNormal(row["mu"], row["sigma"], least, most)
    if row["kind"] == "weibull":
        return Weibull(row["shape"], row["scale"], least, most)
    return LogNormalMixture(tuple(map(tuple, row["components"])), least, most)


def _session(row: Mapping[str, Any], output: Distribution) -> SessionShape:
    return SessionShape(
        turns=TurnCounts(row["turns"]["single"], row["turns"]["stop"]),
        think_s=_distribution(row["think_s"]),
        answer_s_per_token=row["answer_s_per_token"],
        system_tokens=row["system_tokens"],
        user_tokens=_distribution(row["user_tokens"]),
        attachment_share=row["attachment_share"],
        attachment_tokens=_distribution(row["attachment_tokens"]),
        output_tokens=output,
    )


def _profile(row: Mapping[str, Any]) -> RateProfile | None:
    if "hours" in row:
        return RateProfile.of_hours({int(hour): weight for hour, weight in row["hours"].items()})
    if "peaks" not in row:
        return None
    peaks = row["peaks"]
    edges, weights = [0.0], []
    for start in peaks["starts_s"]:
        edges += [float(start), float(start + peaks["length_s"])]
        weights += [1.0, float(peaks["weight"])]
    return RateProfile.scaled((*edges, float(row["day_s"])), (*weights, 1.0))
