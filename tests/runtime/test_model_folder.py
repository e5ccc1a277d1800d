"""Folders that are whole or not there."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from runtime.model_folder import PROVENANCE, Provenance, is_whole, new_folder, read_provenance
from runtime.tiny_model import TinyModel, write_tiny_model

NOTE = Provenance("some", "nowhere", "MIT", 3, "ab")


def test_a_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    with new_folder(folder) as place:
        NOTE.write(place)
        assert not folder.exists()
    assert read_provenance(folder) == NOTE
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_folder_vanishes_when_the_block_fails(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    with pytest.raises(KeyboardInterrupt), new_folder(folder) as place:  # noqa: PT012 - the block is what is tested
        (place / "half").write_text("x")
        raise KeyboardInterrupt
    assert is_whole(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_others_may_read_what_the_mask_allows(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    plain = tmp_path / "plain"
    plain.write_text("x")
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {stat.S_IMODE(plain.stat().st_mode)}


def test_several_may_write_at_once(tmp_path: Path) -> None:
    folder, failures = tmp_path / "model", []

    def work(seed: int) -> None:
        try:
            for _ in range(4):
                write_tiny_model(folder, TinyModel(num_layers=1, seed=seed))
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert is_whole(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 2}', '{"schema_version": 1, "colour": "red"}'])
def test_a_note_that_is_none_counts_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / PROVENANCE).write_text(text)
    assert read_provenance(tmp_path) is None
