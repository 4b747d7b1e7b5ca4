"""Plans of measured runs: the order in which a run executed, and delays before operations."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import json

import bubbleviz
from bubbleviz.analyses.plan.documents import as_json, build_memory_plot
from bubbleviz.analyses.plan.planned_run import (
    MeasuredRun,
    PlannedRun,
    extract_run,
    load_run,
    plan_run,
    resolve_memory,
)
from bubbleviz.analyses.plan.text import sections
from bubbleviz.errors import UsageError
from bubbleviz.render import json_document
from bubbleviz.render.document import Table
from bubbleviz.render.text.terminal import render_plain_text
from bubbleviz.report.view import View
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.known import find_schedule
from bubbleviz.schedules.plan import MeasuredMemory, Plan
from bubbleviz.schedules.workload import Workload, build_device_workload
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.places import CHECKOUT, FIXTURES
from tests.support.planted_runs import analyze_planting

pytestmark = pytest.mark.thorough


def workload(placement: tuple[int, ...], microbatches: int) -> Workload:
    devices = max(placement) + 1
    times = [range(100, 100 + devices), [90] * devices, [80] * devices]
    return build_device_workload(placement, microbatches, times, 7)


RAN = find_schedule("1f1b").plan(4, 8, 1)
#: Memory of four stages, in bytes.
MEASURED = MeasuredMemory((2e9,) * 4, (1e9,) * 4, (1e9, 2e9, 3e9, 4e9))


def a_run(plan: Plan | None = RAN, ran_ns: int | None = None) -> MeasuredRun:
    work = replace(workload((0, 1, 2, 3), 8), split=False)
    return MeasuredRun("run", work, "1f1b", plan, ran_ns)


def test_a_schedule_has_the_same_length_in_plan_and_what_if() -> None:
    report = bubbleviz.analyze(FIXTURES / "1f1b", what_if=True)
    assert report.other_schedules is not None
    what_if = {row.schedule: row.makespan_ns for row in report.other_schedules.rows}

    planned = plan_run(extract_run(report, "run"))
    candidates = {order.plan.name: order.makespan_ns for order in planned.best.candidates}

    shared = what_if.keys() & candidates.keys()
    assert shared == {"1f1b", "gpipe", "zb-h1", "zb-h2"}
    assert [candidates[name] for name in shared] == [what_if[name] for name in shared]
    # With one chunk, the order of interleaved-1f1b has another name.
    assert candidates["eager-1f1b"] != what_if["interleaved-1f1b"]
    text = render_plain_text(sections(planned))
    assert "eager-1f1b: interleaved-1f1b with 1 chunk" in " ".join(text.split())


def test_the_order_that_ran_shares_its_row_with_an_equal_candidate() -> None:
    def list_names(planned: PlannedRun) -> list[str]:
        (table,) = [block for block in sections(planned) if isinstance(block, Table)]
        return [row["order"] for row in table.rows]

    gpipe = find_schedule("gpipe").plan(4, 8, 1)
    same = list_names(plan_run(a_run()))
    other = list_names(plan_run(a_run(gpipe)))
    assert "1f1b (ran)" in same
    assert "1f1b" not in same
    assert {"1f1b (ran)", "1f1b"} <= {*other}


def test_the_memory_of_the_run_is_the_limit() -> None:
    limited, _, of_run, _ = resolve_memory(a_run())

    assert of_run
    assert limited.limit == (4.0,) * 4
    assert resolve_memory(a_run(), "none")[0].limit is None
    assert resolve_memory(a_run(None))[0].limit is None
    limit, in_bytes, of_run, _ = resolve_memory(a_run(), "8GB", "2GB", "1GB")
    assert (in_bytes, of_run) == (True, False)
    assert limit.limit == (8e9,) * 4
    assert (limit.activation[0], limit.weight_activation[0]) == (2e9, 1e9)
    with pytest.raises(UsageError, match="--memory-w"):
        resolve_memory(a_run(), None, "1", "2")


def test_measured_memory_is_not_mixed_with_given_memory() -> None:
    run = replace(a_run(), memory=MEASURED)

    assert resolve_memory(run, "10GB")[0].limit == (9e9, 8e9, 7e9, 6e9)
    given, *_ = resolve_memory(run, "8GB", "3GB", "1GB")
    assert given.limit == (8e9,) * 4
    assert given.activation == (3e9,) * 4
    mixed = r"--memory-w 0\.5: .* measured.* --memory-b as well, or remove"
    for limit, backward, weight, complaint in (
        *((limit, None, "0.5", mixed) for limit in ("80GB", "none", None)),
        ("8", None, None, "--memory-limit 8: activations are in bytes; pass a size"),
        ("80GB", "2", None, "--memory-limit 80GB: activations are in the unit of --mem"),
    ):
        with pytest.raises(UsageError, match=complaint):
            resolve_memory(run, limit, backward, weight)


def test_devices_with_different_free_memory_are_distinguished() -> None:
    run = replace(a_run(), memory=MEASURED)
    planned = plan_run(run, memory_limit="12GB")

    assert planned.resident == MEASURED.resident
    assert "memory: 8.00 GB to 11.00 GB of activations per device" in render_plain_text(
        sections(planned)
    )
    # 1F1B stores four, three, two and one microbatches.
    # With the constant memory, it takes at most 9 GB.
    plot = build_memory_plot(planned)
    assert plot.limit == 12e9
    assert {point.memory for point in plot.points if point.name == "1f1b"} == {9e9}
    assert all(each.fits == (each.memory <= 12e9) for each in plot.points)
    unlimited = build_memory_plot(plan_run(run, memory_limit="none"))
    assert unlimited.limit is None
    assert {each.memory for each in unlimited.points if each.name == "1f1b"} == {9e9}
    as_ran = plan_run(run)
    assert "memory: at most 8.00 GB of activations per device, the peak" in render_plain_text(
        sections(as_ran)
    )
    assert build_memory_plot(as_ran).limit == 8e9


@pytest.mark.parametrize("microbatches", [8, 40])
def test_the_progress_of_planning_covers_messages_and_never_goes_back(microbatches: int) -> None:
    shares: list[float] = []
    plan_run(replace(a_run(), on_gpus=True), microbatches=microbatches, watch=shares.append)

    assert shares == sorted(shares)
    assert shares[0] >= 0
    assert 0.6 <= shares[-1] <= 1


def test_a_prediction_for_a_plan_is_as_far_off_as_for_the_run() -> None:
    plain_plan = plan_run(a_run())
    assert plain_plan.executed is not None
    assert plain_plan.simulation_error is None
    assert plain_plan.expected_ns == plain_plan.best.best.makespan_ns

    planned = plan_run(a_run(RAN, plain_plan.executed.makespan_ns * 11 // 10))

    assert planned.simulation_error == pytest.approx(0.1, abs=1e-3)
    assert planned.expected_ns == pytest.approx(1.1 * planned.best.best.makespan_ns, rel=1e-3)
    assert plan_run(a_run(), microbatches=3).executed is None


#: The shortest of these orders waits for its transfers, and zb-h2 waits less.
QUEUED = Workload(
    placement=(0, 1, 2),
    microbatches=5,
    forward_ns=(44, 51, 11),
    backward_ns=(51, 33, 36),
    weight_ns=(42, 24, 59),
    fused_ns=(93, 57, 95),
    down_ns=(12, 24, 0),
    up_ns=(0, 29, 39),
    activation=(1.0,) * 3,
    weight_activation=(1.0,) * 3,
)


def test_on_gpus_orders_are_compared_with_their_transfers() -> None:
    run = MeasuredRun("run", QUEUED, None, None, None)
    plain_plan = plan_run(run)
    queued = plan_run(replace(run, on_gpus=True))

    assert plain_plan.best.is_proven
    assert queued.best.best.plan.name != plain_plan.best.best.plan.name
    assert queued.best.candidates[0].plan.name == plain_plan.best.best.plan.name
    assert queued.communication[1] < plain_plan.communication[1]
    assert queued.best.best.makespan_ns > queued.best.lower_bound_ns
    assert not queued.best.is_proven
    printed = render_plain_text(sections(queued))
    assert "proven" not in printed
    assert "ranking includes transfers; without them, searched-split would be shorter (" in printed
    assert "ranking includes transfers" not in render_plain_text(sections(plain_plan))


def _saved(name: str, folder: Path, *, with_operations: bool = True) -> MeasuredRun:
    """Return the run in an example's JSON report, with or without its list of operations."""
    report = bubbleviz.analyze(CHECKOUT / "fixtures" / name)
    values = json.decode(json_document.render(report, View()))
    if not with_operations:
        values["timeline"] = None
    file = folder / "report.json"
    file.write_bytes(json.encode(values))
    return load_run(str(file))


