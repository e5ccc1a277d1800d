from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from serving_rows import point_row, sweep_rows
from trace_setups import write_hand

from experiments.serving_report import MOST_ROWS, read_study, report_page
from experiments.serving_report_page import cell_text, table
from slob_opt.errors import InputError

CLAIMS = [
    {"id": "paper.max_vs_orca", "value": 3.125, "unit": "", "target": ">= 3", "holds": True},
    {"id": "paper.worst", "value": 0.5, "unit": "", "target": ">= 0.95", "holds": False},
    {"id": "paper.capacity", "value": None, "unit": "<times>", "target": ">= 1", "holds": None},
]
PROVENANCE = {
    "commit": "0123456789abcdef", "versions": {"slob": "0.1.0", "numpy": "2.4.6"}, "python": "3.11.7",
    "machine": {"name": "box", "num_cores": 2}, "created": "2026-11-30T23:20:17+00:00",
}  # fmt: skip
VOID = {"meta", "path", "use", "rect", "line", "br", "img", "link"}


class Checker(HTMLParser):
    """Keeps text and ids, and refuses what isn't closed or leads elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert name not in ("src", "srcset", "onload"), f"{tag} has {name}"
            if name == "href":
                assert value is not None
                assert value.startswith("#"), f"{tag} leads to {value}"
            if name == "id":
                self.ids.append(str(value))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def study_folder(folder: Path, rows: list[dict[str, Any]], *, has_trace: bool = False, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    summary = {"study": "paper", "claims": CLAIMS, "rows": rows, "provenance": PROVENANCE, **more}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    if has_trace:
        write_hand(folder / "example.trace.jsonl")
    return folder


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert checker.stack == []
    assert len(set(checker.ids)) == len(checker.ids)
    return checker


def test_the_page_holds_everything(tmp_path: Path) -> None:
    file = {"kind": "file", "file": "paper.yaml", "sha256": "ab" * 32, "systems": [{"name": "two"}]}
    config = {"command": "study", "is_quick": True, "seed": 3, "workers": 2, "file": None}
    folder = study_folder(tmp_path / "s", [file, *sweep_rows()], has_trace=True, config=config)
    page = report_page(read_study(folder))
    found = checked(page)
    for word in (
        "Study paper", "paper.max_vs_orca", "3.125", "not measured", "<times>", "mean rank", "box-0/0", "paper.yaml",
        "slob study paper --quick --seed 3 --workers 2", "2.4.6", "0123456789ab", "95 % confidence",
        "mean satisfaction against load", "distribution of time to first token at load 1", "time per output token",
        "requests/s that met their targets", "busiest stretch", "point: 12 rows", "num_cores", "ab" * 32,
    ):  # fmt: skip
        assert word in found.text, word
    assert found.tags.count("svg") == 6  # three figures against load, two distributions, a Gantt chart


def test_the_page_stands_alone(tmp_path: Path) -> None:
    """No address, no script, no style sheet or font from elsewhere; light and dark, and narrow screens."""
    page = report_page(read_study(study_folder(tmp_path / "s", sweep_rows(), has_trace=True)))
    assert re.findall(r"https?://|@import|<script|<link|url\((?!#)", page) == []
    assert "prefers-color-scheme:dark" in page
    assert 'name="viewport"' in page
    assert "#000000" not in page
    checked(page)


def test_equal_studies_are_equal_pages(tmp_path: Path) -> None:
    folder = study_folder(tmp_path / "s", sweep_rows(), has_trace=True)
    assert report_page(read_study(folder)) == report_page(read_study(folder))


def test_what_is_missing_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    columns = ("goodput", "ttft_deciles_s", "p10_satisfaction")
    rows = [{key: value for key, value in row.items() if key not in columns} for row in sweep_rows()]
    found = checked(report_page(read_study(study_folder(tmp_path / "s", rows))))
    assert (
        "Left out, since no row holds it: 10th percentile of satisfaction; requests/s that met their targets;"
        " distribution of time to first token." in found.text
    )
    assert "No chart: the folder holds no example.trace.jsonl." in found.text
    assert "doesn't tell the options" in found.text
    assert found.tags.count("svg") == 2


def test_a_study_of_plans_has_claims_and_rows(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"kind": "figure", "name": "wall", "value": 24.17595, "note": None, "list": [1, 2]}]
    rows += [{"kind": "method", "index": index, "is_ok": index > 0} for index in range(MOST_ROWS + 5)]
    found = checked(report_page(read_study(study_folder(tmp_path / "s", rows, study="gap"))))
    assert "figure: 1 rows" in found.text
    assert "24.176" in found.text
    assert "5 more rows of this kind are in summary.json." in found.text
    assert "Ranking" not in found.text
    assert "svg" not in found.tags


def test_one_policy_has_no_ranking(tmp_path: Path) -> None:
    folder = study_folder(tmp_path / "s", [point_row("orca", 1.0, 0, 0.5)])
    assert "so there is no ranking" in checked(report_page(read_study(folder))).text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, r"no summary\.json in the folder; slob study NAME --out .* writes it"),
        ("{", r"summary\.json: not valid JSON: .* at line 1"),
        ("[]", r"summary\.json: study: the key is missing, expected the summary of slob study"),
        ('{"study": 3}', r"summary\.json: study: found 3, expected the name of a study"),
        ('{"study": "gap"}', r"summary\.json: claims: the key is missing, expected a list"),
        ('{"study": "gap", "claims": {}, "rows": []}', r"claims: found dict, expected a list"),
        ('{"study": "gap", "claims": [3], "rows": []}', r"claims\[0\]: found int, expected an object"),
        ('{"study": "gap", "claims": [{"id": "a"}], "rows": []}', r"claims\[0\]\.value: the key is missing"),
        ('{"study": "gap", "claims": [], "rows": [], "provenance": 1}', r"provenance: found int, expected an object"),
    ],
)
def test_a_wrong_folder_is_told_in_one_sentence(text: str | None, told: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=told):
        read_study(tmp_path)


def test_a_missing_folder_or_a_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none: no such folder"):
        read_study(tmp_path / "none")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="this is a file"):
        read_study(tmp_path / "file")


def test_a_broken_trace_is_told(tmp_path: Path) -> None:
    folder = study_folder(tmp_path / "s", [], has_trace=True)
    path = folder / "example.trace.jsonl"
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    with pytest.raises(InputError, match=r"example\.trace\.jsonl:10: not valid JSON"):
        read_study(folder)


def test_cells() -> None:
    found = [cell_text(value) for value in (None, True, 0.1234567, float("nan"), 3, "a", [1, "ü"])]
    assert found == ["–", "yes", "0.12346", "–", "3", "a", '[1, "ü"]']
    assert '<td class="n">3</td><td>&lt;b&gt;</td>' in table(("n", "text"), [(3, "<b>")])
