"""The first step of the advice, and the findings that represent other findings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.explain.diagnosis.faults import Fault
from bubbleviz.explain.diagnosis.findings import Finding
from bubbleviz.explain.what_if import find_fastest_other
from bubbleviz.render.json_document import make_document
from bubbleviz.report import advice
from bubbleviz.report.advice import Advice, advise
from bubbleviz.report.long_bubbles import name_latest_host
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import (
    describe_first_steps,
    describe_further_steps,
    write_all_advice,
)
from bubbleviz.report.summary import AdviceEntry
from bubbleviz.schedules.choices import MEASURED, NO_DELAY, Choice
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.pipeline_jobs import Job, simulate_job
from tests.support.places import FIXTURES
from tests.support.planted_runs import analyze_planting


@pytest.mark.parametrize(
    ("slow_factor", "beginning"), [(1.0, "The schedule itself"), (1.4, "Move layers off stage")]
)
def test_a_change_is_weighed_against_more_microbatches(slow_factor: float, beginning: str) -> None:
    jittery = Planting(stages=8, microbatches=8, jitter=0.05, slow_stage=5, slow_factor=slow_factor)
    report = analyze_planting(jittery)

    saved = {change.name: change.makespan_ns for change in report.explanation.changes}
    assert min(saved.values()) < 0.995 * saved["measured"]
    assert str(describe_first_steps(report)).startswith(beginning)


def test_layers_are_not_moved_off_a_stage_below_the_mean() -> None:
    uneven = Planting(microbatches=8, jitter=0.002, slow_stage=2, slow_factor=1.4)
    report = analyze_planting(replace(uneven, slow_rank=3, slow_rank_factor=1.04))

    assert str(describe_first_steps(report)).startswith("Move layers off stage 2, or ")


@pytest.mark.parametrize(("names", "advised"), [("numbered", True), ("constant", False)])
def test_no_schedule_is_advised_where_chunks_may_count_as_microbatches(
    names: str, *, advised: bool
) -> None:
    interleaved = Planting(
        schedule="interleaved-1f1b", chunks=2, stages=4, microbatches=8, names=names
    )
    report = analyze_planting(interleaved, what_if=True)

    assert report.schedule is not None
    assert (report.schedule.name is None) is not advised
    assert ("schedule" in {advice.kind for advice in write_all_advice(report)}) is advised


@pytest.mark.parametrize(("saved", "advised"), [(0.019, False), (0.021, True)])
def test_a_schedule_that_saves_little_is_not_advised(saved: float, *, advised: bool) -> None:
    report = analyze_planting(Planting(), what_if=True)
    assert report.other_schedules is not None
    replayed = (Choice(name, 4, 8, 1, makespan_ns=100e6) for name in (MEASURED, NO_DELAY))
    rows = (*replayed, Choice("zb-h1", 4, 8, 1, makespan_ns=100e6 * (1 - saved), fits=True))
    what_if = replace(report.other_schedules, rows=rows, fastest_other=rows[-1], same_schedule=None)
    all_advice = write_all_advice(replace(report, other_schedules=what_if))

    assert ("schedule" in {advice.kind for advice in all_advice}) is advised


def advice_on_schedule(report: Report) -> AdviceEntry | None:
    return next((entry for entry in write_all_advice(report) if entry.kind == "schedule"), None)


def test_the_schedule_that_ran_is_not_advised() -> None:
    report = analyze_planting(Planting(), what_if=True)
    assert report.other_schedules is not None
    replayed = (Choice(name, 4, 8, 1, makespan_ns=100e6) for name in (MEASURED, NO_DELAY))
    rows = (*replayed, Choice("1f1b", 4, 8, 1, makespan_ns=90e6, fits=True))
    for simulated in (report.other_schedules.same_schedule, None):
        fastest = find_fastest_other(rows[2:], "1f1b")
        what_if = replace(
            report.other_schedules, rows=rows, fastest_other=fastest, same_schedule=simulated
        )

        assert advice_on_schedule(replace(report, other_schedules=what_if)) is None


def test_a_schedule_is_compared_with_the_simulation_of_the_one_that_ran() -> None:
    report = analyze_planting(Planting(), what_if=True)
    assert report.other_schedules is not None
    assert report.other_schedules.same_schedule is not None
    same_ns = 1e6 * report.other_schedules.same_schedule.makespan_ms
    # The replay takes longer, because operation times vary.
    replayed = (Choice(name, 4, 8, 1, makespan_ns=2 * same_ns) for name in (MEASURED, NO_DELAY))
    rows = (*replayed, Choice("zb-h1", 4, 8, 1, makespan_ns=0.9 * same_ns, fits=True))
    what_if = replace(report.other_schedules, rows=rows, fastest_other=rows[-1])
    advised = advice_on_schedule(replace(report, other_schedules=what_if))

    assert advised is not None
    assert advised.saving_ns == pytest.approx(0.1 * same_ns, rel=1e-6)
    assert advised.saving_ratio == pytest.approx(0.05)
    same_ms = f"{same_ns / 1e6:,.3f}"
    assert f"instead of {same_ms} ms (-10.00 %) from the first F" in advised.text


@pytest.mark.parametrize(
    ("between", "expected"),
    [(0.009, "There is almost no idle"), (0.011, "Iterations contain almost")],
)
def test_a_little_idle_time_between_iterations_is_reported(between: float, expected: str) -> None:
    report = analyze_planting(Planting(stages=1))
    period = replace(report.summary.bubble_ratio["period"], mean=between)
    ratios = {**report.summary.bubble_ratio, "period": period}
    report = replace(report, summary=replace(report.summary, bubble_ratio=ratios))

    assert str(describe_first_steps(report)).startswith(expected)


# Tests of clocks that contradict each other, so that times between hosts are meaningless.


CLOCK_SET = Planting(
    servers=2,
    step_ns=(0, 3_000_000),
    step_at_ns=90_000_000,
    iterations=6,
    jitter=0.05,
    transfer_ns=50_000,
)


def test_clocks_that_contradict_are_repaired_before_links_and_pauses_are_blamed() -> None:
    report = analyze_planting(CLOCK_SET)

    diagnosis = report.explanation.diagnosis
    assert diagnosis is not None
    fault_kinds = {fault.kind for finding in diagnosis.findings for fault in finding.faults}
    assert {"link", "iteration"} <= fault_kinds
    assert str(describe_first_steps(report)).startswith("Synchronize the clocks and record again")
    assert report.advice == ()
    assert describe_further_steps(report) == ()


def test_advice_from_a_single_clock_remains() -> None:
    report = analyze_planting(replace(CLOCK_SET, slow_rank=2))

    assert str(describe_first_steps(report)).startswith("Synchronize the clocks and record again")
    assert {advice.kind for advice in report.advice} == {"stage"}
    assert describe_further_steps(report)[0].startswith("Move layers off stage 2, or ")


def test_missing_ranks_of_few_pipelines_are_named_before_clocks(tmp_path: Path) -> None:
    planting = replace(
        CLOCK_SET, slow_rank=-1, stages=4, replicas=5, servers=5, files="rank", absent=(2,)
    )
    plant(planting, tmp_path)
    missing, _, clocks = str(describe_first_steps(bubbleviz.analyze(tmp_path))).partition(". ")

    assert missing.startswith("Ranks are missing from 1 of 5 pipelines")
    assert clocks.startswith("Synchronize the clocks and record again")


def test_clocks_that_contradict_by_utc_are_aligned(tmp_path: Path) -> None:
    planting = replace(CLOCK_SET, step_ns=(), clock_error_ns=(0, 3_000_000))
    plant(planting, tmp_path)

    trusted, aligned = (bubbleviz.analyze(tmp_path, align=align) for align in ("utc", "causal"))

    assert str(describe_first_steps(trusted)).startswith(
        "Align the clocks of the hosts with --align causal"
    )
    assert trusted.advice == ()
    assert str(describe_first_steps(aligned)).startswith("The schedule itself")


# Tests of reports without averaged iterations.


@pytest.mark.parametrize("run", [Planting(), Planting(stages=1), Planting(stray="idle")], ids=str)
def test_nothing_is_advised_from_an_empty_average(
    run: Planting, tmp_path: Path, cli: CommandLine
) -> None:
    plant(run, tmp_path)
    text = " ".join(
        cli.printed(
            "analyze", str(tmp_path), "--skip", "99", "--json", str(tmp_path / "r.json")
        ).split()
    )
    assert "First: no iteration is averaged, so there is no advice" in text
    assert "kernels ran for" not in text
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["what_to_do_first"] is None


def test_further_advice_follows_the_first_step(tmp_path: Path, cli: CommandLine) -> None:
    table = simulate_job(Job(rank={6: 1.3}, between=40.0)).written(tmp_path / "operations.csv")
    report = bubbleviz.analyze(table)
    further = describe_further_steps(report)
    screen = " ".join(cli.printed("analyze", str(table)).split())

    assert len(further) == 1
    assert further[0].startswith("Find out why rank 6 is slow (-")
    assert f"Then: {further[0]}" in screen
    assert "First: Begin iterations earlier" in screen


def test_the_list_of_advice_is_not_empty_if_there_is_a_first_step(
    tmp_path: Path, cli: CommandLine
) -> None:
    table = str(simulate_job(Job(noise=0.0)).written(tmp_path / "operations.csv"))
    listed, screen = (
        " ".join(cli.printed("analyze", table, *options).split())
        for options in (("-v", "advice"), ())
    )

    assert listed.startswith("First: The schedule itself causes the bubble")
    assert listed in screen


SLOW_LINK = Finding((Fault("link", "link"),), 0.0, 1.0, 1, None)


@pytest.mark.parametrize(
    ("savings", "expected"), [((0.5, 0.4, 0.3, 0.2), 2), ((0.5, 0.4, 0.009), 1), ((0.5, 0.011), 1)]
)
def test_two_further_savings_are_advised(
    savings: tuple[float, ...], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = [Advice("link", "link", SLOW_LINK, 0.0, 1.0, saving, 1) for saving in savings]
    monkeypatch.setattr(advice, "_list_advice", lambda *_: candidates)
    report = replace(analyze_planting(Planting()))

    assert advise(report).further == tuple(candidates[1 : 1 + expected])


def test_overlapping_iterations_get_no_advice_on_more_microbatches(tmp_path: Path) -> None:
    plant(
        Planting(schedule="zb-h2", stages=4, microbatches=8, iterations=3, transfer_ns=100_000),
        tmp_path,
    )
    report = bubbleviz.analyze(tmp_path)

    assert report.headline == "period"
    assert str(describe_first_steps(report)).startswith(
        "No single delay stands out, but 2.39 % of the time"
    )


def test_work_after_the_start_of_the_next_iteration_costs_nothing(tmp_path: Path) -> None:
    run = Planting(stages=4, microbatches=8, iterations=8)
    plant(replace(run, late_optimizer=3, late_optimizer_ns=9_000_000), tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert report.summary.window_ns["period"].mean == 33_500_000
    assert report.advice == ()


def test_launch_gaps_are_advised_once(tmp_path: Path) -> None:
    run = Planting(stages=4, microbatches=8, iterations=3)
    plant(replace(run, kernels=20, kernel_gap_ns=40_000), tmp_path)
    report = bubbleviz.analyze(tmp_path)
    sentence = str(describe_first_steps(report))
    (only_advice,) = report.advice

    # Receives that have been waiting since the previous iteration are not counted.
    # All iterations are therefore equal.
    assert only_advice.saving_ratio == pytest.approx(0.5133, abs=1e-4)
    assert only_advice.error_ratio == pytest.approx(0.01 * 0.5133, abs=1e-3)
    assert sentence.lower().count("launch fewer, larger kernels") == 1
    assert "more than the idle time between operations (26.14 %)" in sentence


def test_a_change_that_may_save_nothing_is_not_the_first_step(tmp_path: Path) -> None:
    table = tmp_path / "operations.csv"
    uneven = {2: 1.6, 4: 1.06, 6: 1.05}
    simulate_job(Job(iteration=uneven, iterations=8, noise=0.001, replicas=1)).written(table)
    report = bubbleviz.analyze(str(table))
    (only_advice,) = report.advice

    assert only_advice.error_ratio is not None
    assert only_advice.saving_ratio is not None
    assert only_advice.error_ratio > only_advice.saving_ratio
    assert str(describe_first_steps(report)).startswith("The schedule itself causes the bubble")
    assert describe_further_steps(report) == (only_advice.short,)
    assert advise(report).marked_ranks == ()


def test_a_slight_slowdown_of_iterations_is_quantified(tmp_path: Path) -> None:
    table = tmp_path / "operations.csv"
    simulate_job(Job(iteration={2: 1.04, 3: 1.04}, noise=0.001), 3).written(table)
    assert "Operations take 1.04x the usual time" in (
        describe_first_steps(bubbleviz.analyze(str(table))) or ""
    )


def test_advice_on_the_schedule_uses_the_ratio_of_the_headline() -> None:
    report = bubbleviz.analyze(FIXTURES / "zb-v")

    first = str(describe_first_steps(report))

    assert (report.headline, f"{100 * (report.bubble_ratio or 0):.2f}") == ("schedule", "7.14")
    assert "reduce the schedule ratio from 7.14 % to about 3.70 %. To compare other" in first


def test_other_schedules_are_not_mentioned_if_they_are_already_compared() -> None:
    for name in ("1f1b", "zb-v", "zb-h2"):
        compared = bubbleviz.analyze(FIXTURES / name, what_if=True)

        assert "--what-if" not in str(describe_first_steps(compared))


def test_json_contains_the_steps_as_data(tmp_path: Path) -> None:
    job = Job(rank={6: 1.3}, between=40.0, launches=False)
    slow = simulate_job(job).written(tmp_path / "slow.csv")
    uniform = simulate_job(Job(noise=0.0)).written(tmp_path / "uniform.csv")
    slow_steps, uniform_steps = (
        json.loads(json.dumps(make_document(bubbleviz.analyze(table)))) for table in (slow, uniform)
    )

    assert slow_steps["first"] == [{"code": "advice", "advice": 0, "is_marked": True}]
    assert [slow_steps["advice"][index]["ranks"] for index in slow_steps["then"]] == [[6]]
    assert [step["code"] for step in uniform_steps["first"]] == ["more-microbatches"]
    assert uniform_steps["then"] == []


def test_joint_advice_names_the_ranks_and_stages_of_each_fault(tmp_path: Path) -> None:
    late = Job(rank={2: 1.3}, host_step={5: 14.0}, host_follows="start", iterations=8)
    link = Job(slows={5: (1.6, 6)}, link={(0, 0): 15.0}, link_since=6, iterations=12)
    late_entry, link_entry = (
        write_all_advice(bubbleviz.analyze(simulate_job(job).written(tmp_path / f"{name}.csv")))[0]
        for name, job in (("late", late), ("link", link))
    )

    assert ", and " in late_entry.action
    assert "Operations on rank 5 start late although their input" in late_entry.action_and_evidence
    assert ", and " in link_entry.action
    assert "Transfers between stages 0 and 1 have taken" in link_entry.action_and_evidence


@pytest.mark.parametrize("recorded", ["messages", "launches", ""])
def test_late_starts_may_have_two_reasons_if_only_operations_were_recorded(
    recorded: str, tmp_path: Path
) -> None:
    job = Job(
        transfer=3.0, launches=recorded == "launches", messages=recorded == "messages", iterations=8
    )
    report = bubbleviz.analyze(simulate_job(job).written(tmp_path / "slow.csv"))
    entry = next(entry for entry in write_all_advice(report) if entry.kind == "link")

    assert ("Neither transfers nor launches" in entry.action_and_evidence) == (not recorded)
    assert ("Make transfers between stages faster" in entry.action) == bool(recorded)


def test_late_hosts_of_a_few_other_stages_are_named_and_of_many_are_counted() -> None:
    report = analyze_planting(Planting(stages=5, microbatches=8, late_stage=1, late_ns=400_000))

    assert name_latest_host(report, (1,)).startswith(" on stage 1")
    assert name_latest_host(report, (0, 1)) == " on stages 0, 1"
    assert name_latest_host(report, (3, 2, 1, 0)) == " on stages 0, 1, 2, 3"
    assert name_latest_host(report, (0, 1, 2, 3, 4)).endswith("4 other stages")


def test_late_hosts_of_a_few_replicated_stages_are_named_by_rank(tmp_path: Path) -> None:
    job = simulate_job(Job(host_step={2: 14.0, 5: 15.0, 6: 14.0}, host_follows="start"))
    report = bubbleviz.analyze(job.written(tmp_path / "late.csv"))

    assert name_latest_host(report, (2, 5)) == " on ranks 2, 5"
    assert name_latest_host(report, (2, 5, 6)) == " on ranks 2, 5, 6"
