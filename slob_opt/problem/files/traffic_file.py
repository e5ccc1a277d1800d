"""Reading a traffic file: mean lengths and service targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from slob_opt.errors import InputError
from slob_opt.problem.files.checking import Seconds, VersionedSchema, check
from slob_opt.problem.files.documents import read_document
from slob_opt.problem.traffic import TrafficProfile

Tokens = Annotated[int, Field(ge=1)]


class TrafficSchema(VersionedSchema):
    """A whole traffic file; what is left out stays at the default of TrafficProfile, ``null`` sets no limit."""

    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    context_tokens: Tokens | None = None
    tpot: Seconds | None = None
    max_in_flight: Tokens | None = None


def load_traffic(path: str | Path) -> TrafficProfile:
    """Return the traffic in a YAML or JSON file; an empty file gives the defaults.

    Raises
    ------
    InputError
        With file, key, what was found and what was expected.
    """
    file = Path(path)
    schema = check(TrafficSchema, read_document(file), file=str(file))
    given: dict[str, Any] = {key: getattr(schema, key) for key in schema.model_fields_set if key != "schema_version"}
    if "tpot" in given:
        given["tpot_s"] = given.pop("tpot")
    for key in ("prompt_tokens", "output_tokens"):
        if key in given and given[key] is None:
            raise InputError("found nothing, expected a whole number from 1", file=str(file), key=key)
    return TrafficProfile(**given)
