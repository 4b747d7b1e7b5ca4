"""Reasons for incomplete iterations, and the missing operations of their ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import stdtrit

import bubbleviz
from bubbleviz.count.rank_iterations import list_missing
from bubbleviz.count.statistics import compute_student_quantile, estimate_mean_error
from bubbleviz.render.formats.csv import list_columns, write_csv
from bubbleviz.report.report import Report
from tests.planting import Planting, plant
from tests.support.edited_databases import edit_database
from tests.support.notes import count_limitations, find_limitation, list_limitation_subjects
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.planted_runs import analyze_planting

pytestmark = pytest.mark.thorough

UNMATCHED = "iterations in which a forward has no backward with the same number"
CUT = "iterations cut off by the capture"


def renamed(folder: Path, names: dict[str, str], planting: Planting) -> Path:
    """Return a planted run whose ranges are renamed by ``names``."""
    plant(planting, folder)
    renames = (
        f"UPDATE NVTX_EVENTS SET text = '{other}' WHERE text = '{name}'"
        for name, other in names.items()
    )
    return edit_database(next(folder.glob("*.sqlite")), *renames)


@pytest.mark.parametrize("number", ["2000000000", "123456789012345"])
def test_large_numbers_of_microbatches_are_numbers(number: str, tmp_path: Path) -> None:
    names = {"F7.0.0": f"F{number}.0.0", "B7.0.0": f"B{number}.0.0"}
    report = bubbleviz.analyze(renamed(tmp_path, names, Planting()))
    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(3 / 11)
    assert int(report.operations.microbatch.max()) == int(number)


@pytest.mark.parametrize("name", ["F0.0.0", "F3.0.0", "F7.0.0"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_a_forward_without_a_backward_of_its_number_is_not_cut(
    name: str, iterations: int, tmp_path: Path
) -> None:
    planting = Planting(iterations=iterations)
    report = bubbleviz.analyze(renamed(tmp_path, {name: "F2000000000.0.0"}, planting))
    notes = count_limitations(report)
    assert notes.get(UNMATCHED) == iterations
    assert CUT not in notes


@pytest.mark.parametrize(
    ("names", "expected"), [("numbered", "numbers in"), ("constant", "in the order they ran in")]
)
def test_advice_to_check_numbers_appears_only_if_names_have_numbers(
    names: str, expected: str, tmp_path: Path
) -> None:
    plant(Planting(names=names), tmp_path)
    row = "SELECT rowid FROM NVTX_EVENTS WHERE text = 'B0.0.0' LIMIT 1"
    drop = f"DELETE FROM NVTX_EVENTS WHERE rowid = ({row})"
    report = bubbleviz.analyze(edit_database(tmp_path / "node0.sqlite", drop))

    note = find_limitation(report, UNMATCHED)
    assert expected in note.reason


def test_a_cut_iteration_is_called_cut_and_lacks_nothing() -> None:
    report = analyze_planting(Planting(iterations=3, cut_ns=45_000_000))
    notes = list_limitation_subjects(report)
    assert CUT in notes
    assert UNMATCHED not in notes
    assert not report.operations_lacking


# Tests of the order of iterations.
# Iterations in any order are complete, but a capture that begins within an iteration truncates it.


SWAPPED = Planting(iterations=6, swapped_device=0, swapped_at=0, barrier=True)


def report_without_first(first: int, folder: Path) -> Report:
    """Return a report on the run's operations in another order, without the first operations."""
    rows = write_csv(list_columns(analyze_planting(SWAPPED))).splitlines()
    start_column = rows[0].split(",").index("host_start_ns")
    later = sorted(rows[1:], key=lambda row: int(row.split(",")[start_column]))[first:]
    path = folder / "operations.csv"
    path.write_text("\n".join((rows[0], *later)), encoding="utf-8")
    return bubbleviz.analyze(path)


def test_an_iteration_that_begins_with_another_microbatch_is_complete(tmp_path: Path) -> None:
    truth = plant(SWAPPED, tmp_path)
    for report in (bubbleviz.analyze(tmp_path / "node0.sqlite"), report_without_first(0, tmp_path)):
        assert [i.complete for i in report.iterations] == [True] * 6
        assert CUT not in list_limitation_subjects(report)
        for iteration, true in zip(report.iterations, truth.iterations, strict=True):
            assert iteration.ratios["schedule"].value == pytest.approx(
                true.bubble_ratio["schedule"], abs=1e-6
            )


