"""Merging of several profiles and ranks: stages, pairing, headline and missing ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.errors import MismatchError, UsageError
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.nsys_exports import C, ExportRows, K, R, write_profile

TWO = Planting(schedule="zb-h2", microbatches=12, iterations=3, transfer_ns=10_000)


def plant_files(planting: Planting, folder: Path) -> list[Path]:
    return [folder / file.path for file in plant(planting, folder).files]


def write_rank(
    folder: Path,
    pid: int,
    *,
    marked: bool = False,
    iterations: int = 2,
    names: Sequence[str] = ("F0.0.0", "B0.0.0", "Optimizer"),
) -> Path:
    """Write one rank with iterations of these names every 100 ns, optionally in marked ranges."""
    rows = ExportRows(pid)
    for k in range(iterations):
        base = 100 * k + 10 * pid
        if marked:
            rows.add_range(base, base + 50, f"iter_{pid}_{k}")
        for n, text in enumerate(names):
            start = base + 10 * n
            # The first of several names belongs to the outer range.
            for inner, name in enumerate(text.split()):
                rows.add_range(start + inner, start + 9 - inner, name)
            rows.launch(start + 2, start + 4, start + 9)
    return rows.write(folder, name=f"{pid}.sqlite", hostname="one")


def test_profiles_with_a_common_naming_are_one_run(tmp_path: Path) -> None:
    """Two conventions match F and B of both files; torch's is preferred if there are sends."""
    names = ["PP:0F0 F0.0.0", "PP:0B0 B0.0.0", "Optimizer"]
    sends = [f"PP:0SEND_F{n}" for n in range(5)]
    files = [write_rank(tmp_path, 1, names=names), write_rank(tmp_path, 2, names=[*names, *sends])]
    report = bubbleviz.analyze(files)
    assert report.convention == "zero-bubble, torch-pipelining"
    assert len(report.ranks) == 2

    files = [write_rank(tmp_path, 1), write_rank(tmp_path, 2, names=["PP:0F0", "PP:0B0"])]
    with pytest.raises(MismatchError, match="naming conventions zero-bubble and torch-pip"):
        bubbleviz.analyze(files)
    chosen_report = bubbleviz.analyze(files, convention=["zero-bubble", "torch-pipelining"])
    assert len(chosen_report.ranks) == 2


def test_ranks_pair_by_order_if_only_one_names_its_iterations(tmp_path: Path) -> None:
    files = [write_rank(tmp_path, 1, marked=True), write_rank(tmp_path, 2)]
    assert [len(i.ranks) for i in bubbleviz.analyze(files).iterations] == [2, 2]
    # An iteration that lacks a rank is incomplete.
    files = [write_rank(tmp_path, pid, marked=True, iterations=4 - pid) for pid in (1, 2)]
    report = bubbleviz.analyze(files)
    assert [i.ratios["schedule"].incomplete for i in report.iterations] == [False, False, True]
    assert [i.complete for i in report.iterations] == [True, True, False]


def test_the_headline_says_why_it_is_not_the_period(tmp_path: Path) -> None:
    paths = plant_files(TWO, tmp_path)

    assert bubbleviz.analyze(paths).headline == "period"
    last = bubbleviz.analyze(paths, skip=2)
    assert last.headline == "schedule"
    assert "overlap" in last.headline_reason
    assert "no averaged iteration is followed by another" in last.headline_reason
    nothing = bubbleviz.analyze(paths, skip=3)
    assert "no complete training iteration" in nothing.headline_reason


@pytest.mark.parametrize("schedule", ["zb-h2", "1f1b"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_without_a_common_clock_the_headline_is_a_known_ratio(
    tmp_path: Path, schedule: str, iterations: int
) -> None:
    planting = Planting(
        schedule=schedule, iterations=iterations, servers=2, transfer_ns=10_000, jitter=0.05
    )
    paths = plant_files(planting, tmp_path)

    report = bubbleviz.analyze(paths, align="none")

    assert [p.clock_offset_ns for p in report.profiles] == [0, 0]
    ratios = report.summary.bubble_ratio
    assert ratios["schedule"].mean is None
    for ratios_of_scope in (
        report.iterations[0].ratios,
        report.iterations[0].ranks[0].bubble_ratio,
    ):
        values = {name: getattr(ratio, "value", ratio) for name, ratio in ratios_of_scope.items()}
        unknown = {name for name, value in values.items() if value is None}
        assert unknown - {"period"} == {"schedule", "step"}
    assert report.headline == "stage"
    assert ratios["stage"].mean == bubbleviz.analyze(paths).summary.bubble_ratio["stage"].mean
    assert "no common clock" in report.headline_reason
    assert "do not overlap" not in report.headline_reason


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-v"])
def test_a_given_order_agrees_with_the_inferred_order(schedule: str, tmp_path: Path) -> None:
    paths = plant_files(replace(TWO, schedule=schedule, microbatches=8, files="rank"), tmp_path)
    report = bubbleviz.analyze(paths)

    ordered_report = bubbleviz.analyze(paths[::-1], order=[0, 1, 2, 3])

    assert [r.pid for r in ordered_report.ranks] == [r.pid for r in report.ranks]
    assert [r.stage for r in ordered_report.ranks] == [0, 1, 2, 3]
    assert ordered_report.operations.chunk.tolist() == report.operations.chunk.tolist()


def test_an_order_must_name_every_rank(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="each rank from 0 to 3 exactly once"):
        bubbleviz.analyze(plant_files(TWO, tmp_path)[:1], order=[0, 1, 1, 2])


def test_replicas_share_one_stage(tmp_path: Path) -> None:
    report = bubbleviz.analyze([write_rank(tmp_path, pid) for pid in (1, 2)])

    assert [r.stage for r in report.ranks] == [0, 0]
    assert [r.pipeline for r in report.ranks] == [0, 1]
    assert [r.pid for r in report.ranks] == [1, 2]


def test_ranks_without_forward_or_backward_are_named(tmp_path: Path) -> None:
    kernels = [K(0, 10, 1), K(0, 10, 2, device=1)]
    calls = [C(1, 2, 1), C(20, 21, 2)]

    report = bubbleviz.analyze([write_profile(tmp_path, kernels, calls, [R(0, 9, "F0.0.0")])])

    assert any(n.what == "ranks without forward or backward" for n in report.limitations)
