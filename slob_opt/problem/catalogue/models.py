"""Models of the catalogue, built from the widths in their published configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from slob_opt.problem.architecture import Architecture, ExpertShape, LatentShape, build_model
from slob_opt.problem.catalogue.lookup import plain, read_data, unknown
from slob_opt.problem.model import ModelSpec

_NOT_WIDTHS = ("id", "hf", "published_params", "published_exact", "deviation_pct", "uncertain", "notes")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known about a model beside its widths.

    Attributes
    ----------
    id, hf
        Catalogue id, and name of the published checkpoint.
    architecture
        Widths and switches.
    published_params
        Parameters of the published checkpoint, a tied tensor counted once.
    is_published_exact
        Whether that count is exact; else it's the model card's or a rounded one.
    deviation_pct
        Deviation of the count that follows from the widths, percent of the published one.
    notes
        Remarks.
    """

    id: str
    hf: str
    architecture: Architecture
    published_params: int
    is_published_exact: bool
    deviation_pct: float
    notes: tuple[str, ...]


def _facts(row: Mapping[str, Any], sources: tuple[str, ...]) -> ModelFacts:
    widths = {key: value for key, value in row.items() if key not in _NOT_WIDTHS}
    experts, latent = widths.pop("experts", None), widths.pop("latent", None)
    if experts is not None:
        experts = ExpertShape(**experts | {"dense_layers": tuple(experts["dense_layers"])})
    pattern = widths.pop("window_pattern", (None,))
    shape = Architecture(
        name=row["id"],
        experts=experts,
        latent=None if latent is None else LatentShape(**latent),
        window_pattern=tuple(pattern),
        sources=(f"huggingface.co/{row['hf']} config.json", *sources),
        uncertain=tuple(row["uncertain"]),
        **widths,
    )
    return ModelFacts(
        id=row["id"],
        hf=row["hf"],
        architecture=shape,
        published_params=row["published_params"],
        is_published_exact=row["published_exact"],
        deviation_pct=row["deviation_pct"],
        notes=tuple(row["notes"]),
    )


@cache
def _table() -> dict[str, ModelFacts]:
    data = read_data("models.json")
    return {row["id"]: _facts(row, tuple(data["sources"])) for row in data["models"]}


@cache
def _spellings() -> dict[str, str]:
    found: dict[str, str] = {}
    for facts in _table().values():
        for spelling in (facts.id, facts.hf, facts.hf.split("/")[-1]):
            found.setdefault(plain(spelling), facts.id)
    return found


def model_ids() -> tuple[str, ...]:
    """Return all catalogue ids of models."""
    return tuple(_table())


def model_facts(name: str) -> ModelFacts:
    """Return the facts of a model by id or checkpoint name.

    Raises
    ------
    InputError
        When no entry has this name; the nearest ones are named.
    """
    found = _spellings().get(plain(name))
    if found is None:
        raise unknown("model", name, _table())
    return _table()[found]


@cache
def _model(id_: str) -> ModelSpec:
    return build_model(_table()[id_].architecture)


def model(name: str) -> ModelSpec:
    """Return a model by id or checkpoint name, as ``llama-2-70b`` or ``meta-llama/Llama-2-70b-hf``; 16-bit weights.

    Raises
    ------
    InputError
        When no entry has this name; the nearest ones are named.
    """
    return _model(model_facts(name).id)