@pytest.mark.parametrize(
    ("microbatches", "expected"),
    [(0, "0 microbatches: must be at least 1"), (1 << 31, "operations are too many to plan")],
)
def test_unplannable_numbers_of_microbatches_are_refused_unless_others_are_given(
    microbatches: int, expected: str, tmp_path: Path
) -> None:
    report = bubbleviz.analyze(CHECKOUT / "fixtures/1f1b")
    values = json.decode(json_document.render(report, View()))
    for iteration in values["iterations"]:
        iteration["microbatches"] = microbatches
    file = tmp_path / "report.json"
    file.write_bytes(json.encode(values))

    run = load_run(str(file))

    with pytest.raises(UsageError, match=expected):
        plan_run(run)
    assert plan_run(run, microbatches=8).workload.microbatches == 8


@pytest.mark.parametrize(("name", "overlaps"), [("1f1b", False), ("zb-h2", True)])
def test_saved_reports_are_planned_and_overlapping_iterations_are_reported(
    name: str, overlaps: bool, tmp_path: Path
) -> None:
    complete, rest = _saved(name, tmp_path), _saved(name, tmp_path, with_operations=False)
    text = render_plain_text(sections(plan_run(complete)))

    assert complete.overlaps is overlaps
    assert ("iterations of the run overlap" in text) is overlaps
    if not overlaps:  # without operations, the order of the report's schedule is used
        assert complete.executed_plan is not None
        assert rest.executed_plan is not None
        assert rest.executed_plan.orders == complete.executed_plan.orders == RAN.orders
        assert plan_run(rest).workload == plan_run(complete).workload


