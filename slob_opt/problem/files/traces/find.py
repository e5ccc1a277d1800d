"""A trace by path, or the one that ships with the package."""

from __future__ import annotations

from pathlib import Path

from slob_opt.errors import InputError
from slob_opt.problem.files.traces.lines import PUBLIC_TRACES
from slob_opt.problem.presets.data import EXAMPLE_TRACE


def find_trace(text: str) -> Path:
    """Return the file or folder that a text names; ``example`` is the small trace that ships with the package.

    Raises
    ------
    InputError
        When there is nothing of this name; says where to get the public traces.
    """
    if not text.strip():
        raise InputError("found an empty name, expected a trace file or 'example'")
    path = Path(text).expanduser() if text.startswith("~") else Path(text)
    try:
        if path.exists():
            return path
    except (OSError, ValueError):  # a name that no file system takes
        pass
    if text == "example":
        return EXAMPLE_TRACE
    raise InputError(f"no such file; {PUBLIC_TRACES}", file=text)
