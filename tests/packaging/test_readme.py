"""The README's commands are tests: those with an output below them are run and compared, the others are looked up."""

from __future__ import annotations

import re
import shlex
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments.cli.main import main
from experiments.registry import PLANNERS, STUDIES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """A command of the README; `output` is the text block right below its block, ``None`` without one."""

    words: tuple[str, ...]
    output: str | None


def shown() -> list[Shown]:
    """All commands in ``bash`` blocks, in order."""
    found = []
    blocks = list(FENCE.finditer(README))
    for position, block in enumerate(blocks):
        if block.group(1) != "bash":
            continue
        lines = [line.partition(" #")[0].strip() for line in block.group(2).splitlines() if line.strip()]
        below = blocks[position + 1] if position + 1 < len(blocks) else None
        is_next = below is not None and not README[block.end() : below.start()].strip()
        output = below.group(2) if below is not None and is_next and below.group(1) == "text" else None
        assert output is None or len(lines) == 1, "one command per output"
        found += [Shown(tuple(shlex.split(line)), output) for line in lines]
    return found


def files() -> dict[str, str]:
    """Files that the README shows, by the name in their first line."""
    written = {}
    for kind, body in FENCE.findall(README):
        name = re.match(r"# (\S+\.yaml)\n", body)
        if kind == "yaml" and name:
            written[name.group(1)] = body
    return written


def run(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a `slob` command."""
    code = 0
    try:
        main(list(words[1:]))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def structure(text: str) -> list[str]:
    """The words of an output, line breaks and widths aside; figures keep three digits."""

    def figure(match: re.Match[str]) -> str:
        return f"{float(match.group()):.3g}"

    flat = re.sub(r"(?<![\w.])\d+(\.\d+)?(?![\w.])", figure, text)
    return flat.replace("▏", " ").split()


def test_the_comparison_notices_another_word_and_another_figure() -> None:
    assert structure("a  1216.21 tok/s\nby slob") == structure("a 1216.2 tok/s by\nslob")
    assert structure("a 1216.2 tok/s") != structure("a 1116.2 tok/s")
    assert structure("by slob") != structure("by parametric")


def test_commands_with_an_output_give_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other in one folder, as a reader would: the second reads the file that the first wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name, body in files().items():
        (tmp_path / name).write_text(body, encoding="utf-8")
    commands = [command for command in shown() if command.output is not None]
    assert len(commands) >= 5
    for command in commands:
        code, out, err = run(command.words, capsys)
        said = command.output or ""
        assert code == (1 if said.startswith("infeasible") else 0), err
        assert structure(out) == structure(said), " ".join(command.words)


@pytest.mark.parametrize("command", [c for c in shown() if c.output is None], ids=lambda c: " ".join(c.words))
def test_commands_without_an_output_exist(command: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    program = command.words[0]
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert command.words[1] in targets
    elif program == "slob":
        code, _, err = run((*command.words, "--show-config"), capsys)
        assert code == 0, err
    else:
        assert (Path(sysconfig.get_path("scripts")) / program).is_file()


def test_the_table_of_methods_is_the_registry() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (heuristic|baseline|exact) \|", README, re.MULTILINE)
    assert rows == [(entry.name, entry.kind) for entry in PLANNERS.values()]


def test_every_study_and_every_page_of_the_docs_is_named() -> None:
    assert all(f"slob study {name}" in README for name in STUDIES)
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_tables_of_the_studies_have_their_marks() -> None:
    assert README.count("<!-- studies:begin -->") == README.count("<!-- studies:end -->") == 1
