"""The tensors of a model folder: which file has which, read one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from slob_opt.errors import InputError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Checkpoint:
    """The safetensors files of a folder.

    Parameters
    ----------
    folder
        Of the model.

    Raises
    ------
    InputError
        When there are none, or the index isn't what it should be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        single, index = folder / SINGLE, folder / INDEX
        if index.is_file():
            self._file_of = _read_index(index)
        elif single.is_file():
            with _opened(single) as file:
                self._file_of = dict.fromkeys(file.keys(), SINGLE)
        else:
            raise InputError(f"found neither {SINGLE} nor {INDEX}, expected the weights", file=str(folder))

    def name_of(self, names: Iterable[str]) -> str | None:
        """Return the first of some names that a tensor has; ``None`` when there is none."""
        return next((name for name in names if name in self._file_of), None)

    def read(
        self, wanted: Mapping[str, Callable[[torch.Tensor], None]], device: str, progress: Callable[[int], None]
    ) -> None:
        """Hand tensors to who wants them, file by file, without reading any other.

        Parameters
        ----------
        wanted
            By name of the tensor.
        device
            Where they are to be.
        progress
            Takes the bytes of each tensor that was read.

        Raises
        ------
        InputError
            When a shard is missing or cut off, naming it.
        """
        by_file: dict[str, list[str]] = {}
        for name in wanted:
            by_file.setdefault(self._file_of[name], []).append(name)
        for file, names in sorted(by_file.items()):
            path = self.folder / file
            with _opened(path, device) as opened:
                for name in names:
                    try:
                        tensor = opened.get_tensor(name)
                    except SafetensorError as error:
                        raise InputError(f"tensor {name} can't be read: {error}", file=str(path)) from error
                    wanted[name](tensor)
                    progress(tensor.numel() * tensor.element_size())


def _read_index(path: Path) -> dict[str, str]:
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        found = data["weight_map"]
        return {str(name): str(file) for name, file in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError("the file has no weight_map of tensors and files", file=str(path)) from error


def _opened(path: Path, device: str = "cpu") -> Any:
    """Return a safetensors file, open, as a context manager."""
    stack = ExitStack()
    try:
        return stack.enter_context(safe_open(path, framework="pt", device=device))
    except FileNotFoundError as error:
        raise InputError("the shard is missing", file=str(path)) from error
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size if path.exists() else 0
        raise InputError(f"the file is damaged or cut off ({size:,} bytes): {error}", file=str(path)) from error
