"""Typed reading of single keys of a published config.json, whose other keys are none of our business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slob_opt.errors import InputError


class ConfigKeys:
    """Typed access to the keys of one config.json.

    Parameters
    ----------
    data
        Its content; unknown keys are left alone, since published files have many.

    Notes
    -----
    Each method raises InputError, with the key, when a value is of the wrong kind.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def whole(self, *keys: str, default: int | None = None, most: int = 10**12) -> int:
        """Return the first of the keys that is set, a whole number from 1 to `most`; without a default one must be."""
        for key in keys:
            value = self._data.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"found {value!r}, expected a whole number from 1", key=key)
            if value > most:
                raise InputError(f"found {value}, expected at most {most}", key=key)
            return value
        if default is None:
            raise InputError(f"the key {keys[0]!r} is missing", key=keys[0])
        return default

    def optional(self, key: str) -> int | None:
        """Return a whole number from 1, or ``None`` when the key is missing or null."""
        return self.whole(key) if self._data.get(key) is not None else None

    def flag(self, key: str, default: bool) -> bool:
        """Return a yes/no value."""
        value = self._data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"found {value!r}, expected true or false", key=key)
        return value

    def text(self, key: str) -> str | None:
        """Return a text, or ``None`` when the key is missing."""
        value = self._data.get(key)
        return value if isinstance(value, str) else None

    def items(self, key: str) -> list[Any] | None:
        """Return a list, or ``None`` when the key is missing or null."""
        value = self._data.get(key)
        if value is not None and not isinstance(value, list):
            raise InputError(f"found {value!r}, expected a list", key=key)
        return value

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        """Return a mapping, or ``None`` when the key is missing or null."""
        value = self._data.get(key)
        if value is not None and not isinstance(value, dict):
            raise InputError(f"found {value!r}, expected a mapping", key=key)
        return value
