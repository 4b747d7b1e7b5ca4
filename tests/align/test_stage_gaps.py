"""Profiles of only some stages of a pipeline, and the evidence that other stages are missing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest

import bubbleviz
from bubbleviz.align.stages.stage_gaps import describe_first_number
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.known import search_plan
from bubbleviz.schedules.plan import Memory
from bubbleviz.schedules.workload import build_device_workload
from tests.planting import Planting, Truth, plant
from tests.support.notes import find_limitation, list_restriction_codes
from tests.support.operation_tables import write_csv
from tests.support.pipeline_jobs import Job, Row, simulate_job
from tests.support.report_texts import text_of

FOUR = Planting(stages=4, microbatches=8, iterations=2, jitter=0.05, transfer_ns=20_000)
SCHEDULES = {
    "1f1b": FOUR,
    "zb-h1": replace(FOUR, schedule="zb-h1"),
    "zb-h2": replace(FOUR, schedule="zb-h2"),
    "gpipe": replace(FOUR, schedule="gpipe"),
    "zb-v": replace(FOUR, schedule="zb-v"),
    "dualpipev": replace(FOUR, schedule="dualpipev"),
    "interleaved-1f1b": replace(FOUR, schedule="interleaved-1f1b", chunks=2),
    "interleaved-zb": replace(FOUR, schedule="interleaved-zb", chunks=2),
}
COMPLETE = SCHEDULES | {
    "combined-1f1b": replace(FOUR, schedule="combined-1f1b", chunks=2),
    "looped-bfs": replace(FOUR, schedule="looped-bfs", chunks=2),
}
INCOMPLETE = {"ranks-missing", "stages-may-be-missing"}
#: All subsets of two or three of four ranks.
SUBSETS = [subset for size in (2, 3) for subset in combinations(range(4), size)]


def report_on(planting: Planting, ranks: Sequence[int], folder: Path) -> Report:
    """Return the report on the files of the given ranks."""
    absent = tuple(rank for rank in range(planting.ranks) if rank not in ranks)
    plant(replace(planting, files="rank", absent=absent), folder)
    return bubbleviz.analyze(folder)


def write_table(truth: Truth, ranks: Sequence[int], path: Path, *, renumber: bool) -> Path:
    """Write the operations of the given ranks to a table without stages.

    Args:
        truth: Truth of the planted run.
        ranks: Ranks to write to the table.
        path: File to write.
        renumber: Whether the ranks are numbered from 0 in the table.
    """
    numbers = {rank: index if renumber else rank for index, rank in enumerate(ranks)}
    operations = [op for op in truth.operations if op.rank in numbers and op.span]
    columns: dict[str, Sequence[Any]] = {
        "iteration": [op.iteration for op in operations],
        "rank": [numbers[op.rank] for op in operations],
        "phase": [op.phase for op in operations],
        "microbatch": ["" if op.microbatch is None else op.microbatch for op in operations],
        "start_ns": [op.start_ns for op in operations],
        "end_ns": [op.end_ns for op in operations],
    }
    return write_csv(path, columns)


def get_schedule_name(report: Report) -> str | None:
    """Return the name of the schedule in a report, or None if the report names none."""
    return report.schedule.name if report.schedule else None


def is_marked(report: Report) -> bool:
    """Return whether a report is marked as possibly incomplete and names no schedule."""
    codes = set(list_restriction_codes(report))
    return bool(codes & INCOMPLETE) and get_schedule_name(report) is None


@pytest.mark.parametrize("communication", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_subset_of_stages_is_marked(
    schedule: str, communication: bool, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    planting = replace(SCHEDULES[schedule], communication=communication)
    for ranks in SUBSETS:
        with subtests.test(ranks=ranks):
            folder = tmp_path / "".join(map(str, ranks))
            assert is_marked(report_on(planting, ranks, folder))
            shutil.rmtree(folder)


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipev", "interleaved-1f1b", "interleaved-zb"])
@pytest.mark.parametrize("stages", [3, 4])
def test_chunks_show_missing_stages_without_rank_numbers(
    schedule: str, stages: int, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """If ranks run several chunks, both the first and the last stages may be missing."""
    planting = replace(SCHEDULES[schedule], stages=stages, microbatches=12, communication=False)
    plant(replace(planting, files="rank"), tmp_path)
    paths = [path.rename(path.with_stem(letter)) for path, letter in assign_letters(tmp_path)]
    for size in range(2, stages):
        for subset in combinations(paths, size):
            with subtests.test(files=[path.name for path in subset]):
                assert is_marked(bubbleviz.analyze(subset))
    report = bubbleviz.analyze(paths)

    assert report.restrictions == ()
    assert get_schedule_name(report) == schedule


def assign_letters(folder: Path) -> list[tuple[Path, str]]:
    """Return the files of a folder, sorted by name, each with a letter for its new name."""
    return list(zip(sorted(folder.iterdir()), ascii_lowercase, strict=False))


@pytest.mark.parametrize("communication", [True, False])
@pytest.mark.parametrize("schedule", COMPLETE)
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_complete_pipeline_is_not_marked(
    schedule: str, stages: int, replicas: int, communication: bool, tmp_path: Path
) -> None:
    planting = replace(
        COMPLETE[schedule], stages=stages, replicas=replicas, communication=communication
    )
    report = report_on(planting, range(planting.ranks), tmp_path)

    assert report.restrictions == ()


@pytest.mark.parametrize("n_missing", [1, 2])
def test_a_slow_stage_does_not_hide_that_later_ones_are_missing(
    n_missing: int, tmp_path: Path
) -> None:
    """After a slow stage, all backwards wait equally long, but the orders do not change."""
    planting = replace(FOUR, slow_stage=0, slow_factor=1.7, communication=False)

    assert is_marked(report_on(planting, range(4 - n_missing), tmp_path))


def test_the_first_and_last_of_eight_stages_are_marked_everywhere(tmp_path: Path) -> None:
    report = report_on(replace(FOUR, schedule="zb-h1", stages=8, microbatches=16), (0, 7), tmp_path)

    assert is_marked(report)
    codes = list_restriction_codes(report)
    assert codes == ["ranks-missing", "stages-counted-among-given"]
    assert all(i.ratios["schedule"].incomplete for i in report.iterations)
    assert "incomplete: ranks of the run are missing" in text_of(report)
    reason = find_limitation(report, "stages without a profile").reason
    assert reason.startswith("each microbatch spends more time between ranks 0 and 7 ")


def test_one_of_several_pipelines_is_complete_by_itself(tmp_path: Path) -> None:
    """Ranks 0 and 3 of two stages with three replicas are a complete pipeline."""
    planting = replace(FOUR, stages=2, replicas=3)
    for transfer_ns in (20_000, 2_000_000):
        report = report_on(
            replace(planting, transfer_ns=transfer_ns), (0, 3), tmp_path / str(transfer_ns)
        )
        assert report.restrictions == ()
        assert get_schedule_name(report) == "1f1b"


@pytest.mark.parametrize(
    ("sizes", "absent"),
    [
        ({"stages": 4, "replicas": 2}, (7,)),
        ({"stages": 4, "tensor": 2}, (7,)),
        ({"stages": 4, "replicas": 2, "communication": False}, (7,)),
        ({"stages": 4, "replicas": 2, "schedule": "gpipe"}, (7,)),
        ({"stages": 4, "replicas": 2, "schedule": "zb-v"}, (7,)),
        ({"stages": 2, "replicas": 3}, (5,)),
        ({"stages": 3, "replicas": 2}, (5,)),
        ({"stages": 4, "replicas": 4}, (14, 15)),
        ({"stages": 4, "replicas": 4}, (6, 15)),
    ],
)
def test_the_last_ranks_are_missing_if_stages_need_them(
    sizes: dict[str, Any], absent: tuple[int, ...], tmp_path: Path
) -> None:
    """Rank numbers do not show that the last ranks are missing, but equal stage sizes do."""
    planting = replace(FOUR, **sizes)
    ranks = [rank for rank in range(planting.ranks) if rank not in absent]
    report = report_on(planting, ranks, tmp_path)

    assert list_restriction_codes(report) == ["ranks-missing"]
    replicas = planting.ranks // planting.stages
    assert len(report.ranks) == len(ranks)
    assert all(rank.stage == rank.number // replicas for rank in report.ranks)


def test_slow_links_of_a_complete_pipeline_hide_no_stage(tmp_path: Path) -> None:
    for schedule in ("1f1b", "zb-h1"):
        planting = replace(SCHEDULES[schedule], transfer_ns=2_000_000)
        report = report_on(planting, range(4), tmp_path / schedule)

        assert report.restrictions == ()
        assert get_schedule_name(report) == schedule


@pytest.mark.parametrize(
    "changes",
    [
        {"microbatches": 6, "transfer_ns": 2_000_000, "backward_ns": 2_000_000},
        {"microbatches": 8, "transfer_ns": 3_000_000, "weight_ns": 500_000},
    ],
)
@pytest.mark.parametrize("schedule", ["zb-h2", "gpipe"])
def test_recorded_transfers_show_that_stages_are_neighbors(
    schedule: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    planting = Planting(schedule=schedule, stages=2, **changes)
    report = report_on(planting, range(2), tmp_path)

    assert report.restrictions == ()
    assert get_schedule_name(report) == schedule


@pytest.mark.parametrize("schedule", ["zb-h2", "gpipe"])
def test_one_slow_direction_hides_no_stage_on_a_shared_clock(schedule: str, tmp_path: Path) -> None:
    """Forwards arrive at once, so no stage is missing, even if backwards take long to return."""
    planting = replace(
        SCHEDULES[schedule], transfer_back_ns=4_000_000, iterations=3, communication=False
    )
    truth = plant(replace(planting, files="rank"), tmp_path / "run")
    table = write_table(truth, range(4), tmp_path / "table.csv", renumber=True)
    paths = [path.rename(path.with_stem(name)) for path, name in assign_letters(tmp_path / "run")]
    for report in (bubbleviz.analyze(table), bubbleviz.analyze(paths)):
        assert report.restrictions == ()
        assert get_schedule_name(report) == schedule


@pytest.mark.parametrize("servers", [1, 3])
def test_an_order_that_lets_microbatches_wait_hides_no_stage_on_a_shared_clock(
    servers: int, tmp_path: Path
) -> None:
    """If hosts have different clocks, a wait cannot be distinguished from a missing stage."""
    times = [(1_000_000,) * 3] * 3
    work = build_device_workload((0, 1, 2), 6, times, 1_500_000, Memory(9.0, 1.0, 0.4))
    planting = Planting(
        schedule=torch_csv.write(search_plan("zb-1p", work)),
        stages=3,
        microbatches=6,
        iterations=3,
        communication=False,
        servers=servers,
        clock_error_ns=(0, 50_000_000, -50_000_000)[:servers],
        files="rank",
    )
    plant(planting, tmp_path)
    paths = [path.rename(path.with_stem(letter)) for path, letter in assign_letters(tmp_path)]
    report = bubbleviz.analyze(paths)

    assert set(list_restriction_codes(report)) == (
        set() if servers == 1 else {"stages-may-be-missing"}
    )


@pytest.mark.parametrize("microbatches", [3, 6, 12, 24])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-h2", "gpipe"])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_the_first_and_last_of_three_stages_are_marked(
    jitter: float, schedule: str, microbatches: int, tmp_path: Path
) -> None:
    """A missing stage takes about as long as a recorded stage, or somewhat less."""
    fits = microbatches >= 6 or schedule != "zb-h2"
    planting = Planting(
        schedule=schedule,
        stages=3,
        microbatches=microbatches if fits else 5,
        iterations=3,
        jitter=jitter,
    )
    assert is_marked(report_on(planting, (0, 2), tmp_path))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "gpipe"])
@pytest.mark.parametrize("renumber", [True, False])
@pytest.mark.parametrize("ranks", [(0, 3), (0, 2), (1, 3), (0, 1, 3), (0, 2, 3)])
def test_tables_of_some_stages_are_marked(
    schedule: str, renumber: bool, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    truth = plant(SCHEDULES[schedule], tmp_path / "run")
    path = write_table(truth, ranks, tmp_path / "some.csv", renumber=renumber)

    assert is_marked(bubbleviz.analyze(path))


def test_a_table_may_count_ranks_from_one(tmp_path: Path) -> None:
    truth = plant(FOUR, tmp_path / "run")
    ranks = [replace(op, rank=op.rank + 1) for op in truth.operations]
    path = write_table(
        replace(truth, operations=tuple(ranks)), range(1, 5), tmp_path / "t.csv", renumber=False
    )
    report = bubbleviz.analyze(path)

    assert report.restrictions == ()
    assert get_schedule_name(report) == "1f1b"


def test_stages_that_tables_skip_are_missing(tmp_path: Path) -> None:
    """A table of an interleaved schedule gives the stage of a rank, not of its chunks."""
    truth = plant(SCHEDULES["interleaved-1f1b"], tmp_path / "run")
    path = write_table(truth, (0, 3), tmp_path / "some.csv", renumber=False)
    header, *rows = path.read_text().splitlines()
    rows_with_stage = [header + ",stage", *(f"{row},{row.split(',')[1]}" for row in rows)]
    path.write_text("\n".join(rows_with_stage) + "\n")

    assert is_marked(bubbleviz.analyze(path))


def test_advice_says_where_stages_may_be_missing(tmp_path: Path) -> None:
    gpipe = replace(SCHEDULES["gpipe"], communication=False)
    without_first = describe_first_steps(report_on(gpipe, (1, 2, 3), tmp_path / "first"))
    without_last = describe_first_steps(report_on(gpipe, (0, 1, 2), tmp_path / "last"))

    start = "Check for missing profiles: "
    assert str(without_first).startswith(
        f"{start}rank numbers on the first stage start at 1, so lower ranks run"
    )
    assert str(without_last).startswith(f"{start}the last stage idles")


@pytest.mark.parametrize("ranks", [(0, 3), (0, 1, 3)])
def test_stages_around_a_gap_are_counted_among_the_given_ranks(
    ranks: tuple[int, ...], tmp_path: Path
) -> None:
    report = report_on(FOUR, ranks, tmp_path)

    assert [rank.stage for rank in report.ranks] == list(range(len(ranks)))
    codes = list_restriction_codes(report)
    assert codes == ["ranks-missing", "stages-counted-among-given"]
    assert "stages are counted among the given ranks" in text_of(report)


@pytest.mark.parametrize(
    ("numbers", "stages", "count"),
    [
        ([], [], None),
        ([4], [0], None),
        ([0, 1, 2, 3], [0, 1, 2, 3], None),
        ([2, 3], [0, 1], 2),
        ([1, 4], [0, 1], None),
        ([4, 6], [0, 1], 2),
        ([4, 5, 6, 7], [0, 0, 1, 1], 2),
        # Other numberings of ranks are no evidence of missing stages.
        ([3, 2], [0, 1], None),
        ([5, 6, 8], [0, 1, 2], None),
        ([2, 3, 9], [0, 1, -1], 2),
    ],
)
def test_the_first_number_suggests_earlier_stages(
    numbers: list[int], stages: list[int], count: int | None
) -> None:
    note = describe_first_number(np.array(numbers, np.int64), np.array(stages, np.int64))

    assert (note and note.count) == count


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("late_ranks", [(2,), (2, 6)])
def test_a_rank_that_launches_late_does_not_look_like_a_missing_stage(
    schedule: str, late_ranks: tuple[int, ...], tmp_path: Path
) -> None:
    late_ms = dict.fromkeys(late_ranks, 60.0)
    job = simulate_job(Job(schedule=schedule, stages=4, replicas=2, late=late_ms))
    table = _write_without_stages(job.rows, tmp_path)

    report = bubbleviz.analyze(table)

    assert "may be missing" not in str(report.limitations)
    assert report.advice[0].kind == "launch"


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_stage_that_is_missing_from_every_replica_is_found(schedule: str, tmp_path: Path) -> None:
    job = simulate_job(Job(schedule=schedule, stages=4, replicas=2, late={1: 60.0}))
    table = _write_without_stages([row for row in job.rows if row["stage"] != 2], tmp_path)

    assert "may be missing" in str(bubbleviz.analyze(table).limitations)


def _write_without_stages(rows: list[Row], folder: Path) -> Path:
    """Write a table of operations without the columns that state the stages."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [name for name in names if name not in ("stage", "virtual_stage")]
    columns = {name: [row.get(name, "") for row in rows] for name in names}
    return write_csv(folder / "operations.csv", columns)
