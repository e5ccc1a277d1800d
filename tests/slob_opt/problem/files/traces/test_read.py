"""Traces in their own formats: what is read, what is told with its line, and the real ones where they are at hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from reference_data import reference_file

from slob_opt.errors import InputError
from slob_opt.problem.files.traces.formats import detect
from slob_opt.problem.files.traces.read import read_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:15:51.2224670,879,55"
)
BURST_1 = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n118,GPT-4,417,276,693,API log\n"
)
BURST_2 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "19440110.0,a,1.0,GPT-4,10,20,30,API log\n19440112.5,a,1.0,GPT-4,11,21,32,API log\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3000, "input_length": 7322, "output_length": 490, "hash_ids": [0]}\n'
)
VIDUR = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n100,50,150,2.0\n200,20,220,10.0\n"


def made(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def test_azure(tmp_path: Path) -> None:
    workload, report = read_trace(made(tmp_path, AZURE))
    assert (report.kind, report.read, report.kept) == ("azure", 3, 3)
    assert workload.prompt_tokens.tolist() == [374, 396, 879]
    assert workload.arrival_s.tolist() == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-6)
    assert workload.max_new_tokens.tolist() == [1024] * 3


def test_azure_with_a_zone_and_packed(tmp_path: Path) -> None:
    text = AZURE.replace("900,374", "900+00:00,374").replace("690,396", "690+00:00,396").replace("670,8", "670+00:00,8")
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert read_trace(path)[0].prompt_tokens.tolist() == [374, 396, 879]


@pytest.mark.parametrize(("text", "kept", "failed"), [(BURST_1, 2, 1), (BURST_2, 2, 0)])
def test_burstgpt_counts_failures(tmp_path: Path, text: str, kept: int, failed: int) -> None:
    workload, report = read_trace(made(tmp_path, text))
    assert (report.kind, report.kept, report.skipped["failed (no answer)"]) == ("burstgpt", kept, failed)
    assert workload.arrival_ns[0] == 0


def test_mooncake(tmp_path: Path) -> None:
    workload, report = read_trace(made(tmp_path, MOONCAKE, "t.jsonl"))
    assert report.kind == "mooncake"
    assert workload.arrival_s.tolist() == [0.0, 3.0]


def test_vidur_needs_arrivals(tmp_path: Path) -> None:
    path = made(tmp_path, VIDUR)
    with pytest.raises(InputError, match="format vidur has no times; give an arrival process"):
        read_trace(path)
    workload, _ = read_trace(path, arrival_s=np.array([1.0, 4.0, 9.0]))
    assert workload.arrival_s.tolist() == [0.0, 3.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv: is empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "t.csv: has no request$"),
        (
            "TIMESTAMP,ContextTokens,GeneratedToken\n",
            "t.csv:1: column 'GeneratedTokens' is missing; .*'GeneratedToken'",
        ),
        ("a,b,c\n1,2,3\n", "t.csv:1: starts with 'a,b,c', which is no trace in a known format"),
        (AZURE.replace("396,109", "0,109"), "t.csv:3: prompt of 0 tokens"),
        (AZURE.replace("396,109", "396,0"), "t.csv:3: output of 0 tokens"),
        (AZURE.replace("396,109", "396,x"), "t.csv:3: GeneratedTokens is 'x', expected a whole number"),
        (AZURE.replace("396,109", "-4,109"), "t.csv:3: ContextTokens is '-4', expected a whole number"),
        (AZURE.replace("396,109", "396"), "t.csv:3: has 2 cells, the header 3"),
        (AZURE.replace("18:15:50", "18:15:40"), "t.csv:3: time .* expected order of arrival"),
        (AZURE.replace("18:15:50.9951690", "18:15:50.9951690+00:00"), "t.csv:3: TIMESTAMP mixes times"),
        (AZURE.replace("18:15:50.9951690", "18:75:50"), "t.csv:3: TIMESTAMP is .*, which is no time"),
        (AZURE.replace("2023-11-16 18:15:50.9951690", "yesterday"), "t.csv:3: TIMESTAMP is 'yesterday', expected YYYY"),
        (BURST_1.replace("118", "soon"), "t.csv:4: Timestamp is 'soon', expected a number"),
        (BURST_1.replace("5,ChatGPT,472", "-5,ChatGPT,472"), "t.csv:2: time -5.0 s, expected at least 0"),
        (MOONCAKE.replace('"output_length": 490', '"x": 1'), "t.csv:2: key 'output_length' is missing"),
        (MOONCAKE.replace('{"timestamp": 3000', '{"timestamp" 3000'), "t.csv:2: isn't JSON"),
    ],
)
def test_one_sentence_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(made(tmp_path, text))


def test_rows_over_the_models_length(tmp_path: Path) -> None:
    path = made(tmp_path, AZURE)
    with pytest.raises(InputError, match=r"t.csv:4: 879 \+ 55 tokens, the model takes 600"):
        read_trace(path, max_tokens=600)
    workload, report = read_trace(path, max_tokens=600, skips_bad_rows=True)
    assert workload.num_requests == 2
    assert dict(report.skipped) == {"too long for the model": 1}


def test_all_rows_skipped_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no request left of 3"):
        read_trace(made(tmp_path, AZURE), max_tokens=5, skips_bad_rows=True)


def test_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"azur.*did you mean azure"):
        read_trace(made(tmp_path, AZURE), "azur")


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode())[:40])
    with pytest.raises(InputError, match="can't be read: damaged or cut short"):
        read_trace(path)
    with pytest.raises(InputError, match="can't be read: No such file"):
        read_trace(tmp_path / "none.csv")


def test_no_more_than_asked(tmp_path: Path) -> None:
    workload, report = read_trace(made(tmp_path, AZURE), max_requests=2)
    assert (workload.num_requests, report.read) == (2, 2)


@pytest.mark.parametrize(
    ("file", "kind", "rows"),
    [
        ("traces/azure2023/AzureLLMInferenceTrace_conv.csv.gz", "azure", 19_366),
        ("traces/azure2023/AzureLLMInferenceTrace_code.csv.gz", "azure", 8_819),
        ("traces/mooncake/conversation_trace.jsonl.gz", "mooncake", 12_031),
        ("traces/burstgpt/BurstGPT_1.first3rows.csv", "burstgpt", 3),
    ],
)
def test_published_traces(file: str, kind: str, rows: int) -> None:
    path = reference_file(file)
    assert detect(path) == kind
    workload, report = read_trace(path, skips_bad_rows=True)
    assert report.read == rows
    assert report.kept + report.skipped.total() == rows
    assert workload.num_requests == report.kept
