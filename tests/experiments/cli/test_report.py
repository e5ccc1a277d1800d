from __future__ import annotations

from pathlib import Path

import pytest
from serving_rows import sweep_rows

from experiments.cli.main import main
from experiments.compare_output import write_json


def summary(folder: Path) -> Path:
    data = {"study": "paper", "claims": [], "rows": sweep_rows(), "provenance": {}}
    write_json(folder / "summary.json", data)
    return folder


def test_the_page_lies_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = summary(tmp_path / "study-paper")
    main(["report", str(folder)])
    assert capsys.readouterr().out == f"report: {folder / 'report.html'}\n"
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_out_names_the_page(tmp_path: Path) -> None:
    folder, out = summary(tmp_path / "study-paper"), tmp_path / "new" / "page.html"
    main(["report", str(folder), "--out", str(out)])
    assert out.is_file()
    assert not (folder / "report.html").exists()


def test_a_wrong_folder_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["report", str(tmp_path)])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"slob: {tmp_path}: no summary.json in the folder; slob study NAME --out ")
    assert told.count("\n") == 1