@pytest.mark.parametrize("first", [6, 9, 20, 40, 60, 80])
def test_a_capture_that_begins_within_such_an_iteration_cuts_it(first: int, tmp_path: Path) -> None:
    assert [i.complete for i in report_without_first(first, tmp_path).iterations] == [
        False,
        *[True] * 5,
    ]


def recorded(folder: Path, planting: Planting, after_ns: int, before_ns: int = 1 << 62) -> Report:
    """Return a report on the rows that start in a given period after the first kernel."""
    plant(planting, folder)
    tables = "KERNEL", "RUNTIME"
    of_cupti = [f"CUPTI_ACTIVITY_KIND_{name}" for name in tables]
    path = edit_database(
        folder / "node0.sqlite",
        f"CREATE TEMP TABLE first AS SELECT min(start) AS at FROM {of_cupti[0]}",
        *(
            f"DELETE FROM {table} WHERE start - (SELECT at FROM first) "
            f"NOT BETWEEN {after_ns} AND {before_ns}"
            for table in (*of_cupti, "NVTX_EVENTS")
        ),
    )
    return bubbleviz.analyze(path)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("after_ns", range(6_000_000, 26_000_000, 1_500_000))
def test_the_rest_of_a_cut_iteration_forms_no_iteration_with_the_next_forwards(
    after_ns: int, stages: int, tmp_path: Path
) -> None:
    planting = Planting(stages=stages, iterations=3, optimizer_ns=-1, barrier=True)
    report = recorded(tmp_path, planting, after_ns)
    true = plant(planting, tmp_path / "whole").iterations[1].bubble_ratio["schedule"]
    ratios = [i.ratios["schedule"].value for i in report.iterations if i.averaged]
    assert ratios == [pytest.approx(true, abs=1e-6) if value else value for value in ratios]


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("after_ns", [900_000, 1_700_000, 2_200_000, 3_300_000])
def test_iterations_of_both_directions_are_complete_after_a_cut_one(
    after_ns: int, stages: int, tmp_path: Path
) -> None:
    planting = Planting(schedule="dualpipe", stages=stages, iterations=4, optimizer_ns=-1)
    report = recorded(tmp_path, replace(planting, communication=False), after_ns)
    true = plant(planting, tmp_path / "whole").iterations[-1].bubble_ratio["schedule"]
    first, *other_iterations = report.iterations
    assert not first.complete
    assert [other.ratios["schedule"].value for other in other_iterations] == [
        pytest.approx(true, abs=1e-6)
    ] * 3


@pytest.mark.parametrize(
    ("planting", "after_ns"),
    [
        (Planting(schedule="gpipe", names="constant"), 500_000),
        (Planting(schedule="zb-v", names="constant", w_clear=True), 500_000),
        (Planting(schedule="zb-v", names="constant", w_clear=True, iterations=1), 500_000),
        (Planting(schedule="interleaved-1f1b"), 2_000_000),
        (replace(SWAPPED, swapped_at=0, iterations=2), 500_000),
    ],
)
def test_backwards_of_forwards_before_the_capture_are_no_complete_iteration(
    planting: Planting, after_ns: int, tmp_path: Path
) -> None:
    first, *other_iterations = recorded(tmp_path, planting, after_ns).iterations
    assert not first.complete
    assert all(other.complete for other in other_iterations)


def test_passes_on_both_sides_of_an_optimizer_are_no_complete_iteration(tmp_path: Path) -> None:
    report = recorded(tmp_path, Planting(stages=1), 17_900_000, 36_300_000)
    assert [i.microbatches for i in report.iterations] == [6]
    assert not any(i.complete for i in report.iterations)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "chimera"])
@pytest.mark.parametrize("after_ns", range(1_000_000, 20_000_000, 3_000_000))
def test_iterations_after_one_that_the_capture_cuts_are_complete(
    after_ns: int, schedule: str, tmp_path: Path
) -> None:
    planting = Planting(schedule=schedule, microbatches=8, iterations=4, optimizer_ns=-1)
    report = recorded(tmp_path, planting, after_ns)
    true = plant(planting, tmp_path / "whole").iterations[-1].bubble_ratio["schedule"]
    ratios = [i.ratios["schedule"].value for i in report.iterations if i.averaged]
    assert len(ratios) >= 2
    assert ratios == [pytest.approx(true, abs=1e-6)] * len(ratios)


