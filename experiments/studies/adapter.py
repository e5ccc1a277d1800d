"""Study: the adapter against each fixed level of its ladder, over days with quiet and busy hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from experiments.ladder_days import HOUR_S, Day
from experiments.ladder_run import SLOB, LadderRun, serve_adapter, serve_level
from experiments.provenance import collect
from experiments.run_record import RunRecord, flatten
from experiments.studies.adapter_claims import ADAPTER, adapter_claims, adapter_figures
from experiments.studies.jobs import Job, Row, key_of, run_jobs, source_digest
from experiments.study_contract import StudyOptions, StudySummary
from slob_opt.problem.catalogue.clusters import cluster
from slob_opt.problem.catalogue.models import model
from slob_opt.problem.presets import sample_preset
from slob_opt.slob.adapter import Adapter
from slob_opt.slob.ladder_planning import PlannedLadder, build_ladder

NUM_SEEDS, QUICK_NUM_SEEDS = 3, 1
QUICK_HOUR_S = 1200.0
QUICK_HOURS = 4
SOURCES = ("slob_opt", "experiments")


@dataclass(frozen=True, slots=True)
class AdapterCase:
    """A day on a cluster.

    Attributes
    ----------
    name
        Shown in tables.
    cluster, model
        Catalogue ids.
    day
        Requests.
    """

    name: str
    cluster: str
    model: str
    day: Day

    def plan(self) -> PlannedLadder:
        """Return the ladder, planned for the preset's mean lengths, each level holding its longest request."""
        sample = sample_preset(self.day.preset, 0)
        assert sample.tpot_s is not None
        longest = int((sample.prompt_tokens + sample.max_new_tokens).max())
        traffic = sample.profile(tpot_s=float(sample.tpot_s[0]))
        return build_ladder(cluster(self.cluster), model(self.model), traffic, longest_tokens=longest)


QUIET_SHARE, RUSH_SHARE = 0.05, 1.15
"""Offered concurrencies of quiet and busy hours over what the lowest level carries by the cost model. Chosen: where the
lowest level carries the rush there is nothing to gain."""

CASES = (
    ("factory-7/office_chat", "factory-7", "qwen2.5-14b", "office_chat", 10.44),
    ("lab-3/office_chat", "lab-3", "llama-3.1-8b", "office_chat", 14.0),
    ("factory-7/doc_summary", "factory-7", "qwen2.5-14b", "doc_summary", 3.76),
)
"""Name, cluster, model, preset, and the offered concurrency that the lowest level of the ladder carries."""


def adapter_cases(*, is_quick: bool) -> tuple[AdapterCase, ...]:
    """Return the cases: eight hours with two rushes of one hour; the quick study has one, with short hours."""
    found = []
    for name, cluster_id, model_id, preset, carried in CASES:
        quiet, rush = QUIET_SHARE * carried, RUSH_SHARE * carried
        hours: tuple[float, ...] = (quiet, rush, quiet, quiet, quiet, rush, quiet, quiet)
        day = Day(preset, hours[:QUICK_HOURS], QUICK_HOUR_S) if is_quick else Day(preset, hours, HOUR_S)
        found.append(AdapterCase(name, cluster_id, model_id, day))
    return tuple(found[:1] if is_quick else found)


def run(options: StudyOptions) -> StudySummary:
    """Return the summary of the adapter study; resumes where an earlier call with the same folder ended."""
    seeds = range(options.seed, options.seed + (QUICK_NUM_SEEDS if options.is_quick else NUM_SEEDS))
    return study_of(adapter_cases(is_quick=options.is_quick), seeds, options)


def study_of(cases: Sequence[AdapterCase], seeds: Sequence[int], options: StudyOptions) -> StudySummary:
    """Return the summary of the study over given cases, each with each seed."""
    provenance = collect()
    digest = source_digest(*SOURCES)
    jobs, ladders = [], []
    for case in cases:
        options.progress(f"planning the ladder of {case.name}")
        planned = case.plan()
        ladders += ladder_rows(case, planned)
        jobs += [day_job(case, planned, seed, digest) for seed in seeds]
    rows, _ = run_jobs(jobs, options.out, workers=options.workers, progress=options.progress)
    records = tuple(_record(case, rows) for case in cases)
    return StudySummary(
        "adapter", adapter_claims(rows), (*adapter_figures(rows), *ladders, *rows), provenance, records
    )  # fmt: skip


def ladder_rows(case: AdapterCase, planned: PlannedLadder) -> list[Row]:
    """Return a row of kind ``"level"`` for each level of a case's ladder."""
    ladder, adapter = planned.ladder, Adapter(planned.ladder)
    return [
        {
            "kind": "level",
            "case": case.name,
            "level": index,
            "planned_as": level.name,
            "cards": len(level.cards),
            "num_pipelines": len(level.servers),
            "weight_bytes": sum(planned.level_bytes(index).values()),
            "rate_per_s": level.rate_per_s,
            "service_s": level.service_s,
            "capacity_offered": ladder.capacity(index, ladder.lengths),
            "from_offered": planned.from_offered(index, adapter.up_share),
            "gap": planned.gaps[index],
        }
        for index, level in enumerate(ladder.levels)
    ]


def day_job(case: AdapterCase, planned: PlannedLadder, seed: int, digest: str) -> Job:
    """Return the job of a day with a seed."""
    key = key_of("adapter", case, seed, digest)
    expected_s = 0.01 * sum(case.day.offered) * case.day.hour_s * (len(planned.ladder.levels) + 1)
    return Job(key, f"{case.name} seed {seed}", expected_s, partial(run_day, case, planned, seed))


def run_day(case: AdapterCase, planned: PlannedLadder, seed: int) -> list[Row]:
    """Return rows of kind ``"day"``: one a fixed level, and one of the adapter, on the same requests."""
    ladder = planned.ladder
    workload = case.day.sample(ladder.service_s(ladder.lengths), seed)
    rows = []
    for index in range(len(ladder.levels)):
        rows.append(_row(case, seed, f"level-{index}", serve_level(planned, index, workload, SLOB)))
    rows.append(_row(case, seed, ADAPTER, serve_adapter(planned, workload, Adapter(ladder), SLOB)))
    return rows


def _row(case: AdapterCase, seed: int, policy: str, run: LadderRun) -> Row:
    satisfaction = run.columns.satisfaction[run.columns.counts]
    ttft_s = run.columns.ttft_s[np.isfinite(run.columns.ttft_s)]
    return {
        "kind": "day",
        "case": case.name,
        "seed": seed,
        "serves": policy,
        "num_requests": int(satisfaction.size),
        "loss": run.loss,
        "p10_satisfaction": float(np.percentile(satisfaction, 10)),
        "ttft_p99_s": float(np.percentile(ttft_s, 99)) if ttft_s.size else None,
        "card_s": run.card_s,
        "mean_cards": run.card_s / run.end_s,
        "num_switches": max(0, len(run.changes) - 1),
        "levels": " ".join(f"{change.at_ns / 1e9:.0f}:{change.level}" for change in run.changes),
        "cpu_s": run.cpu_s,
    }


def _record(case: AdapterCase, rows: Sequence[Row]) -> RunRecord:
    losses = [
        row["loss"] for row in rows if row["kind"] == "day" and row["case"] == case.name and row["serves"] == ADAPTER
    ]
    metrics = (("mean_satisfaction", float(1 - np.mean(losses))),) if losses else ()
    params = {"case": case.name, "cluster": case.cluster, "model": case.model, "offered": str(case.day.offered)}
    return RunRecord(f"adapter/{case.name}", (("study", "adapter"),), flatten(params), metrics)
