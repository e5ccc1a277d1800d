"""What a check of a bound found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BoundStatus = Literal["verified", "claimed", "none", "refuted"]

RELATIVE_TOLERANCE = 1e-9
"""By how much a claimed figure may differ from the recomputed one. Chosen: times are exact, so what remains is the
rounding of a few float64 operations in the claim; see test_certify."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one check.

    Attributes
    ----------
    status
        ``"verified"``: the witness proves the bound. ``"claimed"``: this code can't tell. ``"refuted"``: the witness
        does not prove the bound, or the bound is wrong. ``"none"``: there was nothing to check.
    reason
        One sentence.
    """

    status: BoundStatus
    reason: str


def verified(reason: str) -> Verdict:
    """Return a verdict that the bound is proven."""
    return Verdict("verified", reason)


def claimed(reason: str) -> Verdict:
    """Return a verdict that nothing is known but the claim."""
    return Verdict("claimed", reason)


def refuted(reason: str) -> Verdict:
    """Return a verdict that the claim does not hold."""
    return Verdict("refuted", reason)


def failed(reason: str, *, is_exact: bool) -> Verdict:
    """Return the verdict on a witness that did not pass.

    Where the check looks at a relaxation (`is_exact` false) an honest witness may fail too, so the bound stays claimed.
    """
    if is_exact:
        return refuted(reason)
    return claimed(f"{reason}; the check relaxes this instance, so that is no refutation")
