"""Other schedules with the measured times: planted runs, and unknown predictions."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.errors import MismatchError
from bubbleviz.explain.what_if import WhatIf
from bubbleviz.model.phases import Phase
from bubbleviz.render.picture.panels import draw_theory
from bubbleviz.render.text.report import render_text
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.measured_times import collect_times
from bubbleviz.schedules.plan import OperationTimes
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import list_texts
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.pipeline_jobs import Job, simulate_job
from tests.support.places import FIXTURES
from tests.support.planted_runs import analyze_planting

pytestmark = pytest.mark.thorough

SVG = "{http://www.w3.org/2000/svg}"
SPLIT = Planting(schedule="zb-h1", microbatches=12, backward_ns=1_200_000, weight_ns=700_000)
FUSED = Planting(transfer_ns=100_000)
#: DualPipeV runs some backwards fused, and others as separate B and W.
RUNS = [SPLIT, *(replace(SPLIT, schedule=name) for name in ("zb-v", "dualpipev")), FUSED]


@cache
def planted(planting: Planting) -> tuple[Report, WhatIf]:
    """Return the report on a planted run, and the predictions for other schedules."""
    report = analyze_planting(planting, what_if=True)
    assert report.other_schedules is not None
    return report, report.other_schedules


def test_a_run_without_backwards_has_no_predictions(tmp_path: Path) -> None:
    path = write_profile(tmp_path, [K(10, 20, 1)], [C(1, 2, 1)], [R(0, 5, "F0.0.0")])
    assert bubbleviz.analyze(path).other_schedules is None
    report = bubbleviz.analyze(path, what_if=True)
    what_if = report.other_schedules

    assert what_if is not None
    assert (what_if.measured, what_if.rows, what_if.same_schedule) == (None, (), None)
    assert list_texts(draw_theory(report, View()))[:2] == [
        "As measured",
        "No theoretical schedule is drawn above: a single stage is not a pipeline.",
    ]


@pytest.mark.parametrize("planting", RUNS)
def test_measured_times_and_the_order_are_as_planted(planting: Planting) -> None:
    _, what_if = planted(planting)
    assert what_if.measured is not None
    assert what_if.same_schedule is not None
    times, split = what_if.measured.times, planting is not FUSED

    assert (what_if.measured.stages, what_if.measured.microbatches) == (4, planting.microbatches)
    assert times.forward_ms == (planting.forward_ns / 1e6,) * 4
    backward, weight = planting.backward_ns / 1e6, planting.weight_ns / 1e6
    if not split:
        backward = weight = (backward + weight) / 2
    assert times.backward_ms == (backward,) * 4
    assert times.weight_ms == (weight,) * 4
    assert times.transfer_ms == pytest.approx(planting.transfer_ns / 1e6, abs=3e-3)
    assert what_if.measured.split is split

    rows = {row.schedule: row for row in what_if.rows}
    assert set(rows) == {"measured", "no-delay", *(rule.name for rule in schedules())}
    row_of_run = rows[planting.schedule]
    assert row_of_run.makespan_ms == pytest.approx(rows["measured"].makespan_ms, rel=2e-3)
    assert row_of_run.bubble_ratio == pytest.approx(rows["measured"].bubble_ratio, abs=2e-3)
    assert row_of_run.peak_activations == rows["measured"].peak_activations
    assert row_of_run.fits
    assert what_if.same_schedule.plan.name == planting.schedule


def test_a_long_microbatch_is_equally_long_in_any_order() -> None:
    _, what_if = planted(replace(FUSED, microbatches=8, lengths=(1, 1, 1, 3, 1, 1, 1, 1)))
    times = {row.schedule: row.makespan_ms for row in what_if.rows}

    assert times["1f1b"] == pytest.approx(times["measured"], rel=0.005)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_unequal_microbatches_take_what_their_best_order_promises(schedule: str) -> None:
    lengths = (1.0, 2.5, 0.5, 1.5, 0.4, 2.0, 0.6, 1.2)
    run = replace(FUSED, schedule=schedule, microbatches=8, lengths=lengths)
    report, what_if = planted(run)
    mean = sum(lengths) / len(lengths)
    packed, _ = planted(replace(run, lengths=(mean,) * 8))
    even = {change.name: change.makespan_ns for change in report.explanation.changes}
    assert even["even-microbatches"] == packed.explanation.changes[0].makespan_ns
    assert what_if.reordered is not None
    order, saving = what_if.reordered
    _, then = planted(replace(run, lengths=tuple(lengths[number] for number in order)))

    measured_ms, promised_ms = (each.rows[0].makespan_ms or 0.0 for each in (what_if, then))
    assert sorted(order) == list(range(8))
    assert saving > 0.05
    assert promised_ms == pytest.approx((1 - saving) * measured_ms, rel=0.005)
    assert (then.reordered or (order, 0.0))[1] < 0.02


def test_equal_microbatches_have_no_better_order() -> None:
    assert planted(FUSED)[1].reordered is None


def test_alternatives_are_compared_by_the_same_memory_and_time() -> None:
    """The planted run is 1F1B.

    Searched schedules use its memory, counted like the measured memory.
    """
    planting = Planting(microbatches=8, transfer_ns=60_000, jitter=0.1, iterations=4, seed=3)
    _, what_if = planted(planting)
    rows = {row.schedule: row for row in what_if.rows}
    measured_peak = rows["measured"].peak_activations
    makespan = {row.schedule: row.makespan_ms or 0.0 for row in what_if.rows}

    assert measured_peak == 4.0
    for name, max_peak in (("zb-1p", 4.0), ("zb-2p", 8.0), ("v-half", 3.0), ("v-min", 2.0)):
        assert (rows[name].peak_activations or 0.0) <= max_peak
        assert rows[name].fits is (name != "zb-2p")
    # Alternatives are ranked by makespan.
    assert makespan["zb-1p"] <= makespan["zb-h1"]
    assert makespan["zb-2p"] <= min(makespan["zb-1p"], makespan["zb-h2"])


@pytest.mark.parametrize("phases", [(), (Phase.F,), (Phase.BW,), (Phase.F, Phase.B, Phase.FB)])
def test_times_that_lack_a_phase_predict_nothing(phases: tuple[Phase, ...]) -> None:
    kinds = [OperationTimes(phase, 2e6, 0, 0) for phase in phases]

    with pytest.raises(MismatchError, match="does not contain all times of its schedule"):
        collect_times(kinds, None, 4)


def titles(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    bold = [text for text in root.iter(f"{SVG}text") if text.get("font-weight") == "bold"]
    return [text.text or "" for text in bold][1:]


def test_panels_show_the_ideal_and_simulate_no_other_schedule() -> None:
    report = analyze_planting(
        replace(SPLIT, schedule="1f1b", slow_stage=2, slow_factor=1.5), ideal=True
    )
    others = report.theory

    assert report.other_schedules is None
    assert others is not None
    assert {row.schedule for row in others.rows} == {"measured", "no-delay", "1f1b"}
    assert others.best is None
    assert others.ideal is not None
    # The ratio is (p - 1) / (m + p - 1) with 4 stages and 12 microbatches.
    assert others.ideal.schedule_ratio == pytest.approx(3 / 15)
    assert titles(draw_theory(report, View())) == [
        "(a) 1f1b, ideal: equal stages, free transfers",
        "(b) 1f1b at the measured times",
        "(c) measured",
    ]


def test_panels_change_no_other_output(tmp_path: Path) -> None:
    plant(replace(SPLIT, schedule="1f1b"), tmp_path / "run")
    profiles = str(tmp_path / "run")
    texts = []
    for name, outputs in (("alone", ()), ("beside", ("-o", str(tmp_path / "x.panels.svg")))):
        saved, text = tmp_path / f"{name}.json", tmp_path / f"{name}.txt"
        assert main(["analyze", profiles, "-o", str(saved), "-o", str(text), *outputs]) == 0
        assert json.loads(saved.read_text())["what_if"] is None
        texts.append(text.read_text())

    assert (tmp_path / "x.panels.svg").exists()
    assert "To compare other schedules, pass --what-if" in texts[0]
    assert texts[0].replace("alone", "beside") == texts[1].replace("alone", "beside")


def test_panels_show_the_best_schedule_if_others_were_simulated() -> None:
    report, what_if = planted(replace(SPLIT, schedule="1f1b"))
    panel_titles = titles(draw_theory(report, View()))

    assert len(panel_titles) == 3
    assert panel_titles[1].endswith("at the measured times: the best in as much memory")

    # An ideal 1F1B replaces an unknown schedule.
    unknown = replace(what_if, same_schedule=None, best=None)
    panel_titles = titles(draw_theory(replace(report, theory=unknown), View()))
    assert len(panel_titles) == 2
    assert panel_titles[0].endswith("ideal: equal stages, free transfers")


def test_the_reason_for_a_missing_theory_is_given_in_full() -> None:
    report = analyze_planting(
        Planting(schedule="dualpipe", microbatches=8, iteration_ranges=True), what_if=True
    )
    text = " ".join(list_texts(draw_theory(report, View())))

    assert report.other_schedules is not None
    assert report.other_schedules.reason in text
    assert "microbatch" not in report.other_schedules.reason
    assert "…" not in text.split("measured", 2)[1]


def test_simulate_takes_sizes_and_times_from_a_report(tmp_path: Path, cli: CommandLine) -> None:
    plant(SPLIT, tmp_path / "run")
    report = str(tmp_path / "report.json")
    assert main(["analyze", str(tmp_path / "run"), "--json", report]) == 0
    measured = cli.json("simulate", "--from", report, "--schedule", "zb-h1", "--json", "-")
    times = ("--tf", "1", "--tb", "1.2", "--tw", "0.7", "--tcomm", "0")
    sizes = ("-p", "4", "-m", "12")
    document = cli.json("simulate", "--schedule", "zb-h1", *sizes, *times, "--json", "-")

    assert measured["makespan_ms"] == pytest.approx(document["makespan_ms"], rel=1e-3)
    assert {**measured, "makespan_ms": 0, "cost_ms": 0, "bubble_ratio": 0} == {
        **document,
        "makespan_ms": 0,
        "cost_ms": 0,
        "bubble_ratio": 0,
    }
    # Values given by the user take precedence.
    assert (
        cli.json("simulate", "--from", report, "--schedule", "1f1b", "-m", "3", "--json", "-")[
            "microbatches"
        ]
        == 3
    )


@pytest.mark.parametrize(("ran", "name"), [("1f1b", "gpipe"), ("interleaved-1f1b",) * 2])
def test_every_command_predicts_the_same_for_a_schedule(
    ran: str, name: str, tmp_path: Path, cli: CommandLine
) -> None:
    """One replica has a rank that is slow in any order.

    The slowest pipeline determines the time.
    """
    job = Job(schedule=ran, rank={5: 1.4}, iterations=4)
    table, saved = simulate_job(job).written(tmp_path / "run.csv"), str(tmp_path / "report.json")
    assert main(["analyze", str(table), "--what-if", "--json", saved]) == 0
    rows = {row["name"]: row for row in json.loads(Path(saved).read_text())["what_if"]["rows"]}
    document = cli.json("plan", saved, "--memory-limit", "none", "--json", "-")
    planned = {row["schedule"]: row["makespan_ns"] for row in document["candidates"]}
    layers = ("--layers-per-stage", "2", "--schedule", name)
    (layout,) = cli.json("layout", saved, *layers, "--json", "-")["schedules"]
    promised_ms = rows[name]["makespan_ms"]

    assert cli.json("simulate", "--from", saved, "--schedule", name, "--json", "-")[
        "makespan_ms"
    ] == pytest.approx(promised_ms, rel=1e-6)
    assert planned[name] / 1e6 == pytest.approx(promised_ms, rel=1e-6)
    assert layout["before"]["makespan_ns"] / 1e6 == pytest.approx(promised_ms, rel=1e-3)
    assert rows[ran]["makespan_ms"] == pytest.approx(rows["measured"]["makespan_ms"], rel=0.01)


def test_simulate_marks_times_of_an_incomplete_run(tmp_path: Path, cli: CommandLine) -> None:
    restriction = "incomplete: ranks of the run are missing"
    for ranks in ((0, 1), (0, 1, 3)):
        report = str(tmp_path / f"{len(ranks)}.json")
        profiles = [str(FIXTURES / "zb-v" / f"rank{rank}.sqlite") for rank in ranks]
        assert main(["analyze", *profiles, "--json", report]) == 0
        command = ["simulate", "--from", report, "--schedule", "zb-h1"]
        assert f"! measured times: {restriction}" in cli.printed(*command)
        assert cli.json(*command, "--json", "-")["restrictions"][0]["text"] == restriction


def test_the_advice_and_the_table_compare_a_schedule_with_the_same_time() -> None:
    _, what_if = planted(Planting(transfer_ns=20_000, late_stage=1, late_ns=400_000))
    best, measured, base_ms = what_if.fastest_other, what_if.as_measured, what_if.base_ms or 0.0
    assert best is not None
    assert measured is not None

    assert (measured.makespan_ms or 0.0) > 1.01 * base_ms
    assert best.speedup == pytest.approx(1 - (best.makespan_ms or 0.0) / base_ms)
    assert measured.speedup == pytest.approx(1 - (measured.makespan_ms or 0.0) / base_ms)


OVERLAPPING = replace(SPLIT, schedule="zb-h2", microbatches=12, iterations=3, transfer_ns=20_000)


@pytest.mark.parametrize("planting", [OVERLAPPING, replace(OVERLAPPING, microbatches=16)])
def test_overlapping_iterations_are_compared_by_the_ranks_own_windows(planting: Planting) -> None:
    report, what_if = planted(planting)
    typical = report.typical_iteration()
    assert report.headline == "period"
    assert typical is not None
    assert what_if.window == "stage"
    rows = {row.schedule: row for row in what_if.rows}
    assert "no-delay" not in rows
    assert rows["measured"].cost_ms == (typical.ratios["stage"].window_ns or 0) / 1e6
    assert rows["measured"].bubble_ratio == typical.ratios["stage"].value
    for row in what_if.rows:
        if row.cost_ms is not None:
            assert row.speedup == pytest.approx(1 - row.cost_ms / (rows["measured"].cost_ms or 0))
    # The run follows this schedule already, so the schedule gains nothing.
    assert rows["zb-h2"].speedup == pytest.approx(0, abs=0.01)
    assert (rows["1f1b"].speedup or 0) < 0
    assert max(row.speedup or 0 for row in what_if.rows) < 0.03
    text = " ".join(render_text(report, View()).split())
    assert "stage window ms" in text
    assert "Consecutive iterations overlap, so schedules are compared by the longest window" in text


@pytest.mark.parametrize("schedule", ["dualpipe", "chimera"])
def test_stages_of_two_replicas_are_complete_stages_although_a_v_ran(schedule: str) -> None:
    report = bubbleviz.analyze([FIXTURES / "zb-v"])

    # A rank computes for 24 ms.
    assert bubbleviz.simulate(schedule, report=report).cost_ms > 24
