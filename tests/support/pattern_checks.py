"""Checks that tests of pattern methods share: agreement with another method, and a verified certificate."""

from __future__ import annotations

import pytest

from slob_opt.planning.certify import certify
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import SolveResult, Status

SAME = 1e-9
"""Relative difference of two proven values that counts as none."""


def agrees(result: SolveResult, other: SolveResult) -> None:
    """Both are proven, with the same value."""
    assert result.status == other.status
    assert (result.objective is None) == (other.objective is None)
    if other.objective is not None:
        assert result.status is Status.OPTIMAL
        assert result.objective == pytest.approx(other.objective, rel=SAME)


def is_verified(result: SolveResult, instance: PlacementInstance) -> None:
    """The certificate is valid and the bound verified."""
    certificate = certify(result, instance)
    assert certificate.is_valid, certificate.violations
    assert certificate.bound_status == "verified", certificate.reasons
    assert certificate.status == result.status