@pytest.mark.parametrize("optimizer_ns", [-1, 0, 500_000])
@pytest.mark.parametrize("after_ns", range(1_000_000, 9_000_000, 3_000_000))
def test_a_capture_that_begins_in_an_evaluation_cuts_only_the_evaluation(
    after_ns: int, optimizer_ns: int, tmp_path: Path
) -> None:
    planting = Planting(schedule="zb-h1", evaluation_at=0, iterations=3, optimizer_ns=optimizer_ns)
    first, *other_iterations = recorded(tmp_path, planting, after_ns).iterations
    assert (first.kind, first.complete) == ("evaluation", False)
    assert [(other.kind, other.averaged) for other in other_iterations] == [("training", True)] * 2


# Tests of the ranks of an iteration.


def run_of(folder: Path) -> Report:
    """Return a run of two ranks and two iterations. The second iteration lacks the B of rank 1."""
    rows = ["rank,phase,start_ns,end_ns,iteration,microbatch,stage"]
    for k in range(2):
        time_ns = 1_000 * k
        rows += [
            f"0,F,{time_ns},{time_ns + 10},{k},0,0",
            f"1,F,{time_ns + 20},{time_ns + 40},{k},0,1",
        ]
        rows += [f"1,BW,{time_ns + 50},{time_ns + 70},{k},0,1"] if k == 0 else []
        rows += [f"0,BW,{time_ns + 80},{time_ns + 100},{k},0,0"]
    path = folder / "operations.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    return bubbleviz.analyze(path)


def test_operations_that_ranks_lack_are_reported(tmp_path: Path) -> None:
    complete, cut = run_of(tmp_path).iterations

    assert list_missing(complete.ranks) == [None, None]
    assert list_missing(cut.ranks) == [
        "the capture does not contain all of the iteration",
        "no backward with GPU work",
    ]


def test_a_first_stage_may_run_its_whole_backward_in_its_w(tmp_path: Path) -> None:
    # The input of the stage needs no gradient, so PyTorch launches no kernels in its B.
    ran = [(0, "F", 0), (1, "F", 100), (1, "B", 200), (1, "W", 300), (0, "B", 300), (0, "W", 320)]
    ranges = [R(at, at + 9, f"bubbleviz:{p} mb=0 stage={r}", pid=r + 1) for r, p, at in ran]
    launched = [(r, at, number) for number, (r, p, at) in enumerate(ran) if (r, p) != (0, "B")]
    calls = [C(at + 1, at + 2, number, pid=r + 1) for r, at, number in launched]
    kernels = [K(at + 3, at + 83, number, pid=r + 1, device=r) for r, at, number in launched]

    report = bubbleviz.analyze(write_profile(tmp_path, kernels, calls, ranges))

    assert list_missing(report.iteration(0).ranks) == [None, None]
    # Rank 0 is busy for 160 of 400 ns, and rank 1 for 240.
    assert report.iteration(0).ratios["schedule"].value == pytest.approx(0.5)


def test_ranks_behave_like_a_tuple(tmp_path: Path) -> None:
    ranks = run_of(tmp_path).iteration(0).ranks
    values = tuple(ranks)

    assert (len(ranks), ranks[0], ranks[-1], ranks[:1]) == (2, values[0], values[1], values[:1])
    assert ranks == values
    assert ranks != values[:1]
    assert ranks == run_of(tmp_path).iteration(0).ranks
    assert repr(ranks) == "RankIterations(2 ranks)"


# Tests of the quantiles of Student's t, which must agree with scipy.


def test_quantiles_of_students_t_agree_with_scipy() -> None:
    for df, rel in (*((df, 1e-14) for df in range(1, 21)), (21, 1e-7), (50, 1e-8), (1000, 1e-9)):
        assert compute_student_quantile(df) == pytest.approx(float(stdtrit(df, 0.975)), rel=rel)


def test_the_error_of_a_mean_ignores_a_trend_and_covers_the_mean_of_noise() -> None:
    generator = np.random.default_rng(5)
    noise = generator.normal(size=(2000, 8))

    covered = [abs(run.mean()) <= estimate_mean_error(run) for run in noise]

    assert 0.92 < float(np.mean(covered)) < 0.97
    assert estimate_mean_error(np.zeros(4, np.float64)) == 0.0
    trend = np.linspace(0.0, 700.0, 8)
    assert estimate_mean_error(trend) < 0.35 * compute_student_quantile(7) * trend.std() / 8**0.5
