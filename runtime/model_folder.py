"""Model folders that are made here: whole or not there at all, and with a note of where the weights are from."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from runtime.byte_tokenizer import write_json

PROVENANCE = "slob_model.json"
"""The note, beside the files that transformers reads."""

_NEEDED = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the weights of a folder are from.

    Attributes
    ----------
    name
        Of the model.
    source
        In words: package and version, or how they were made.
    licence
        SPDX name.
    format
        Version of the way in which the folder was written.
    sha256
        Of the file that was converted; ``None`` where there was none.
    """

    name: str
    source: str
    licence: str
    format: int
    sha256: str | None = None

    def write(self, folder: Path) -> None:
        """Write the note."""
        write_json(folder / PROVENANCE, {"schema_version": 1, **asdict(self)})


def read_provenance(folder: Path) -> Provenance | None:
    """Return the note of a folder; ``None`` when there is none that can be read."""
    try:
        data = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
        if data.pop("schema_version") != 1:
            return None
        return Provenance(**data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def is_whole(folder: Path) -> bool:
    """Return whether a folder that was made here has all its files."""
    return all((folder / name).is_file() for name in (*_NEEDED, PROVENANCE))


def folder_bytes(folder: Path) -> int:
    """Return the size of the files in a folder, bytes."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a folder to write into that becomes `folder` when the block ends well, and vanishes when it doesn't.

    What was at `folder` before is replaced at that moment; it doesn't matter whether several processes do this at once.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder.parent / f".{folder.name}-{secrets.token_hex(8)}"
    place.mkdir()  # not by tempfile: others than this user may read models, as far as the user's mask lets them
    try:
        yield place
        mode = (place / PROVENANCE).stat().st_mode
        for path in place.iterdir():  # safetensors writes files for their owner only
            path.chmod(mode)
        _put(place, folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _put(place: Path, folder: Path) -> None:
    """Rename a finished folder to its name, with the old one out of the way."""
    with suppress(OSError):
        place.rename(folder)  # an empty folder may be there; one with files may not
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    try:
        with suppress(FileNotFoundError):
            folder.rename(old / folder.name)
        try:
            place.rename(folder)
        except OSError:
            if not is_whole(folder):  # no other process put one there meanwhile
                raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
