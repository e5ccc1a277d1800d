"""Traces in their own formats: what is read, what is told with its line, and the real ones where they are at hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from reference_data import reference_file

from slob_opt.errors import InputError
from slob_opt.problem.arrivals import first_arrivals, poisson
from slob_opt.problem.files.traces import RowFault, detect, find_trace, format_names, read_trace
from slob_opt.problem.files.traces import lines as lines_module
from slob_opt.problem.files.traces import read as read_module
from slob_opt.problem.workload_stats import workload_stats

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
    "19440110.0,a,1.0,GPT-4,10,20,30,Conversation log\n19440112.5,b,1.0,GPT-4,11,21,32,Conversation log\n"
    "19440112.5,a,2.0,GPT-4,40,9,49,Conversation log\n19440113.0,,2.0,GPT-4,5,9,14,API log\n"
    "19440114.0,,2.0,GPT-4,6,9,15,API log\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3000, "input_length": 7322, "output_length": 1490, "hash_ids": [0]}\n'
)
VIDUR = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n100,50,150,2.0\n200,20,220,10.0\n"
OWN = '# {"schema_version": 1, "kind": "slob-workload", "name": "w"}\narrival_ns,prompt_tokens,output_tokens\n7,1,2\n'


def made(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


# ------------------------------------------------------------------------------------------------------ what is read


def test_azure_is_exact_to_its_seventh_digit(tmp_path: Path) -> None:
    workload, report = read_trace(made(tmp_path, AZURE))
    assert (report.kind, report.read, report.kept, report.skipped) == ("azure", 3, 3, ())
    assert workload.name == "t.csv"
    assert workload.prompt_tokens.tolist() == [374, 396, 879]
    # 50.9951690 - 46.6805900 = 4.3145790; 51.2224670 - 46.6805900 = 4.5418770
    assert workload.arrival_ns.tolist() == [0, 4_314_579_000, 4_541_877_000]
    assert workload.max_new_tokens.tolist() == [1024] * 3
    assert workload.session is None


def test_azure_of_2024_has_a_zone_and_times_without_fraction(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 23:59:59.500000+00:00,1,2\n2024-05-11 00:00:00+00:00,1,2\n2024-05-11 02:00:01+02:00,1,2\n"
    )
    workload, _ = read_trace(made(tmp_path, text))
    assert workload.arrival_s.tolist() == [0.0, 0.5, 1.5]


@pytest.mark.parametrize("name", ["t.csv.gz", "t.csv"])
def test_packed_files_are_known_by_their_content(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(AZURE.encode()))
    workload, _ = read_trace(path)
    assert (workload.name, workload.prompt_tokens.tolist()) == ("t.csv", [374, 396, 879])


def test_a_byte_order_mark_quotes_and_blank_lines_are_no_trouble(tmp_path: Path) -> None:
    text = '\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n\n2023-11-16 18:15:46,"374",44\n\n'
    assert read_trace(made(tmp_path, text))[0].prompt_tokens.tolist() == [374]


def test_burstgpt_counts_failures_always(tmp_path: Path) -> None:
    workload, report = read_trace(made(tmp_path, BURST_1))
    assert (report.kind, report.read, report.kept, report.skipped) == ("burstgpt", 3, 2, ((RowFault.FAILED, 1),))
    assert workload.arrival_s.tolist() == [0.0, 113.0]


def test_burstgpt_2_knows_conversations(tmp_path: Path) -> None:
    """A blank key says nothing of a conversation, so that request stands alone."""
    workload, _ = read_trace(made(tmp_path, BURST_2))
    assert workload.arrival_s.tolist() == [0.0, 2.5, 2.5, 3.0, 4.0]
    assert workload.session is not None
    assert workload.session.tolist() == [0, 1, 0, 2, 3]


def test_mooncake(tmp_path: Path) -> None:
    workload, report = read_trace(made(tmp_path, MOONCAKE, "t.jsonl"))
    assert (report.kind, report.has_prefix_ids) == ("mooncake", True)
    assert workload.arrival_s.tolist() == [0.0, 3.0]
    assert workload.max_new_tokens.tolist() == [1024, 1490]


def test_no_hits_of_a_prefix_cache_are_assumed(tmp_path: Path) -> None:
    """Case T06. Azure's trace doesn't say which prompts share beginnings; what is assumed is in the report: none."""
    _, report = read_trace(made(tmp_path, AZURE))
    assert (report.has_prefix_ids, report.assumed_prefix_hit_rate) == (False, 0.0)


def test_vidur_needs_arrivals(tmp_path: Path) -> None:
    path = made(tmp_path, VIDUR)
    with pytest.raises(InputError, match="format vidur has no times; name an arrival process"):
        read_trace(path)
    with pytest.raises(InputError, match="format vidur has no times to cut a window from"):
        read_trace(path, window_s=(0, 5), arrivals=np.arange)
    workload, _ = read_trace(
        path, arrivals=lambda n: first_arrivals(n, 2.0, lambda duration_s: poisson(2.0, duration_s, 5))
    )
    assert workload.num_requests == 2
    assert workload.prompt_tokens.tolist() == [100, 200]


def test_other_times_may_replace_the_own_ones(tmp_path: Path) -> None:
    workload, _ = read_trace(made(tmp_path, AZURE), arrivals=lambda n: 10**9 * np.arange(n))
    assert workload.arrival_s.tolist() == [0.0, 1.0, 2.0]


def test_only_a_window(tmp_path: Path) -> None:
    """Rows arrive at 0, 4.314579 and 4.541877 s; the window starts its own clock, and nothing behind it is read."""
    text = AZURE + "\r\n2023-11-16 18:15:59,5,5\r\nthis is never read"
    workload, report = read_trace(made(tmp_path, text), window_s=(4.0, 5.0))
    assert workload.arrival_ns.tolist() == [314_579_000, 541_877_000]
    assert (report.read, report.kept, report.outside) == (4, 2, 2)
    with pytest.raises(InputError, match="no rows left of 4: 4 outside the window"):
        read_trace(made(tmp_path, text), window_s=(5.0, 6.0))
    with pytest.raises(InputError, match="ends before it starts"):
        read_trace(made(tmp_path, text), window_s=(6.0, 5.0))


def test_no_more_than_asked(tmp_path: Path) -> None:
    workload, report = read_trace(made(tmp_path, AZURE), max_requests=2)
    assert (workload.num_requests, report.read) == (2, 2)


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_module, "PROGRESS_ROWS", 2)
    told: list[int] = []
    read_trace(made(tmp_path, AZURE), progress=told.append)
    assert told == [2]


# ------------------------------------------------------------------------------------------------------ which format


def test_formats_are_known_by_their_first_line(tmp_path: Path) -> None:
    texts = {"azure": AZURE, "burstgpt": BURST_2, "mooncake": MOONCAKE, "vidur": VIDUR, "slob-csv": OWN}
    for kind, text in texts.items():
        assert detect(made(tmp_path, text)) == kind
    assert detect(made(tmp_path, OWN.removeprefix("# "))) == "slob-jsonl"
    assert detect(made(tmp_path, "0,0,0,,0,0\n", "chunk-3-trace.csv")) == "servegen"
    assert {*texts, "slob-jsonl", "servegen"} == set(format_names())


def test_an_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no trace format 'azur'; did you mean azure"):
        read_trace(made(tmp_path, AZURE), "azur")


def test_a_format_may_be_named(tmp_path: Path) -> None:
    assert read_trace(made(tmp_path, AZURE), "azure")[1].kind == "azure"
    with pytest.raises(InputError, match=r"t.csv:1: column Timestamp missing"):
        read_trace(made(tmp_path, AZURE), "burstgpt")


# -------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv: no rows$"),
        ("\n \n", "t.csv: no rows$"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "t.csv: no rows$"),
        (
            "TIMESTAMP,ContextTokens,GeneratedToken\n",
            "t.csv:1: column GeneratedTokens missing; found: TIMESTAMP, ContextTokens, GeneratedToken; did you mean"
            " 'GeneratedToken' to be it",
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n1,2,3,4\n", "t.csv:1: column ContextTokens stands"),
        ("a,b,c\n1,2,3\n", "t.csv:1: found 'a,b,c', expected the first line of a known format"),
        (AZURE.replace("396,109", "0,109"), "t.csv:3: found 0 prompt and 109 output tokens, expected at least 1 each"),
        (AZURE.replace("396,109", "396,0"), "t.csv:3: found 396 prompt and 0 output tokens"),
        (AZURE.replace("396,109", "396,x"), "t.csv:3: GeneratedTokens is 'x', expected a whole number"),
        (AZURE.replace("396,109", "3_9,109"), "t.csv:3: ContextTokens is '3_9', expected a whole number"),
        (AZURE.replace("396,109", "396.5,109"), "t.csv:3: ContextTokens is '396.5', expected a whole number"),
        (AZURE.replace("396,109", "9" * 5000 + ",1"), "t.csv:3: ContextTokens is .*, expected a whole number"),
        (AZURE.replace("396,109", "-4,109"), "t.csv:3: ContextTokens is '-4', expected a whole number"),
        (AZURE.replace("396,109", "396"), "t.csv:3: found 2 cells, expected 3"),
        (AZURE.replace("18:15:50", "18:15:40"), "t.csv:3: the request comes 5.68.* s before the one above it"),
        (AZURE.replace("18:15:50.9951690", "18:15:50.9951690+00:00"), "t.csv:3: TIMESTAMP mixes formats: date and"),
        (AZURE.replace("2023-11-16 18:15:50.9951690", "1700158550.99"), "t.csv:3: TIMESTAMP mixes formats: a number"),
        (AZURE.replace("16 18:15:50", "16T18:15:50"), "t.csv:3: TIMESTAMP mixes formats: date and time with a T"),
        (AZURE.replace("18:15:50.9951690", "18:75:50"), "t.csv:3: TIMESTAMP is .*, which is no time"),
        (AZURE.replace("2023-11-16 18:15:50.9951690", "yesterday"), "t.csv:3: TIMESTAMP is 'yesterday', expected YYYY"),
        (BURST_1.replace("118", "soon"), "t.csv:4: Timestamp is 'soon', expected a number of seconds"),
        (BURST_1.replace("118", "2023-11-16 18:15:50"), "t.csv:4: Timestamp mixes formats"),
        (BURST_1.replace("118", "nan"), "t.csv:4: Timestamp is 'nan', expected a number of seconds"),
        (BURST_1.replace("118", "1e30"), "t.csv:4: Timestamp is 1e30, expected at most"),
        (BURST_1.replace("5,ChatGPT,472", "-5,ChatGPT,472"), "t.csv:2: time is -5 s, expected at least 0"),
        (BURST_2.replace("Elapsed time,", ""), "t.csv:1: column Elapsed time missing"),
        (
            MOONCAKE.replace('"output_length": 1490', '"output": 1'),
            "t.csv:2: key output_length missing; found: .*'outp",
        ),
        (MOONCAKE.replace('"hash_ids": [0]', '"hash_ids": [0], "x": 1'), "t.csv:2: unknown key 'x'"),
        (MOONCAKE.replace('{"timestamp": 3000', '{"timestamp" 3000'), "t.csv:2: not valid JSON: .* at column 14"),
        (MOONCAKE.replace("3000", '"3000"'), "t.csv:2: timestamp mixes formats"),
        (MOONCAKE.replace("3000", "true"), "t.csv:2: timestamp is True, expected milliseconds"),
        (MOONCAKE.replace("3000", "NaN"), "t.csv:2: timestamp is nan, expected milliseconds"),
        (MOONCAKE.replace("7322", "7322.0"), "t.csv:2: input_length is 7322.0, expected a whole number"),
        (MOONCAKE.replace('"input_length": 7322', '"timestamp": 7'), "t.csv:2: a key stands twice"),
        (MOONCAKE.replace('{"timestamp": 3000', '[{"timestamp": 3000'), "t.csv:2: not valid JSON"),
        (MOONCAKE + "[" * 200_000, "t.csv:3: not valid JSON"),
    ],
)
def test_one_sentence_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(made(tmp_path, text))


def test_empty_files_and_missing_columns_are_told_alike(tmp_path: Path) -> None:
    """Case T03."""
    with pytest.raises(InputError, match="no rows"):
        read_trace(made(tmp_path, ""))
    with pytest.raises(InputError, match=r"column GeneratedTokens missing; found: TIMESTAMP, ContextTokens$"):
        read_trace(made(tmp_path, "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.68,374\n"))
    for name in ("azure", "burstgpt", "vidur", "slob-csv", "slob-jsonl", "mooncake"):
        with pytest.raises(InputError, match="no rows"):
            read_trace(made(tmp_path, ""), name, arrivals=np.arange)


def test_a_missing_file_says_where_traces_are(tmp_path: Path) -> None:
    """Case T02. A small synthetic trace ships with the package; the public ones have addresses."""
    for read in (lambda: read_trace(tmp_path / "missing.csv"), lambda: find_trace(str(tmp_path / "missing.csv"))):
        with pytest.raises(InputError, match=r"missing.csv: no such file; public traces are at .*'example'"):
            read()
    workload, report = read_trace(find_trace("example"))
    assert report.kept == workload.num_requests > 100


def test_rows_over_the_models_length(tmp_path: Path) -> None:
    """Case T05. Refused with the numbers, dropped and counted, or clipped: whoever reads chooses."""
    lengths = [(9000, 100), (8000, 500), (10, 9000), (8192, 1), (5, 5)]
    rows = "".join(f"{i},m,{prompt},{output},0,log\n" for i, (prompt, output) in enumerate(lengths))
    path = made(tmp_path, BURST_1.splitlines()[0] + "\n" + rows)
    with pytest.raises(InputError, match=r"t.csv:2: 9000 \+ 100 tokens, the model takes 8192; .*skipped as too-long"):
        read_trace(path, max_tokens=8192)
    workload, report = read_trace(path, max_tokens=8192, skip={RowFault.TOO_LONG})
    assert (workload.prompt_tokens.tolist(), report.skipped) == ([5], ((RowFault.TOO_LONG, 4),))
    workload, report = read_trace(path, max_tokens=8192, is_clipping=True)
    # The prompt gives way: 8192 - 100, 8192 - 500; an output that is too long by itself leaves one token of prompt.
    assert workload.prompt_tokens.tolist() == [8092, 7692, 1, 8191, 5]
    assert workload.output_tokens.tolist() == [100, 500, 8191, 1, 5]
    assert (report.kept, report.clipped, report.skipped) == (5, 4, ())
    with pytest.raises(InputError, match="clipping needs a limit"):
        read_trace(path, is_clipping=True)


def test_only_the_faults_that_are_named_are_skipped(tmp_path: Path) -> None:
    path = made(tmp_path, AZURE.replace("396,109", "0,109").replace("18:15:51", "18:15:41"))
    with pytest.raises(InputError, match=r"t.csv:4: .* before the one"):
        read_trace(path, skip={RowFault.ZERO_TOKENS})
    workload, report = read_trace(path, skip=set(RowFault))
    assert report.skipped == ((RowFault.ZERO_TOKENS, 1), (RowFault.UNSORTED, 1))
    assert (report.num_skipped, workload.num_requests) == (2, 1)


def test_a_negative_time_can_be_skipped(tmp_path: Path) -> None:
    path = made(tmp_path, BURST_1.replace("5,ChatGPT,472", "-5,ChatGPT,472"))
    workload, report = read_trace(path, skip={RowFault.NEGATIVE_TIME})
    assert workload.num_requests == 1
    assert dict(report.skipped) == {RowFault.FAILED: 1, RowFault.NEGATIVE_TIME: 1}


def test_all_rows_skipped_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows left of 3: 3 too-long"):
        read_trace(made(tmp_path, AZURE), max_tokens=5, skip={RowFault.TOO_LONG})


def test_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv.gz"
    packed = gzip.compress(AZURE.encode())
    for broken in (packed[:40], packed[:-6] + b"\0\0\0\0\0\0", packed[:20] + b"\xff" + packed[21:]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="can't be read: damaged or cut short"):
            read_trace(path)
    path.write_bytes(AZURE.encode().replace(b"396", b"\xff96"))
    with pytest.raises(InputError, match=r"t.csv.gz:3: the line is not UTF-8 text"):
        read_trace(path)
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 30)
    with pytest.raises(InputError, match=r"t.csv:1: the line is longer than 30 bytes"):
        read_trace(made(tmp_path, AZURE))
    with pytest.raises(InputError, match=r"no chunk-N-trace.csv in this folder"):
        read_trace(tmp_path)


# --------------------------------------------------------------------------------------------------- the published ones


@pytest.mark.parametrize(
    ("file", "kind", "rows"),
    [
        ("traces/azure2023/AzureLLMInferenceTrace_conv.csv.gz", "azure", 19_366),
        ("traces/azure2023/AzureLLMInferenceTrace_code.csv.gz", "azure", 8_819),
        ("traces/mooncake/conversation_trace.jsonl.gz", "mooncake", 12_031),
        ("traces/mooncake/synthetic_trace.head1000.jsonl.gz", "mooncake", 1_000),
        ("traces/burstgpt/BurstGPT_1.first3rows.csv", "burstgpt", 3),
        ("traces/burstgpt/BurstGPT_3.first4rows.csv", "burstgpt", 4),
        ("traces/vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.head5000.csv.gz", "vidur", 5_000),
    ],
)
def test_published_traces_have_no_bad_row(file: str, kind: str, rows: int) -> None:
    path = reference_file(file)
    assert detect(path) == kind
    workload, report = read_trace(path, arrivals=None if kind != "vidur" else np.arange)
    assert (report.read, report.kept, report.skipped) == (rows, rows, ())
    assert workload.num_requests == rows


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("azure2023/AzureLLMInferenceTrace_conv.csv.gz", "azure23_conv"),
        ("azure2023/AzureLLMInferenceTrace_code.csv.gz", "azure23_code"),
        ("mooncake/conversation_trace.jsonl.gz", "mooncake_conversation"),
    ],
)
def test_published_traces_have_their_published_figures(file: str, key: str) -> None:
    expected = json.loads(reference_file("trace_stats.json").read_text(encoding="utf-8"))[key]
    stats = workload_stats(read_trace(reference_file(f"traces/{file}"))[0])
    assert stats.num_requests == expected["arr"]["n"]
    assert stats.rate == pytest.approx(expected["arr"]["rate"], abs=1e-3)
    assert stats.gap_cv == pytest.approx(expected["arr"]["iat_cv"], abs=2e-3)
    assert stats.dispersion_60 == pytest.approx(expected["arr"]["IDC_60s"], rel=0.05)
    assert stats.prompt_mean == pytest.approx(expected["inp"]["mean"], abs=0.06)
    assert stats.output_mean == pytest.approx(expected["out"]["mean"], abs=0.06)
    quantiles = [expected["inp"]["pct"][f"p{q}"] for q in (5, 50, 95, 99)]
    assert stats.prompt_quantiles == pytest.approx(quantiles, abs=1.0)
    assert stats.prompt_max == expected["inp"]["pct"]["max"]
