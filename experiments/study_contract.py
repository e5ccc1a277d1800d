"""What a study is given and what it hands back; ``slob study NAME`` calls ``experiments.studies.NAME.run``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.provenance import Provenance
from experiments.run_record import CLAIM_METRICS, RunRecord
from slob_opt.errors import InputError


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """What a study is given.

    Attributes
    ----------
    out
        Folder for whatever the study writes beside its summary.
    is_quick
        Whether to finish within two minutes on two cores, with fewer instances.
    seed
        First seed of the generated instances.
    workers
        Processes that may run at a time.
    progress
        Told what is being done, one short line at a time; a function that does nothing is fine.
    file
        Study file instead of the one that ships with the study; ``None`` takes that one.
    reference_data
        Folder of published traces that can't be shipped; ``None`` where there is none.
    """

    out: Path
    is_quick: bool
    seed: int
    workers: int
    progress: Callable[[str], None]
    file: Path | None = None
    reference_data: Path | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure of the README, measured again.

    Attributes
    ----------
    id
        Stable once published; one of :data:`experiments.run_record.CLAIM_METRICS`.
    value
        What was measured; ``None`` when this run could not measure it.
    unit
        Unit of value and target; empty for a count.
    target
        What the value is held against, in words, as ``<= 1``.
    holds
        Whether it does; ``None`` when there is no value.
    """

    id: str
    value: float | None
    unit: str
    target: str
    holds: bool | None

    def __post_init__(self) -> None:
        if self.id not in CLAIM_METRICS:
            raise InputError(f"claim {self.id!r} is not in the list of published claims")
        if self.value is not None and not math.isfinite(self.value):
            raise InputError(f"claim {self.id!r} is {self.value!r}, expected a finite number or None")
        if (self.value is None) != (self.holds is None):
            raise InputError(f"claim {self.id!r}: value and holds are given together or not at all")


@dataclass(frozen=True, slots=True)
class StudySummary:
    """What a study found.

    Attributes
    ----------
    study
        Name.
    claims
        Figures held against their targets.
    rows
        One flat dictionary of JSON values per instance and method.
    provenance
        Where it ran.
    records
        Child runs for tracking; the parent run is made from the claims.
    """

    study: str
    claims: tuple[Claim, ...]
    rows: tuple[dict[str, Any], ...]
    provenance: Provenance
    records: tuple[RunRecord, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether no claim fails; claims without a value don't count."""
        return all(claim.holds is not False for claim in self.claims)

    def as_json(self) -> dict[str, object]:
        """Return the content of ``summary.json``."""
        return {
            "study": self.study,
            "claims": [
                {"id": c.id, "value": c.value, "unit": c.unit, "target": c.target, "holds": c.holds}
                for c in self.claims
            ],
            "rows": list(self.rows),
            "provenance": self.provenance.as_json(),
        }
