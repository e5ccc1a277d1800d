"""A mixed-integer model as plain data: what every back end builds from, and what crosses into the solver process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from slob_opt.errors import InputError

MAX_EXACT = 2**53
"""Whole numbers up to here are exact in float64; solvers convert coefficients to it."""

Terms = Mapping[int, float]
"""Coefficient by variable id."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable.

    Attributes
    ----------
    name
        As in FORMULATION.md, with indices, as ``u[0,3]``.
    lower, upper
        Finite bounds.
    is_integer
        Whether it takes whole values only.
    """

    name: str
    lower: float
    upper: float
    is_integer: bool


@dataclass(frozen=True, slots=True)
class Row:
    """``lower <= sum of terms <= upper``, where it holds.

    Attributes
    ----------
    name
        As in FORMULATION.md.
    terms
        (variable id, coefficient) pairs, no id twice, no zeros.
    lower, upper
        ``None`` means no limit on that side.
    only_if
        Ids of 0/1 variables; the row holds when all are 1. Empty: always.
    """

    name: str
    terms: tuple[tuple[int, float], ...]
    lower: float | None
    upper: float | None
    only_if: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Arc:
    """An arc of a circuit, chosen when a 0/1 variable is 1 (or 0, when `is_negated`)."""

    tail: int
    head: int
    variable: int
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Quotient:
    """``quotient == floor(scale * numerator / denominator)`` of integer variables; the denominator is 1 or more."""

    quotient: int
    numerator: int
    scale: int
    denominator: int


@dataclass(frozen=True, slots=True)
class Extreme:
    """``target`` is the largest of some integer variables, or the smallest."""

    target: int
    of: tuple[int, ...]
    is_largest: bool


@dataclass(slots=True)
class IntegerModel:
    """Variables, rows, circuits and products, with a linear objective to minimise.

    Built up by the ``add_*`` methods and not changed afterwards. Back ends refuse what they can't express
    (circuits, quotients and extremes are for CP-SAT, real variables for the ILP).

    Attributes
    ----------
    name
        Shown in messages.
    variables, rows, circuits, quotients, extremes
        In the order they were added.
    objective
        Coefficient by variable id, minimised.
    hint
        Values of an incumbent by variable id; may be partial.
    """

    name: str
    variables: list[Variable] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    circuits: list[tuple[Arc, ...]] = field(default_factory=list)
    quotients: list[Quotient] = field(default_factory=list)
    extremes: list[Extreme] = field(default_factory=list)
    objective: dict[int, float] = field(default_factory=dict)
    hint: dict[int, float] = field(default_factory=dict)

    def add_bool(self, name: str) -> int:
        """Return the id of a new 0/1 variable."""
        return self.add_int(name, 0, 1)

    def add_int(self, name: str, lower: int, upper: int) -> int:
        """Return the id of a new integer variable; raises InputError unless both bounds are finite and ordered."""
        return self._add(Variable(name, lower, upper, True))

    def add_real(self, name: str, lower: float, upper: float) -> int:
        """Return the id of a new real variable; raises InputError unless both bounds are finite and ordered."""
        return self._add(Variable(name, lower, upper, False))

    def _add(self, variable: Variable) -> int:
        if not (math.isfinite(variable.lower) and math.isfinite(variable.upper)):
            raise InputError(f"variable {variable.name} of {self.name} needs finite bounds, from the instance")
        if variable.lower > variable.upper:
            raise InputError(f"variable {variable.name} of {self.name} has bounds {variable.lower} > {variable.upper}")
        if max(abs(variable.lower), abs(variable.upper)) > MAX_EXACT:
            raise InputError(f"variable {variable.name} of {self.name} has a bound beyond 2^53; use a coarser unit")
        self.variables.append(variable)
        return len(self.variables) - 1

    def add_row(
        self,
        name: str,
        terms: Terms,
        *,
        lower: float | None = None,
        upper: float | None = None,
        only_if: Sequence[int] = (),
    ) -> None:
        """Add a row; rows of whole numbers are divided by the greatest common divisor of their coefficients.

        The division rounds `upper` down and `lower` up, which cuts off nothing that integer variables can reach.
        """
        kept = tuple((v, c) for v, c in sorted(terms.items()) if c != 0)
        lower, upper, kept = self._reduced(kept, lower, upper)
        self.rows.append(Row(name, kept, lower, upper, tuple(only_if)))

    def _reduced(
        self, terms: tuple[tuple[int, float], ...], lower: float | None, upper: float | None
    ) -> tuple[float | None, float | None, tuple[tuple[int, float], ...]]:
        if not terms or any(int(c) != c or not self.variables[v].is_integer for v, c in terms):
            return lower, upper, terms
        divisor = math.gcd(*(int(c) for _, c in terms))
        if divisor == 1:
            return lower, upper, terms
        return (
            None if lower is None else math.ceil(Fraction(lower) / divisor),
            None if upper is None else math.floor(Fraction(upper) / divisor),
            tuple((v, int(c) // divisor) for v, c in terms),
        )

    def add_equal(self, name: str, terms: Terms, value: float) -> None:
        """Add ``sum of terms == value``."""
        self.add_row(name, terms, lower=value, upper=value)

    def activity(self, terms: Iterable[tuple[int, float]]) -> tuple[float, float]:
        """Return the smallest and the largest value that a sum of terms can take within the variables' bounds."""
        low = high = 0.0
        for v, c in terms:
            ends = (c * self.variables[v].lower, c * self.variables[v].upper)
            low += min(ends)
            high += max(ends)
        return low, high

    def check_magnitudes(self, unit: str) -> None:
        """Raise InputError when the worst case of a row passes 2^53, naming the row and the unit to use instead.

        Parameters
        ----------
        unit
            What to use instead, as ``"ticks of 2^-26 s"``.
        """
        for row in [*self.rows, Row("objective", tuple(self.objective.items()), None, None)]:
            worst = sum(abs(c) * max(abs(self.variables[v].lower), abs(self.variables[v].upper)) for v, c in row.terms)
            limits = [abs(x) for x in (row.lower, row.upper) if x is not None]
            if max([worst, *limits]) >= MAX_EXACT:
                raise InputError(
                    f"row {row.name} of {self.name} can reach {max([worst, *limits]):.3g}, "
                    f"beyond 2^53 = 9.0e15; use {unit}"
                )

    def largest_boolean_sum(self) -> float:
        """Return the largest sum of absolute coefficients of 0/1 variables in one row."""
        sums = [
            sum(abs(c) for v, c in row.terms if (self.variables[v].lower, self.variables[v].upper) == (0, 1))
            for row in self.rows
        ]
        return max(sums, default=0.0)

    @property
    def num_terms(self) -> int:
        """Nonzero coefficients of all rows."""
        return sum(len(r.terms) for r in self.rows)

    def violated_row(self, values: Mapping[int, float], tolerance: float = 1e-6) -> str | None:
        """Return the name of a row that complete `values` break, or ``None``; circuits are not looked at."""
        for q in self.quotients:
            if values[q.quotient] != q.scale * int(values[q.numerator]) // int(values[q.denominator]):
                return self.variables[q.quotient].name
        for extreme in self.extremes:
            pick = max if extreme.is_largest else min
            if values[extreme.target] != pick(values[v] for v in extreme.of):
                return self.variables[extreme.target].name
        for row in self.rows:
            if any(values[v] < 0.5 for v in row.only_if):
                continue
            total = sum(c * values[v] for v, c in row.terms)
            slack = tolerance * (1 + sum(abs(c * values[v]) for v, c in row.terms))
            if (row.lower is not None and total < row.lower - slack) or (
                row.upper is not None and total > row.upper + slack
            ):
                return row.name
        return None
