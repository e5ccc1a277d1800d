"""From a command's problem options to :class:`~experiments.problem_setup.ProblemOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from experiments.problem_setup import ProblemOptions

FIELDS = (
    *("cluster", "model", "traffic", "prompt_tokens", "output_tokens", "context_tokens", "objective", "in_flight"),
    *("max_micro_batches", "max_interval", "max_in_flight", "weight_bits", "kv_bits", "kv_mode", "memory_utilization"),
    *("batch_grid", "tp"),
)
"""Options that describe the problem, named as in :class:`ProblemOptions`."""


def problem_options(given: Mapping[str, object], **changes: object) -> ProblemOptions:
    """Return the problem options out of a command's arguments (its ``locals()`` before anything else is assigned).

    Parameters
    ----------
    given
        Argument values by name; others than :data:`FIELDS` are ignored.
    changes
        Values that replace the given ones.
    """
    chosen = {name: changes.get(name, given[name]) for name in FIELDS}
    plain = {name: value.value if isinstance(value, Enum) else value for name, value in chosen.items()}
    return ProblemOptions(**plain)  # type: ignore[arg-type]  # checked by the command line's own types
