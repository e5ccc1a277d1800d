"""Named sets of bundled instances."""

from __future__ import annotations

from experiments.registry import nearest
from slob_opt.errors import InputError

SUITES: dict[str, tuple[tuple[str, str], ...]] = {
    # A homogeneous network with three types of cards, nodes of several cards over seven types, and two nodes whose
    # links differ and whose cards may work as tensor-parallel groups: three kinds that need
    # different proofs.
    "demo": (
        ("helix-single24", "llama-2-70b"),
        ("helix-hetero42", "llama-2-70b"),
        ("llmpq-5", "opt-30b"),
    ),
}
"""(cluster id, model id) of each instance by suite."""


def suite(name: str) -> tuple[tuple[str, str], ...]:
    """Return the instances of a suite.

    Raises
    ------
    InputError
        When there is no such suite.
    """
    if name not in SUITES:
        raise InputError(f"no suite {name!r}{nearest(name, SUITES)}")
    return SUITES[name]
