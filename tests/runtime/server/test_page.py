"""The status page: its figures, and what a real browser makes of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from engine_setups import NUM_LAYERS, two_pipelines
from http_servers import MODEL, Running, Serve, prompt_of

from slob_opt.problem.placement import Pipeline, Placement, Stage

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
EVIL = "<img src=x onerror=\"document.title='caught'\">"


def ask(server: Running, **more: object) -> None:
    with server.client() as client:
        body = {"model": MODEL, "prompt": prompt_of(9), "max_tokens": 4, "ignore_eos": True, **more}
        assert client.post("/v1/completions", json=body).status_code == 200
    server.wait_idle()


def test_the_page_brings_all_it_needs(shared: Running) -> None:
    with shared.client() as client:
        page = client.get("/")
        assert client.head("/").status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    outside = [url for url in re.findall(r"(?:https?:)?//[a-z0-9.]+", page.text) if "w3.org" not in url]
    assert outside == []
    assert "innerHTML" not in page.text  # labels come from clients


def test_its_figures_are_the_engines(serve: Serve) -> None:
    server = serve(placement=two_pipelines(), plan_gap=0.02, plan_note="a plan of two")
    ask(server, user="ann")
    with server.client() as client:
        found = client.get("/status.json").json()
    engine = found.pop("engine")
    assert found["model"] == MODEL
    assert found["plan_gap"] == 0.02
    assert found["plan_note"] == "a plan of two"
    assert (found["prompt_tokens"], found["generated_tokens"], found["pending"]) == (9, 4, 0)
    assert engine["is_up"]
    assert engine["kv_usage"] == 0
    assert engine["num_finished"]["length"] == 1
    stages = [stage for pipeline in engine["pipelines"] for stage in pipeline["stages"]]
    assert [(one["device"], one["first"], one["end"]) for one in stages] == [("box/0", 0, 4), ("box/1", 0, 4)]
    (record,) = engine["latest"]
    assert (record["label"], record["prompt"], record["generated"], record["reason"]) == ("ann", 9, 4, "length")
    assert 0 < record["ttft_s"] < record["e2e_s"]
    assert record["tpot_s"] == pytest.approx((record["e2e_s"] - record["ttft_s"]) / 3)
    assert 0 <= record["satisfaction"] <= 1


@pytest.mark.slow
def test_a_browser_shows_plan_and_requests(serve: Serve, tmp_path: Path) -> None:
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser found ({', '.join(BROWSERS)}): install chromium to test the status page for real")
    cut = Placement((Pipeline((Stage((0,), 0, 3), Stage((1,), 3, NUM_LAYERS)), 2),))
    server = serve(placement=cut, plan_gap=0.02)
    ask(server, user=EVIL)
    ask(server, user="ann")
    server.engine._report.fault("box/9: <b>the process ended</b>")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=4000", "--dump-dom", f"{server.url}/",
    ]  # fmt: skip
    # The browser's own chatter goes to stderr.
    dom = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert f"<title>{MODEL} · serving</title>" in dom
    assert "layers 0–2" in dom
    assert "layer 3" in dom
    assert dom.count('class="stage"') == 2
    widths = [float(share) for share in re.findall(r'class="stage" style="flex: (\d+) ', dom)]
    assert widths == [3, 1]
    assert "plan at most 2.0 % from the optimum" in dom
    assert ">ann<" in dom
    # What a client calls itself is text, and stays text.
    assert "&lt;img src=x" in dom
    assert "<img" not in dom
    assert "&lt;b&gt;the process ended" in dom
    assert dom.count("<circle") == 4  # two requests in two plots
