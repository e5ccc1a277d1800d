"""`slob workload`: what it says about traces and presets, what it writes, and how it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reference_data import reference_file

from slob_opt.problem.files.traces import read_trace
from slob_opt.problem.presets import load_preset, preset_ids

Slob = Callable[..., Any]

DOCS = Path(__file__).resolve().parents[3] / "docs"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:15:51.2224670,9000,55"
)


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    """Three rows of which the last is long."""
    path = tmp_path / "azure.csv"
    path.write_bytes(AZURE.encode())
    return path


def described(slob: Slob, *argv: object) -> dict[str, Any]:
    answer = slob("workload", *argv, "--format", "json")
    assert answer.code == 0, answer.err
    found: dict[str, Any] = json.loads(answer.out)
    return found


def keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {k for name, v in value.items() if name != "skipped" for k in keys(v)}
    return {k for item in value for k in keys(item)} if isinstance(value, list) else set()


def test_describe_tells_rate_burstiness_and_lengths(slob: Slob, azure: Path) -> None:
    data = described(slob, "describe", azure)
    assert data["name"] == "azure.csv"
    assert data["stats"]["num_requests"] == 3
    assert data["stats"]["span_s"] == pytest.approx(4.541877)
    assert data["stats"]["prompt_tokens"]["max"] == 9000
    assert data["stats"]["dispersion_60"] is None  # the trace is shorter than two windows
    assert (data["report"]["read"], data["report"]["kept"], data["report"]["file"]) == (3, 3, str(azure))
    table = slob("workload", "describe", azure).out
    assert "azure.csv: 3 requests in 4.542 s, 0.4403 req/s" in table
    assert "azure: read 3 rows, kept 3" in table


def test_the_example_ships_and_knows_conversations(slob: Slob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = described(slob, "describe", "example")
    assert (data["name"], data["report"]["file"]) == ("example", "example")
    assert data["stats"]["turns_mean"] > 1.5
    assert "conversations" in slob("workload", "describe", "example").out


def test_json_has_the_documented_keys(slob: Slob, tmp_path: Path, azure: Path) -> None:
    documented = (DOCS / "cli.md").read_text(encoding="utf-8")
    found = [
        described(slob, "describe", azure, "--arrivals", "gamma", "--rate", 2, "--cv", 2, "--thin", 0.9),
        described(slob, "convert", azure, "--out", tmp_path / "a.csv"),
        described(slob, "sample", "shop_floor_qa", "--duration", "60min"),
    ]
    assert {key for data in found for key in keys(data) if f"`{key}`" not in documented} == set()
    assert {tuple(data) for data in found} == {("name", "fingerprint", "stats", "report", "file", "config")}


def test_every_option_is_documented(slob: Slob) -> None:
    documented = (DOCS / "cli.md").read_text(encoding="utf-8")
    for command in ("describe", "convert", "sample"):
        answer = slob("workload", command, "--help")
        assert answer.code == 0
        assert f"Example: slob workload {command}" in answer.out
        named = set(re.findall(r"--[a-z-]+", answer.out)) - {"--help"}
        assert {option for option in named if option not in documented} == set()


def test_converted_traces_read_back_equal(slob: Slob, tmp_path: Path, azure: Path) -> None:
    out = tmp_path / "a.jsonl.gz"
    data = described(slob, "convert", azure, "--out", out)
    workload, report = read_trace(out)
    assert data["file"] == str(out)
    assert (workload.fingerprint, report.kind) == (data["fingerprint"], "slob-jsonl")
    assert described(slob, "describe", out)["fingerprint"] == data["fingerprint"]


def test_times_are_changed_in_the_stated_way(slob: Slob, tmp_path: Path) -> None:
    plain = described(slob, "describe", "example")["stats"]
    wide = described(slob, "describe", "example", "--stretch", 2)["stats"]
    assert wide["rate_per_s"] == pytest.approx(plain["rate_per_s"] / 2)
    assert wide["gap_cv"] == pytest.approx(plain["gap_cv"])
    assert described(slob, "describe", "example", "--stretch-to", 0.5)["stats"]["rate_per_s"] == pytest.approx(0.5)
    thin = described(slob, "describe", "example", "--thin", 0.25, "--seed", 3)
    assert thin["stats"]["num_requests"] == pytest.approx(plain["num_requests"] / 4, rel=0.3)
    assert thin["fingerprint"] == described(slob, "describe", "example", "--thin", 0.25, "--seed", 3)["fingerprint"]
    assert thin["fingerprint"] != described(slob, "describe", "example", "--thin", 0.25, "--seed", 4)["fingerprint"]
    part = described(slob, "describe", "example", "--from", "60min", "--until", "120min")
    assert 0 < part["stats"]["num_requests"] < plain["num_requests"]
    assert part["stats"]["span_s"] <= 3600
    assert part["report"]["outside"] > 0


@pytest.mark.parametrize(
    "process",
    [
        ("poisson", "--rate", 2),
        ("gamma", "--rate", 2, "--cv", 3),
        ("weibull", "--rate", 2, "--cv", 3),
        ("on-off", "--rate", 2, "--on", "10s", "--off", "30s"),
    ],
    ids=lambda p: p[0],
)
def test_lengths_without_times_get_a_process(process: tuple[object, ...], slob: Slob, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    rows = "".join(f"{100 + i},{10 + i % 7},0,0\n" for i in range(1000))
    path.write_text(f"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n{rows}", encoding="utf-8")
    assert "name an arrival process" in slob("workload", "describe", path).err
    stats = described(slob, "describe", path, "--arrivals", *process)["stats"]
    assert stats["num_requests"] == 1000
    assert stats["rate_per_s"] == pytest.approx(2.0, rel=0.4)


@pytest.mark.parametrize("name", preset_ids())
def test_presets_are_sampled(name: str, slob: Slob, tmp_path: Path) -> None:
    out = tmp_path / "s.csv"
    data = described(slob, "sample", name, "--days", 2, "--seed", 5, "--out", out)
    assert data["report"] is None
    assert data["stats"]["span_s"] == 2 * load_preset(name).day_s
    assert data["stats"]["rate_per_s"] == pytest.approx(load_preset(name).mean_rate, rel=0.25)
    assert read_trace(out)[0].fingerprint == data["fingerprint"]
    even = described(slob, "sample", name, "--duration", "120min", "--even", "--rate", 1)
    assert even["stats"]["num_requests"] == pytest.approx(7200, rel=0.3)


def test_show_config_reads_nothing(slob: Slob, tmp_path: Path) -> None:
    argv = ("describe", tmp_path / "none.csv", "--show-config"), ("sample", "office_chat", "--show-config")
    for answer in (slob("workload", *words) for words in argv):
        assert answer.code == 0
        assert json.loads(answer.out)["command"].startswith("workload ")
    answer = slob("workload", "convert", "example", "--out", tmp_path / "x.csv", "--show-config")
    assert json.loads(answer.out)["output"] == {"format": "table", "out": str(tmp_path / "x.csv")}
    assert list(tmp_path.iterdir()) == []


def test_a_missing_trace_says_where_to_get_one(slob: Slob) -> None:
    """Case T02."""
    answer = slob("workload", "describe", "missing.csv")
    assert (answer.code, answer.out) == (2, "")
    assert "missing.csv: no such file; public traces are at github.com/Azure/AzurePublicDataset" in answer.err
    assert "'example'" in answer.err
    assert slob("workload", "describe", "example").code == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "slob: t.csv: no rows\n"),
        (
            "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.68,374\n",
            "slob: t.csv:1: column GeneratedTokens missing; found: TIMESTAMP, ContextTokens\n",
        ),
        (None, "slob: t.csv: no such file; "),
    ],
    ids=["empty", "column", "path"],
)
def test_bad_traces_are_one_sentence_and_exit_code_2(
    text: str | None, sentence: str, slob: Slob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case T03."""
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("t.csv").write_text(text, encoding="utf-8")
    for command in (("describe", "t.csv"), ("convert", "t.csv", "--out", "o.csv")):
        answer = slob("workload", *command)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith(sentence)
        assert len(answer.err.splitlines()) == 1
    assert not Path("o.csv").exists()


