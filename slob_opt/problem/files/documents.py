"""Reading a YAML or JSON file as plain data, with every fault told as one InputError."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Hashable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import yaml

from slob_opt.errors import InputError

MAX_BYTES = 16 * 2**20
"""Largest file that is read. Chosen: a cluster of 1,024 cards with all its links is a tenth of that."""

MAX_NODES = 2_000_000
"""Most values of a YAML document with its aliases expanded. Chosen: above anything MAX_BYTES holds without aliases."""


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, but a key that stands twice in one mapping is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                line = key_node.start_mark.line + 1
                raise InputError(f"key {key!r} stands twice in one mapping (line {line})", key=str(key))
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep)


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises
    ------
    InputError
        When it is missing, a folder, unreadable, larger than `MAX_BYTES`, or not UTF-8.
    """
    file = str(path)
    try:
        if path.is_dir():
            raise InputError("this is a folder, expected a file", file=file)
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"the file is larger than {MAX_BYTES // 2**20} MiB, expected a problem file", file=file)
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InputError("no such file", file=file) from error
    except OSError as error:
        raise InputError(f"the file can't be read: {error.strerror or error}", file=file) from error
    except UnicodeDecodeError as error:
        raise InputError("the file is not UTF-8 text", file=file) from error


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all; as :func:`write_pieces` with a single piece."""
    write_pieces(path, (text,))


def write_pieces(path: Path, pieces: Iterable[str], *, is_packed: bool = False) -> None:
    """Write a UTF-8 file piece by piece, whole or not at all.

    The text goes to a new file beside it, which then takes its name; an old file stays as it was until that moment.

    Parameters
    ----------
    path
        File to write.
    pieces
        Its text; made one after the other, so that a long file needn't be held in memory.
    is_packed
        Whether it's packed with gzip.

    Raises
    ------
    InputError
        When the folder is missing or may not be written, the disk is full, or the name is that of a device or a pipe;
        nothing is left behind, nor when making a piece fails. A link is followed.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise InputError("this is no regular file, expected the name of a file to write", file=str(path))
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            # no time and no name in a packed file: the same text gives the same bytes
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) if is_packed else nullcontext(file) as binary:
                for piece in pieces:
                    binary.write(piece.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"the file can't be written: {reason}; nothing was changed", file=str(path)) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)  # not there any more when all went well


def read_document(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML or JSON file; an empty file is an empty mapping.

    Raises
    ------
    InputError
        When it can't be read or parsed, holds a key twice, or is no mapping with text keys.
    """
    file, text = str(path), read_text(path)
    try:
        data = _parse_json(text) if path.suffix.lower() == ".json" and text.strip() else _parse_yaml(text)
    except InputError as error:
        raise error.located(file=file) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(f"found {_kind(data)} at the top, expected a mapping of keys to values", file=file)
    for key in data:
        if not isinstance(key, str):
            raise InputError(f"found the key {key!r}, expected text; put it in quotes", file=file)
    return data


def _parse_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in pairs:
            if key in made:
                raise InputError(f"key {key!r} stands twice in one object", key=key)
            made[key] = value
        return made

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise InputError("the JSON is nested too deeply") from error


def _parse_yaml(text: str) -> Any:
    try:
        data = yaml.load(text, Loader=_StrictLoader)  # a subclass of SafeLoader: builds plain data only
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise InputError(f"not valid YAML: {error.problem or error}{where}") from error
    except yaml.YAMLError as error:
        raise InputError(f"not valid YAML: {str(error).splitlines()[0]}") from error
    except (RecursionError, ValueError) as error:  # ValueError: a date that doesn't exist
        raise error if isinstance(error, InputError) else InputError(f"not valid YAML: {error}") from error
    _check_size(data)
    return data


def _check_size(data: object) -> None:
    """Refuse documents that aliases blow up (or that contain themselves)."""
    stack, count = [data], 0
    while stack:
        count += 1
        if count > MAX_NODES:
            raise InputError("the YAML expands to too many values, expected a problem file")
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _kind(value: object) -> str:
    names = {list: "a list", str: "text", int: "a number", float: "a number", bool: "a yes/no value"}
    return names.get(type(value), type(value).__name__)
