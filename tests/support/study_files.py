"""A small study file of one card, with changes for tests."""

from __future__ import annotations

from pathlib import Path

CLUSTER = """
schema_version: 1
name: one-l4
inter_link: {bandwidth: 10Gbps, latency: 0.1ms}
nodes:
- {name: box, gpus: {l4: 1}}
"""

STUDY = """
schema_version: 1
study: paper
duration: 3min
grace: 2min
seeds: [0, 1]
systems:
- name: one
  cluster: one.yaml
  model: llama-3.1-8b
  pipelines:
  - {lanes: 1, stages: [{device: box/0, layers: 32}]}
policies:
- {label: slob, policy: slob, dispatcher: slob}
- {label: orca, policy: orca}
- {label: orca-paged, policy: orca-paged}
- {label: rtc, policy: rtc}
- {label: slob-beta-0, policy: slob, params: {oldest_share: 0.0}}
sweeps:
- name: chat
  system: one
  preset: office_chat
  loads: [1, 12]
  policies: [slob, orca, orca-paged, rtc]
- name: frontier
  role: frontier
  system: one
  preset: office_chat
  loads: [12]
  policies: [slob, slob-beta-0]
quick:
  sweeps: [chat]
  seeds: [0]
  duration: 1min
  max_loads: 1
"""


def write_study(folder: Path, *changes: tuple[str, str], study: str = "paper") -> Path:
    """Write a study file and its cluster; each change replaces a text, the first time it stands there."""
    text = STUDY.replace("study: paper", f"study: {study}")
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after, 1)
    (folder / "one.yaml").write_text(CLUSTER, encoding="utf-8")
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path