def test_rows_that_are_too_long_are_refused_dropped_or_clipped(slob: Slob, azure: Path) -> None:
    """Case T05."""
    limit = ("--max-model-tokens", 8192)
    refused = slob("workload", "describe", azure, *limit)
    assert refused.code == 2
    assert f"{azure}:4: 9000 + 55 tokens, the model takes 8192" in refused.err
    dropped = described(slob, "describe", azure, *limit, "--skip", "too-long")
    assert (dropped["report"]["skipped"], dropped["report"]["kept"]) == ({"too-long": 1}, 2)
    assert "skipped 1 too-long" in slob("workload", "describe", azure, *limit, "--skip", "all").out
    clipped = described(slob, "describe", azure, *limit, "--clip")
    assert (clipped["report"]["clipped"], clipped["stats"]["prompt_tokens"]["max"]) == (1, 8192 - 55)
    by_model = described(slob, "describe", azure, "--model", "llama-2-7b", "--skip", "too-long")
    assert (by_model["config"]["max_model_tokens"], by_model["report"]["kept"]) == (4096, 2)


def test_prefix_hits_are_an_assumption_that_is_told(slob: Slob) -> None:
    """Case T06."""
    path = reference_file("traces/azure2023/AzureLLMInferenceTrace_conv.csv.gz")
    report = described(slob, "describe", path)["report"]
    assert (report["has_prefix_ids"], report["assumed_prefix_hit_rate"]) == (False, 0.0)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("describe", "example", "--skip", "too-longs"), "--skip: no fault 'too-longs'; did you mean 'too-long'?"),
        (("describe", "example", "--skip", ","), "--skip: found nothing"),
        (("describe", "example", "--skip", "too-long"), "give --max-model-tokens or --model"),
        (("describe", "example", "--clip"), "give --max-model-tokens or --model"),
        (("describe", "example", "--clip", "--skip", "all", "--max-model-tokens", 9), "clipped or skipped, not both"),
        (("describe", "example", "--model", "llama-2-7b", "--max-model-tokens", 9), "say the same thing"),
        (("describe", "example", "--model", "llama-2-8b"), "llama-2-7b"),
        (("describe", "example", "--trace-format", "azur"), "no trace format 'azur'; did you mean azure?"),
        (("describe", "example", "--from", "5"), "--from: found '5' without a unit"),
        (("describe", "example", "--from", "10s", "--until", "5s"), "the window from 10 s until 5 s is empty"),
        (("describe", "example", "--rate", 2), "--rate needs --arrivals"),
        (("describe", "example", "--arrivals", "poisson"), "--arrivals needs --rate"),
        (("describe", "example", "--arrivals", "gamma", "--rate", 2), "--arrivals gamma needs --cv"),
        (("describe", "example", "--arrivals", "poisson", "--rate", 2, "--cv", 2), "poisson does not take --cv"),
        (("describe", "example", "--arrivals", "on-off", "--rate", 2, "--on", "5s"), "on-off needs --off"),
        (("describe", "example", "--arrivals", "poisson", "--rate", 2, "--off", "5s"), "poisson does not take --off"),
        (("describe", "example", "--arrivals", "poisson", "--rate", 1e-9), "requests don't come within"),
        (("describe", "example", "--thin", 0.5, "--stretch", 2), "--thin and --stretch exclude each other"),
        (("describe", "example", "--thin", 1.5), "--thin: found '1.5', expected a number above 0 and at most 1"),
        (("describe", "example", "--thin-to", 5), "thinning can't raise the rate"),
        (("describe", "example", "--stretch-to", 1e-9), "would last longer than"),
        (("convert", "example"), "missing option '--out'"),
        (("convert", "example", "--out", "o.parquet"), "o.parquet: expected a name that ends with .csv"),
        (("convert", "example", "--out", "none/o.csv"), "can't be written"),
        (("sample", "office_chats"), "no preset 'office_chats'; did you mean office_chat?"),
        (("sample", "office_chat", "--variant", "long"), "no variant 'long'; it has none"),
        (("sample", "office_chat", "--days", 2, "--duration", "60min"), "say the same thing"),
        (("sample", "office_chat", "--duration", "1s"), "no request of preset office_chat falls into 1 s"),
        (("sample", "office_chat", "--rate", 1e5), "expected at most 100,000,000"),
        (("sampel", "office_chat"), "sample"),
    ],
)
def test_wrong_options_are_one_sentence_and_exit_code_2(
    argv: tuple[object, ...], sentence: str, slob: Slob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = slob("workload", *argv)
    assert (answer.code, answer.out) == (2, "")
    assert sentence in answer.err
    assert len(answer.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