def test_a_saved_report_overlaps_as_its_run_does(tmp_path: Path) -> None:
    """No iteration begins on any rank before the previous iteration has begun on all ranks."""
    ran = Planting(
        schedule="interleaved-1f1b", microbatches=8, replicas=2, iterations=3, jitter=0.1
    )
    report = analyze_planting(replace(ran, transfer_ns=100_000, slow_stage=2, slow_factor=1.4))
    file = tmp_path / "report.json"
    file.write_bytes(json_document.render(report, View()).encode())

    assert report.headline == "period"
    assert load_run(str(file)).overlaps == extract_run(report, "run").overlaps


def test_if_iterations_overlap_the_order_with_the_shortest_period_is_best() -> None:
    """The makespans of zb-h1 and zb-h2 are equal. The next iteration of zb-h2 begins earlier."""
    ran = Planting(stages=8, microbatches=16, schedule="zb-h2", iterations=3)
    report = analyze_planting(ran)
    planned = plan_run(extract_run(report, "run"))
    best = planned.best

    assert report.headline == "period"
    lengths_ns = {candidate.plan.name: best.length_ns(candidate) for candidate in best.candidates}
    assert best.best.plan.name == "zb-h2"
    assert lengths_ns["zb-h1"] > lengths_ns["zb-h2"] == best.lower_bound_ns
    for other in (ran, replace(ran, schedule="zb-h1")):
        period_ns = analyze_planting(other).summary.window_ns["period"].mean
        assert period_ns == pytest.approx(lengths_ns[other.schedule] + ran.optimizer_ns, rel=0.01)
    rows = json.decode(as_json(planned))
    assert (rows["window"], rows["best"]["saving"], rows["proven"]) == ("stage", 0, True)
    assert torch_csv.write(best.best.plan) == torch_csv.write(find_schedule("zb-h2").plan(8, 16, 1))


