"""Where our four top-level packages come from; their names are generic, so a foreign one may stand before ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from slob_opt.errors import ShadowedPackageError

OUR_PACKAGES = ("slob_opt", "solvers", "experiments", "runtime")


def package_folder(name: str) -> Path | None:
    """Return the folder that a top-level package would be imported from, without importing it; ``None`` if missing."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent


def common_folder(find: Callable[[str], Path | None] = package_folder) -> Path:
    """Return the folder that holds all four packages.

    Parameters
    ----------
    find
        Folder of a package by name; tests give their own.

    Raises
    ------
    ShadowedPackageError
        When one is missing or comes from elsewhere; says which, from where, and where it was expected.
    """
    folders = {name: find(name) for name in OUR_PACKAGES}
    missing = [name for name, folder in folders.items() if folder is None]
    if missing:
        raise ShadowedPackageError(f"{', '.join(missing)} not found; reinstall slob")
    parents = {name: folder.parent for name, folder in folders.items() if folder is not None}
    home = parents["slob_opt"]
    foreign = {name: parent for name, parent in parents.items() if parent != home}
    if foreign:
        where = ", ".join(f"{name} from {parent / name}" for name, parent in foreign.items())
        raise ShadowedPackageError(f"a foreign package shadows ours: {where}, expected {home}")
    return home
