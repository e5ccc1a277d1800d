"""Clusters and models by path or by catalogue id."""

from __future__ import annotations

from pathlib import Path

from slob_opt.errors import InputError
from slob_opt.problem import catalogue
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.files.cluster_file import load_cluster
from slob_opt.problem.files.model_file import load_model
from slob_opt.problem.model import ModelSpec

_SUFFIXES = (".yaml", ".yml", ".json")


def _looks_like_path(text: str) -> bool:
    return text.lower().endswith(_SUFFIXES) or text.startswith(("/", "./", "../", "~", ".\\"))


def _existing(text: str) -> Path | None:
    """Return the path that a text names; ``None`` when it's to be looked up in the catalogue."""
    if not text.strip():
        raise InputError("found an empty name, expected a file or a catalogue id")
    path = Path(text).expanduser() if text.startswith("~") else Path(text)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # a name that no file system takes
        exists = False
    if not exists and _looks_like_path(text):
        raise InputError("no such file", file=text)
    return path if exists else None


def find_cluster(text: str) -> Cluster:
    """Return the cluster that a text names: the path of a cluster file, or a catalogue id.

    A catalogue id wins over a folder of the same name.

    Raises
    ------
    InputError
        When there is neither, or the file is wrong.
    """
    path = _existing(text)
    if path is not None and not (path.is_dir() and text in catalogue.cluster_ids()):
        return load_cluster(path)
    try:
        return catalogue.cluster(text)
    except InputError as error:
        raise InputError(f"{error.message}, and there is no file of this name") from error


def find_model(text: str) -> ModelSpec:
    """Return the model that a text names: the path of a model file or checkpoint folder, or a catalogue id.

    A catalogue id wins over a folder without a config.json.

    Raises
    ------
    InputError
        When there is neither, or the file is wrong.
    """
    path = _existing(text)
    if path is not None and (path.is_file() or (path / "config.json").is_file() or text not in catalogue.model_ids()):
        return load_model(path)
    try:
        return catalogue.model(text)
    except InputError as error:
        raise InputError(f"{error.message}, and there is no file of this name") from error
