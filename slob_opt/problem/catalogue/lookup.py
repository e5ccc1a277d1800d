"""Reading the catalogue's data files and finding entries by id or alias."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

from slob_opt.errors import InputError

SCHEMA_VERSION = 1


def read_data(file: str, package: str = "slob_opt.problem.catalogue") -> Mapping[str, Any]:
    """Return the content of a JSON file that ships with the package, by default one of the catalogue's.

    Raises
    ------
    InputError
        When the file is damaged or of another schema version: the installation is broken.
    """
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    try:
        data: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"bundled data is damaged, install again: {error}", file=file) from error
    if data.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"found {data.get('schema_version')!r}, expected {SCHEMA_VERSION}", file=file, key="schema_version"
        )
    return data


def plain(text: str) -> str:
    """Return a name without case, vendor, series words, spaces and punctuation, so that spellings of it agree."""
    words = text.lower().replace("-", " ").replace("_", " ").replace("/", " ").split()
    kept = [w for w in words if w not in ("nvidia", "amd", "intel", "geforce", "tesla", "instinct", "quadro")]
    return "".join(kept)


def nearest(text: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Return up to `count` of the known ids that look most like `text`, best first; empty when none does."""
    by_plain: dict[str, str] = {}
    for name in known:
        by_plain.setdefault(plain(name), name)
    found = get_close_matches(plain(text), list(by_plain), n=count, cutoff=0.5)
    return tuple(by_plain[p] for p in found)


def unknown(what: str, text: str, known: Iterable[str]) -> InputError:
    """Return the error for an id that is not in the catalogue, with the nearest known ones."""
    names = tuple(known)
    near = nearest(text, names)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the catalogue has {', '.join(names[:5])} and others"
    return InputError(f"{what} {text!r} is not in the catalogue; {hint}")
