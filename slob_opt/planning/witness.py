"""What makes a bound checkable by code that did not find it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CapacityWitness:
    """The bound follows from a closed formula over the table (see :mod:`slob_opt.planning.bounds`); recompute it.

    Attributes
    ----------
    formula
        Name of the formula.
    """

    formula: str


@dataclass(frozen=True, slots=True)
class MemoryWitness:
    """No plan exists because all usable memory together is too small.

    Attributes
    ----------
    need_bytes, have_bytes
        Smallest need of any plan and all that devices offer.
    """

    need_bytes: int
    have_bytes: int


@dataclass(frozen=True, slots=True)
class PatternWitness:
    """Prices of device classes under which no pattern but the listed ones earns more than its price.

    Any set of disjoint pipelines that uses an unlisted pattern is worth at most ``sum(prices * cards) - slack``;
    over the listed patterns alone the best packing is found by a max-plus dynamic program. The bound is the larger
    of the two. A pattern is a count of devices per class of links and class of cost; see solvers/FORMULATION.md,
    section 4.

    Attributes
    ----------
    prices
        (groups,) tokens/s a device of each group (see :class:`slob_opt.planning.groups.Groups`).
    slack
        Amount by which every unlisted pattern falls short of its price, tokens/s. Zero with no listed patterns is a
        plain dual bound.
    patterns
        Listed patterns, each (groups,) counts.
    rates
        Upper limits of their rates, tokens/s.
    """

    prices: tuple[float, ...]
    slack: float = 0.0
    patterns: tuple[tuple[int, ...], ...] = ()
    rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RelaxedPriceWitness:
    """Prices that hold for every pattern by a Lagrangian relaxation (time is priced), for boxes too large to enumerate.

    Attributes
    ----------
    prices
        (groups,) tokens/s a device.
    num_interval_steps
        Points of the interval grid on which the relaxation was priced.
    multipliers
        Prices of a second of pipeline time that were tried.
    """

    prices: tuple[float, ...]
    num_interval_steps: int
    multipliers: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ThresholdWitness:
    """No pattern or subset reaches an interval below the bound; re-check each at ``bound - 1 tick``.

    Attributes
    ----------
    kind
        ``"pattern"`` (counts per class), ``"subset"`` (device subsets with exact routes) or ``"layered"`` (unequal
        layers).
    """

    kind: str


@dataclass(frozen=True, slots=True)
class SubsetWitness:
    """A superadditive worth of device subsets that no pipeline exceeds.

    ``value[S | T] >= value[S] + value[T]`` for disjoint S and T and no pipeline on exactly the devices S has a rate
    above ``value[S]``, hence no family of disjoint pipelines is worth more than ``value[all]``.

    Attributes
    ----------
    value
        (2 ** D,) tokens/s, by bit mask.
    """

    value: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EnumerationWitness:
    """Every plan was looked at; running the enumeration again checks it.

    Attributes
    ----------
    num_plans
        Plans looked at.
    """

    num_plans: int


Witness = (
    CapacityWitness
    | MemoryWitness
    | PatternWitness
    | RelaxedPriceWitness
    | ThresholdWitness
    | SubsetWitness
    | EnumerationWitness
)