def test_if_iterations_overlap_the_run_is_compared_in_the_window_of_its_plans() -> None:
    """The makespan covers all replicas, and the other replicas run ahead of the slow one."""
    run = Planting(
        schedule="interleaved-1f1b", chunks=2, stages=4, microbatches=8, replicas=3, iterations=5
    )
    report = analyze_planting(replace(run, slow_rank=6, slow_rank_factor=1.35, jitter=0.03))
    planned = plan_run(extract_run(report, "run"))
    text = " ".join(render_plain_text(sections(planned)).split())

    assert planned.run.overlaps
    assert planned.run.makespan_ns is not None
    assert planned.measured_ns is not None
    assert planned.measured_ns < 0.9 * planned.run.makespan_ns
    assert planned.simulation_error == pytest.approx(0, abs=0.01)
    assert "the longest window of the run took" in text
    assert "combined-1f1b: one operation at a time" in text


def test_an_evaluation_that_overlaps_one_iteration_does_not_make_them_overlap() -> None:
    ran = Planting(schedule="zb-h1", microbatches=8, iterations=6, barrier=True, evaluation_at=2)
    report = analyze_planting(ran, what_if=True)
    planned = plan_run(extract_run(report, "run"), memory_limit="7")

    assert report.headline == "period"
    assert report.other_schedules is not None
    assert (planned.run.overlaps, report.other_schedules.window) == (False, "schedule")
    assert planned.best.best.plan.name == "zb-h1"


def test_results_of_an_overlapped_pair_are_ready_when_both_have_ended(tmp_path: Path) -> None:
    plant(Planting(schedule="dualpipev", iterations=1), tmp_path)
    planned = plan_run(extract_run(bubbleviz.analyze(tmp_path), "run"))

    assert planned.executed is not None
    assert planned.executed.makespan_ns == planned.run.makespan_ns == 27_000_000
    assert planned.expected_ns == planned.best.best.makespan_ns == 25_500_000


def test_the_error_of_a_run_that_overlaps_operations_does_not_apply_to_plans() -> None:
    run = Planting(schedule="dualpipev", microbatches=8, iterations=3, barrier=True, jitter=0.02)
    planned = plan_run(extract_run(analyze_planting(run), "run"))

    assert planned.simulation_error is not None
    assert abs(planned.simulation_error) > 0.001
    assert planned.expected_ns == planned.best.best.makespan_ns >= planned.best.lower_bound_ns
    assert "With the same error" not in render_plain_text(sections(planned))


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("pipeline_ns", ("plan", "{}")),
        ("pipeline_ns", ("layout", "{}", "--layers-per-stage", "2")),
        ("mean_ns", ("simulate", "--from", "{}", "--schedule", "zb-h1")),
    ],
)
@pytest.mark.parametrize("time_ns", [4e18, 1e30])
def test_measured_times_that_exceed_64_bits_are_refused(
    name: str, command: tuple[str, ...], time_ns: float, cli: CommandLine, tmp_path: Path
) -> None:
    document = cli.json("analyze", str(FIXTURES / "1f1b"), "--json", "-")
    document["phase_times"][0][name] = time_ns
    report = tmp_path / "report.json"
    report.write_bytes(json.encode(document))
    message = cli.refused(*(part.format(report) for part in command))

    total = r"3\.2e\+10" if time_ns == 4e18 else r"8e\+21"
    limit = "but only 4.61e+09 s can be simulated; check the measured times"
    assert re.search(rf"all operations together take {total} s, {re.escape(limit)}$", message)


def test_layers_whose_times_exceed_64_bits_are_refused(cli: CommandLine, tmp_path: Path) -> None:
    layers = tmp_path / "layers.csv"
    layers.write_text("name,forward_ms,backward_ms\na,1e10,2\nb,1,2\n")

    message = cli.refused("layout", "--layers", str(layers), "-p", "2", "-m", "4000")
    assert "all operations together take 4e+10 s, but only 4.61e+09 s can be simulated" in message
