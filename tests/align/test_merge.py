"""Several profiles and ranks: stages, pairing, headline, and what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.errors import MismatchError, UsageError
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.nsys_exports import C, K, R, profile

TWO = Planting(schedule="zb-h2", microbatches=12, iterations=3, transfer_ns=10_000)


def run_of(folder: Path, name: str, *, marked: bool, pid: int, iterations: int = 2) -> Path:
    """Write one rank: an iteration of F0 and B0 every 100 ns, marked or not."""
    kernels, calls, ranges = [], [], []
    for k in range(iterations):
        base = 100 * k + 10 * pid
        if marked:
            ranges.append(R(base, base + 50, f"iter_{pid}_{k}", tid=pid, pid=pid))
        for n, text in enumerate(("F0.0.0", "B0.0.0", "Optimizer")):
            at, ident = base + 10 * n, 10 * k + n
            ranges.append(R(at, at + 8, text, tid=pid, pid=pid))
            calls.append(C(at + 1, at + 2, ident, tid=pid, pid=pid))
            kernels.append(K(at + 3, at + 9, ident, pid=pid))
    return profile(folder, kernels, calls, ranges, name=name, hostname="one")


def two_namings(folder: Path, pid: int, sends: int) -> Path:
    """Write one rank whose F and B two namings tell; torch's leads where there are sends."""
    kernels, calls, ranges = [], [], []
    for n, (outer, inner) in enumerate((("PP:0F0", "F0.0.0"), ("PP:0B0", "B0.0.0"))):
        at = 20 * n + 2 * pid
        ranges.append(R(at, at + 12, outer, tid=pid, pid=pid))
        ranges.append(R(at + 1, at + 11, inner, tid=pid, pid=pid))
        calls.append(C(at + 2, at + 3, n, tid=pid, pid=pid))
        kernels.append(K(at + 4, at + 9, n, pid=pid))
    ranges.append(R(60, 70, "Optimizer", tid=pid, pid=pid))
    ranges.extend(R(80 + n, 81 + n, f"PP:0SEND_F{n}", tid=pid, pid=pid) for n in range(sends))
    return profile(folder, kernels, calls, ranges, name=f"{pid}.sqlite", hostname="one")


def test_profiles_in_which_other_namings_lead_are_one_run(tmp_path: Path) -> None:
    report = bubbleviz.analyze([two_namings(tmp_path, 1, 0), two_namings(tmp_path, 2, 5)])

    assert report.convention == "zero-bubble, torch-pipelining"
    assert len(report.ranks) == 2


def test_profiles_without_a_naming_in_common_are_no_run(tmp_path: Path) -> None:
    first = run_of(tmp_path, "a.sqlite", marked=False, pid=1)
    kernels = [K(3, 9, 1, pid=2), K(13, 19, 2, pid=2)]
    calls = [C(1, 2, 1, tid=2, pid=2), C(11, 12, 2, tid=2, pid=2)]
    ranges = [R(0, 8, "PP:0F0", tid=2, pid=2), R(10, 18, "PP:0B0", tid=2, pid=2)]
    second = profile(tmp_path, kernels, calls, ranges, name="b.sqlite", hostname="one")

    with pytest.raises(MismatchError, match="zero-bubble and torch-pipelining as their naming"):
        bubbleviz.analyze([first, second])
    given = bubbleviz.analyze([first, second], convention=["zero-bubble", "torch-pipelining"])
    assert len(given.ranks) == 2


def test_ranks_pair_by_order_where_only_one_names_its_iterations(tmp_path: Path) -> None:
    first = run_of(tmp_path, "a.sqlite", marked=True, pid=1, iterations=2)
    second = run_of(tmp_path, "b.sqlite", marked=False, pid=2)

    assert [len(i.ranks) for i in bubbleviz.analyze([first, second]).iterations] == [2, 2]
    # One that lacks a rank is incomplete.
    longer = run_of(tmp_path, "a.sqlite", marked=True, pid=1, iterations=3)
    second = run_of(tmp_path, "b.sqlite", marked=True, pid=2)
    report = bubbleviz.analyze([longer, second])
    assert [i.ratios["schedule"].incomplete for i in report.iterations] == [False, False, True]
    assert [i.complete for i in report.iterations] == [True, True, False]


def test_the_headline_says_why_it_is_not_the_period(tmp_path: Path) -> None:
    truth = plant(TWO, tmp_path)
    paths = [tmp_path / file.path for file in truth.files]

    assert bubbleviz.analyze(paths).headline == "period"
    last = bubbleviz.analyze(paths, skip=2)
    assert last.headline == "schedule"
    assert "overlap" in last.headline_reason
    assert "no averaged iteration has a next one" in last.headline_reason
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
    truth = plant(planting, tmp_path)
    paths = [tmp_path / file.path for file in truth.files]

    report = bubbleviz.analyze(paths, align="none")

    assert [p.clock_offset_ns for p in report.profiles] == [0, 0]
    ratios = report.summary.bubble_ratio
    assert ratios["schedule"].mean is None
    for own in (report.iterations[0].ratios, report.iterations[0].ranks[0].bubble_ratio):
        values = {name: getattr(ratio, "value", ratio) for name, ratio in own.items()}
        unknown = {name for name, value in values.items() if value is None}
        assert unknown - {"period"} == {"schedule", "step"}
    assert report.headline == "stage"
    assert ratios["stage"].mean == bubbleviz.analyze(paths).summary.bubble_ratio["stage"].mean
    assert "no common clock" in report.headline_reason
    assert "do not overlap" not in report.headline_reason


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-v"])
def test_an_order_that_is_given_agrees_with_the_one_told(schedule: str, tmp_path: Path) -> None:
    truth = plant(replace(TWO, schedule=schedule, microbatches=8, files="rank"), tmp_path)
    paths = [tmp_path / file.path for file in truth.files]
    told = bubbleviz.analyze(paths)

    given = bubbleviz.analyze(paths[::-1], order=[0, 1, 2, 3])

    assert [r.pid for r in given.ranks] == [r.pid for r in told.ranks]
    assert [r.stage for r in given.ranks] == [0, 1, 2, 3]
    assert given.operations.chunk.tolist() == told.operations.chunk.tolist()


def test_an_order_must_name_every_rank(tmp_path: Path) -> None:
    truth = plant(TWO, tmp_path)

    with pytest.raises(UsageError, match="each of the ranks 0 to 3 once"):
        bubbleviz.analyze([tmp_path / truth.files[0].path], order=[0, 1, 1, 2])


def test_copies_of_one_stage_share_it(tmp_path: Path) -> None:
    paths = [run_of(tmp_path, f"{pid}.sqlite", marked=False, pid=pid) for pid in (1, 2)]

    report = bubbleviz.analyze(paths)

    assert [r.stage for r in report.ranks] == [0, 0]
    assert [r.pipeline for r in report.ranks] == [0, 1]
    assert [r.pid for r in report.ranks] == [1, 2]


def test_ranks_without_forward_or_backward_are_named(tmp_path: Path) -> None:
    kernels = [K(0, 10, 1), K(0, 10, 2, device=1)]
    calls = [C(1, 2, 1), C(20, 21, 2)]

    report = bubbleviz.analyze([profile(tmp_path, kernels, calls, [R(0, 9, "F0.0.0")])])

    assert any(n.what == "ranks without forward or backward" for n in report.limitations)


# --- recordings on other clocks: by way of some, and at once
