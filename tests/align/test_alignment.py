"""Several hosts on one clock: planted jobs whose true clocks are known, and what contradicts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest

import bubbleviz
from bubbleviz.align.clocks import as_much_as_most, refuse_unrelated
from bubbleviz.align.offsets import ProfileClock
from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model.operations import ProfileSummary
from bubbleviz.model.profile import Source
from bubbleviz.report.report import Report
from tests.planting import plant
from tests.planting.options import Planting
from tests.planting.truth import TrueFile, TrueOperation, Truth
from tests.support.host_clocks import with_period
from tests.support.nsys_exports import C, K, R, profile

SECOND = 1_000_000_000
ERRORS = tuple(int(e) for e in np.random.default_rng(1).integers(-50_000_000, 50_000_000, 32))
DRIFTS = tuple(int(d) for d in np.random.default_rng(2).integers(-20_000, 20_000, 32))

SHORT = Planting(
    servers=4,
    iterations=3,
    transfer_ns=60_000,
    transfer_back_ns=150_000,
    transfer_jitter=0.5,
    jitter=0.1,
    session_gap_ns=9 * SECOND,
    clock_error_ns=ERRORS,
)
RowT = TypeVar("RowT", K, C, R)

#: Captures of half a minute: what drift adds up to is more than what transfers leave open.
LONG = replace(
    SHORT,
    forward_ns=SECOND // 5,
    backward_ns=SECOND // 5,
    weight_ns=SECOND // 6,
    optimizer_ns=SECOND // 10,
    iterations=4,
    drift_ppb=DRIFTS,
)
JOBS = {
    "1F1B": SHORT,
    "1F1B, long, drifting": LONG,
    "eight hosts": replace(SHORT, stages=8, servers=8, drift_ppb=DRIFTS),
    "interleaved": replace(SHORT, schedule="interleaved-1f1b", chunks=2, drift_ppb=DRIFTS),
    "interleaved, long": replace(LONG, schedule="interleaved-1f1b", chunks=2),
    "V": replace(SHORT, schedule="zb-v", stages=6, servers=3, microbatches=12),
    "V, long, drifting": replace(LONG, schedule="zb-v", microbatches=8, iterations=2),
    "split backward": replace(SHORT, schedule="zb-h1", drift_ppb=DRIFTS),
    "no transfers seen": replace(SHORT, communication=False),
    "receives inside F": replace(SHORT, nested_receive_ns=100_000, kernels=4),
    "a file a rank": replace(SHORT, stages=8, files="rank", drift_ppb=DRIFTS),
    "named iterations": replace(SHORT, iteration_ranges=True),
    "iterations shorter than NTP errors": replace(SHORT, microbatches=4, iterations=6),
    "replicas, named": replace(
        SHORT, replicas=2, servers=8, barrier=True, iteration_ranges=True, drift_ppb=DRIFTS
    ),
    "replicas, told by what fits": replace(
        SHORT, replicas=3, stages=3, servers=9, barrier=True, jitter=0.3, drift_ppb=DRIFTS
    ),
    "replicas, interleaved, told by what fits": replace(
        SHORT, schedule="interleaved-1f1b", replicas=2, servers=8, barrier=True, jitter=0.3
    ),
    "replicas, long": replace(LONG, replicas=2, servers=4, barrier=True, iteration_ranges=True),
    "tensor parallel": replace(SHORT, tensor=2, drift_ppb=DRIFTS),
    "replicas of tensor parallel": replace(
        SHORT, replicas=2, tensor=2, servers=8, barrier=True, iteration_ranges=True
    ),
    "cut": replace(SHORT, iterations=4, cut_ns=100_000_000),
    "cut while it receives inside F": replace(
        SHORT,
        schedule="zb-h1",
        nested_receive_ns=100_000,
        iterations=2,
        cut_ns=30_000_000,
        iteration_ranges=True,
        drift_ppb=DRIFTS,
        seed=25,
    ),
}
SIZES = {
    "replicas, told": replace(SHORT, replicas=2, servers=8, barrier=True),
    "replicas of tensor parallel, told": replace(
        SHORT, tensor=2, replicas=2, servers=8, barrier=True, files="rank"
    ),
}


@dataclass(frozen=True)
class Clocks:
    """What the clocks of a planted job truly show."""

    truth: Truth

    def shown(self, file: TrueFile, time: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the file's times of true ones."""
        start = file.session_start_ns
        began = start + start * file.drift_ppb // 10**9
        step = np.where(time >= file.step_at_ns, file.step_ns, 0)
        return np.asarray(time + time * file.drift_ppb // 10**9 + step - began, np.int64)

    def error_ns(self, own: ProfileSummary, rank: int) -> float:
        """Return by how much a rank's operations are off at most, as its profile's clock is told.

        True is the first profile's clock.
        """
        operations = spans(self.truth, rank)
        file_ns = np.array([op.file_start_ns for op in operations], np.int64)
        true_ns = np.array([op.start_ns for op in operations], np.int64)
        drifted = np.rint((file_ns - own.clock_t0_ns) * own.clock_drift_ppm * 1e-6)
        told_ns = file_ns + own.clock_offset_ns + drifted
        return float(np.abs(told_ns - self.shown(self.truth.files[0], true_ns)).max())

    def permitted(self, host: str) -> float:
        """Return the half width that all F and B dependencies permit a host, without drift."""
        hosts = sorted({file.host for file in self.truth.files})
        place = {rank.rank: hosts.index(rank.host) for rank in self.truth.ranks}
        pipeline = {rank.rank: rank.pipeline for rank in self.truth.ranks}
        found = {
            (op.iteration, pipeline[op.rank], op.microbatch, op.virtual_stage, op.phase == "F"): op
            for op in self.truth.operations
            if op.phase in ("F", "B", "BW") and op.start_ns is not None and op.complete
        }
        least = np.full((len(hosts), len(hosts)), np.inf)
        np.fill_diagonal(least, 0)
        for (k, p, mb, stage, forward), op in found.items():
            assert stage is not None
            source = found.get((k, p, mb, stage - 1 if forward else stage + 1, forward))
            if source is not None and op.start_ns is not None and source.end_ns is not None:
                pair = place[op.rank], place[source.rank]
                least[pair] = min(least[pair], op.start_ns - source.end_ns)
        for via in range(len(hosts)):
            least = np.minimum(least, least[:, [via]] + least[[via], :])
        own, first = hosts.index(host), hosts.index(self.truth.files[0].host)
        return float(least[own, first] + least[first, own]) / 2


def spans(truth: Truth, rank: int | None = None) -> list[TrueOperation]:
    return [
        op
        for op in truth.operations
        if op.start_ns is not None and (rank is None or op.rank == rank)
    ]


def check(report: Report, truth: Truth) -> None:
    """Hold every operation and ratio of a report against the truth."""
    clocks = Clocks(truth)
    files = {file.path: n for n, file in enumerate(truth.files)}
    for rank in truth.ranks:
        own = report.profiles[files[rank.file]]
        assert own.clock_uncertainty_ns is not None
        assert clocks.error_ns(own, rank.rank) <= own.clock_uncertainty_ns + 2, rank
    capture = max(op.end_ns or 0 for op in spans(truth)) - min(
        op.start_ns or 0 for op in spans(truth)
    )
    for file, own in zip(truth.files, report.profiles, strict=True):
        assert own.clock_uncertainty_ns is not None
        if file.host == truth.files[0].host:
            assert own.clock_uncertainty_ns == 0
        elif not truth.planting["nested_receive_ns"]:  # such an F begins before it can
            half = clocks.permitted(file.host)
            assert own.clock_uncertainty_ns <= 1.1 * half + 50e-6 * capture
    for iteration, true in zip(report.iterations, truth.iterations, strict=True):
        ratio, right = iteration.ratios["schedule"], true.bubble_ratio["schedule"]
        assert (ratio.value is None) == (right is None)
        if ratio.value is not None and right is not None:
            assert ratio.interval is not None
            low, high = ratio.interval
            assert low <= ratio.value <= high
            assert low - 1e-9 <= right <= high + 1e-9


def planted(planting: Planting, folder: Path) -> tuple[list[Path], Truth]:
    truth = plant(planting, folder)
    return [folder / file.path for file in truth.files], truth


@pytest.mark.parametrize("name", JOBS)
def test_every_operation_lies_within_the_uncertainty(name: str, tmp_path: Path) -> None:
    paths, truth = planted(JOBS[name], tmp_path)

    report = bubbleviz.analyze(paths, align="causal")

    check(report, truth)
    if {r.pipeline for r in report.ranks} == {None}:
        # Copies in step on one machine: either may be of either pipeline.
        assert name == "tensor parallel"
        assert [r.stage for r in report.ranks] == sorted(r.stage for r in truth.ranks)
        return
    assert [r.stage for r in report.ranks] == [
        r.stage for r in sorted(truth.ranks, key=lambda r: (r.pipeline, r.stage))
    ]
    assert [r.pipeline for r in report.ranks] == sorted(r.pipeline for r in truth.ranks)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_are_told_tell_pipelines_apart(name: str, tmp_path: Path) -> None:
    planting = SIZES[name]
    paths, truth = planted(planting, tmp_path)
    sizes = bubbleviz.Parallel(tp=planting.tensor, pp=planting.stages, dp=planting.replicas)

    check(bubbleviz.analyze(paths, align="causal", parallel=sizes), truth)


def test_files_of_a_server_and_of_ranks_mix(tmp_path: Path) -> None:
    planting = replace(SHORT, servers=2, drift_ppb=DRIFTS)
    _, truth = planted(planting, tmp_path / "server")
    planted(replace(planting, files="rank"), tmp_path / "rank")
    ranks = [tmp_path / "rank" / name for name in ("rank2.sqlite", "rank3.sqlite")]

    report = bubbleviz.analyze([tmp_path / "server" / "node0.sqlite", *ranks])

    assert [r.stage for r in report.ranks] == [0, 1, 2, 3]
    uncertainty = [p.clock_uncertainty_ns for p in report.profiles]
    assert uncertainty[0] == 0
    assert uncertainty[1] == uncertainty[2] != 0
    for iteration, true in zip(report.iterations, truth.iterations, strict=True):
        low, high = iteration.ratios["schedule"].interval or (1, 0)
        assert low <= (true.bubble_ratio["schedule"] or 0) <= high


def test_an_order_tells_pipelines_apart_as_the_sizes_say(tmp_path: Path) -> None:
    """Names of hosts are not in the order of ranks; the order is given, stage by stage."""
    planting = replace(SHORT, stages=2, replicas=2, servers=4, barrier=True)
    paths, truth = planted(planting, tmp_path)
    for path, host in zip(paths, ("d", "b", "c", "a"), strict=True):
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'Hostname'", host)
    sizes = bubbleviz.Parallel(pp=2, dp=2)
    files = [file.path for file in truth.files]
    true = {files.index(r.file): (r.stage, r.pipeline) for r in truth.ranks}
    unordered = bubbleviz.analyze(paths, align="causal", parallel=sizes)
    order = [r.index for r in sorted(unordered.ranks, key=lambda r: true[r.profile])]

    report = bubbleviz.analyze(paths, align="causal", parallel=sizes, order=order)

    assert {r.profile: (r.stage, r.pipeline) for r in report.ranks} == true
    check(report, truth)


def test_a_drift_is_reported_only_where_it_is_needed(tmp_path: Path) -> None:
    short, _ = planted(replace(SHORT, drift_ppb=DRIFTS), tmp_path / "short")
    long, truth = planted(LONG, tmp_path / "long")

    assert all(p.clock_drift_ppm == 0 for p in bubbleviz.analyze(short).profiles)
    found = bubbleviz.analyze(long).profiles
    for own, file in zip(found[1:], truth.files[1:], strict=True):
        right = (truth.files[0].drift_ppb - file.drift_ppb) / 1000
        assert own.clock_uncertainty_ns is not None
        # Both ends of the capture can be off by the uncertainty.
        ends = 2 * own.clock_uncertainty_ns / (truth.iterations[-1].end_ns or 0) * 1e6
        assert own.clock_drift_ppm == pytest.approx(right, abs=ends)


def test_the_first_profile_is_the_clock(tmp_path: Path) -> None:
    paths, _ = planted(replace(SHORT, drift_ppb=DRIFTS), tmp_path)

    for order in (paths, paths[::-1]):
        first = bubbleviz.analyze(order).profiles[0]
        assert (first.clock_offset_ns, first.clock_drift_ppm) == (0, 0.0)
        assert (first.clock_t0_ns, first.clock_uncertainty_ns) == (0, 0)


def test_the_order_of_profiles_moves_no_ratio_out_of_its_interval(tmp_path: Path) -> None:
    paths, _ = planted(SHORT, tmp_path)

    one, other = bubbleviz.analyze(paths), bubbleviz.analyze(paths[::-1])

    for a, b in zip(one.iterations, other.iterations, strict=True):
        for name in ("schedule", "step"):
            (low, high), (lower, higher) = a.ratios[name].interval, b.ratios[name].interval  # type: ignore[misc]  # both are known
            assert max(low, lower) <= min(high, higher)
        assert a.ratios["stage"].value == pytest.approx(b.ratios["stage"].value, abs=1e-4)


def test_utc_is_trusted_where_that_is_asked_for(tmp_path: Path) -> None:
    paths, truth = planted(SHORT, tmp_path)

    report = bubbleviz.analyze(paths, align="utc")

    started = [file.utc_epoch_ns for file in truth.files]
    assert [p.clock_offset_ns for p in report.profiles] == [s - started[0] for s in started]
    assert [p.clock_uncertainty_ns for p in report.profiles] == [0, None, None, None]
    assert report.iterations[0].ratios["schedule"].value is not None
    assert report.iterations[0].ratios["schedule"].interval is None
    assert any("NTP" in n.reason for n in report.limitations)


def test_a_profile_without_utc_is_told_where_utc_is_asked_for(tmp_path: Path) -> None:
    paths, _ = planted(SHORT, tmp_path)
    with closing(sqlite3.connect(paths[2])) as db, db:
        db.execute("DROP TABLE TARGET_INFO_SESSION_START_TIME")

    found = {
        align: [
            n.reason
            for n in bubbleviz.analyze(paths, align=align).limitations
            if n.what == "clock of a profile"
        ]
        for align in ("utc", "causal")
    }

    assert found["utc"] == [
        f"{paths[2]} does not record when its session started; its times are taken as they are"
    ]
    assert found["causal"] == []


def test_no_alignment_leaves_out_what_needs_it(tmp_path: Path) -> None:
    paths, _ = planted(SHORT, tmp_path)

    report = bubbleviz.analyze(paths, align="none")

    assert [p.clock_offset_ns for p in report.profiles] == [0, 0, 0, 0]
    ratios = report.iterations[0].ratios
    assert {n for n, r in ratios.items() if r.value is None} == {"schedule", "step"}
    assert {n for n, v in report.iterations[0].ranks[0].bubble_ratio.items() if v is None} == {
        "schedule",
        "step",
    }


def test_an_alignment_is_one_of_three(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not one of causal, utc, none"):
        bubbleviz.analyze([tmp_path], align="ptp")


def test_one_host_needs_no_alignment(tmp_path: Path) -> None:
    paths, _ = planted(replace(SHORT, servers=1, files="rank"), tmp_path)

    found = {
        align: bubbleviz.analyze(paths, align=align).iterations[0].ratios["schedule"]
        for align in ("causal", "utc", "none")
    }

    assert found["causal"] == found["utc"] == found["none"]
    value = found["causal"].value
    assert value is not None
    assert found["causal"].interval == (value, value)


def jumping(path: Path, at_ns: int, by_ns: int) -> None:
    """Make the clock of an export jump."""
    with closing(sqlite3.connect(path)) as db, db:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            for column in ("start", "end"):
                db.execute(
                    f"UPDATE {table} SET {column} = {column} + ? WHERE {column} >= ?",
                    (by_ns, at_ns),
                )


def test_clocks_that_contradict_name_what_does(tmp_path: Path) -> None:
    paths, truth = planted(replace(SHORT, stages=4, servers=2, iterations=8), tmp_path)
    jumping(paths[1], first_start(truth, truth.files[1], 4) + 10_000_000, 3_000_000)

    report = bubbleviz.analyze(paths)

    (note,) = (n for n in report.limitations if n.what.endswith("contradict each other"))
    assert "node0" in note.reason
    assert "node1" in note.reason
    assert "needs 'B" in note.reason
    assert "needs 'F" in note.reason
    missed = float(note.reason.split("misses by ")[1].split(" us")[0].replace(",", ""))
    assert missed == pytest.approx(3_000, rel=0.1)
    for iteration in report.iterations:
        known = {n for n, r in iteration.ratios.items() if r.value is not None}
        assert {n for n, r in iteration.ratios.items() if r.contradicted} == known
        assert {"schedule", "stage", "step"} <= known
    uncertainty = report.profiles[1].clock_uncertainty_ns
    assert uncertainty is not None
    assert uncertainty > 1_300_000


def test_a_clock_that_jumps_by_its_grain_is_no_contradiction(tmp_path: Path) -> None:
    paths, truth = planted(replace(SHORT, stages=4, servers=2, transfer_ns=0), tmp_path)
    middle = truth.operations[-1].file_start_ns
    assert middle is not None
    jumping(paths[1], middle // 2, 4_000)

    report = bubbleviz.analyze(paths)

    assert not any("contradict" in n.what for n in report.limitations)
    assert report.profiles[1].clock_drift_ppm == 0


def test_a_missing_server_in_the_middle_is_told(tmp_path: Path) -> None:
    planting = replace(SHORT, stages=6, servers=3, absent=(1,))
    named, truth = planted(replace(planting, iteration_ranges=True), tmp_path / "named")
    unnamed, _ = planted(planting, tmp_path / "unnamed")

    report = bubbleviz.analyze(named)

    assert any(
        n.what == "ranks without a profile" and "ranks 2, 3;" in n.reason
        for n in report.limitations
    )
    assert all(i.ratios["schedule"].incomplete for i in report.iterations)
    # Causality reaches across the gap: looser bounds, and true ones.
    last = report.profiles[1]
    assert Clocks(truth).error_ns(last, 4) <= (last.clock_uncertainty_ns or 0)
    told = bubbleviz.analyze(unnamed)
    assert any(n.what == "stages that may be missing" for n in told.limitations)


@pytest.mark.parametrize("absent", [0, 2])
def test_a_missing_server_at_an_end_is_told_by_receives(absent: int, tmp_path: Path) -> None:
    paths, _ = planted(replace(SHORT, stages=6, servers=3, absent=(absent,)), tmp_path)

    report = bubbleviz.analyze(paths)

    assert any(n.what == "stages without a profile" for n in report.limitations)
    assert all(i.ratios["schedule"].incomplete for i in report.iterations)


def test_copies_that_nothing_tells_apart_bound_less(tmp_path: Path) -> None:
    # In step to the nanosecond, either pair of ranks may be a pipeline.
    planting = replace(
        SHORT, replicas=2, servers=8, barrier=True, jitter=0, transfer_jitter=0, iterations=2
    )
    paths, truth = planted(planting, tmp_path)

    report = bubbleviz.analyze(paths, align="causal")

    assert sorted(r.stage for r in report.ranks if r.stage is not None) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {r.pipeline for r in report.ranks} == {None}
    assert any(n.what == "pipelines" for n in report.limitations)
    assert {i.ratios["schedule"].value for i in report.iterations} == {None}
    for rank in truth.ranks:
        own = report.profiles[[f.path for f in truth.files].index(rank.file)]
        if own.clock_uncertainty_ns is not None:
            assert Clocks(truth).error_ns(own, rank.rank) <= own.clock_uncertainty_ns


def test_a_replica_that_is_slower_is_a_copy_all_the_same(tmp_path: Path) -> None:
    planting = replace(SHORT, replicas=2, servers=4, iteration_ranges=True, jitter=0.9, seed=3)
    paths, truth = planted(planting, tmp_path)

    report = bubbleviz.analyze(paths, align="causal")

    assert [r.stage for r in report.ranks] == [0, 1, 2, 3] * 2
    check(report, truth)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (bubbleviz.Parallel(tp=2, pp=4, dp=2), "makes 16 ranks"),
        (bubbleviz.Parallel(pp=2), "makes 2 ranks"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    sizes: bubbleviz.Parallel, says: str, tmp_path: Path
) -> None:
    paths, _ = planted(SHORT, tmp_path)

    with pytest.raises(MismatchError, match=says):
        bubbleviz.analyze(paths, parallel=sizes)


@pytest.mark.parametrize(
    "sizes", [{"tp": 0}, {"pp": -4}, {"dp": 1_000_001}, {"tp": 10**9, "dp": 10**9}]
)
def test_sizes_that_no_run_has_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="not the sizes of a run of 1 to 1,000,000 ranks"):
        bubbleviz.Parallel(**sizes)


def test_a_microbatch_fewer_may_be_a_range_that_is_missing(tmp_path: Path) -> None:
    plant(Planting(stages=2, files="rank"), tmp_path)
    with closing(sqlite3.connect(tmp_path / "rank1.sqlite")) as database, database:
        database.execute("DELETE FROM NVTX_EVENTS WHERE text GLOB '[FB]7.*'")

    with pytest.raises(MismatchError, match="or a range is missing in one"):
        bubbleviz.analyze(tmp_path)


def test_captures_far_apart_in_utc_are_one_run_if_that_is_said(tmp_path: Path) -> None:
    hour = 3600 * SECOND
    paths, truth = planted(replace(SHORT, clock_error_ns=(0, hour, 2 * hour, 3 * hour)), tmp_path)

    with pytest.raises(MismatchError, match="no single run"):
        bubbleviz.analyze(paths)
    check(bubbleviz.analyze(paths, align="causal"), truth)


def test_a_capture_inside_a_longer_one_makes_no_gap() -> None:
    sources = [Source(path, "host", True, "nsys", None, None, 0, None) for path in "abc"]
    clocks = [ProfileClock(0, None)] * 3
    minute, fitting = 60 * SECOND, np.ones(3, bool)
    inside = [(0, 10 * minute), (1, 2), (9 * minute, 10 * minute)]
    apart = [(0, 2 * minute), (1, 2), (4 * minute, 5 * minute)]

    refuse_unrelated(sources, inside, clocks, fitting)
    with pytest.raises(MismatchError, match="a and c: captured 120 s apart"):
        refuse_unrelated(sources, apart, clocks, fitting)


def test_few_clocks_that_are_minutes_off_are_wrong_where_their_profiles_fit() -> None:
    hosts = [Source(f"{n}", f"host{n}", True, "nsys", None, None, 0, None) for n in range(9)]
    clocks = [ProfileClock(0, None)] * 9
    fitting, most = np.ones(9, bool), [(0, 2 * SECOND)] * 8
    away = (180 * SECOND, 182 * SECOND)

    (note,) = refuse_unrelated(hosts, [*most, away], clocks, fitting)
    assert (note.what, note.count) == ("clocks that are minutes off", 1)
    assert note.reason.startswith("host8 recorded up to 180 s away from the others")

    for sources, captures, alike in (
        (hosts, [*most, away], np.arange(9) < 8),
        ([*hosts[:8], replace(hosts[8], host="host0")], [*most, away], fitting),
        (hosts, [*most[:7], away, away], fitting),
        (hosts, [*most, (7_200 * SECOND, 7_201 * SECOND)], fitting),
    ):
        with pytest.raises(MismatchError, match="no single run"):
            refuse_unrelated(sources, captures, clocks, alike)


def test_most_profiles_hold_as_much_as_others() -> None:
    ranks = np.full(6, 8)
    for operations, expected in (
        ([5, 5, 5, 4, 5, 5], "111011"),
        ([4, 4, 5, 5, 5, 4], "111111"),  # two kinds of hosts, as those of two stages
        ([4, 4, 3, 5, 5, 4], "110001"),
        ([6, 5, 4, 3, 2, 1], "000000"),  # no two are alike, so the least is not as most are
    ):
        fitting = as_much_as_most(ranks, np.array(operations))
        assert "".join(map(str, fitting.astype(int))) == expected
    assert as_much_as_most(ranks[:0], ranks[:0]).tolist() == []


def test_hosts_without_utc_are_aligned_by_causality(tmp_path: Path) -> None:
    paths, truth = planted(SHORT, tmp_path)
    for path in paths:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("DROP TABLE TARGET_INFO_SESSION_START_TIME")

    check(bubbleviz.analyze(paths), truth)


def test_containers_of_one_machine_have_one_clock(tmp_path: Path) -> None:
    """Each counts its processes for itself, so the same number is not the same process."""
    paths, truth = planted(replace(SHORT, clock_error_ns=()), tmp_path)
    for path in paths:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET systemClockNs = NULL")
    hosts = [file.host for file in truth.files]
    pids = {rank.pid for rank in bubbleviz.analyze(paths).ranks}

    report = bubbleviz.analyze(paths, same_clock=[hosts[:2], hosts[2:]])

    assert len(pids) < len(hosts)
    assert [p.clock_uncertainty_ns == 0 for p in report.profiles] == [True, True, False, False]
    assert report.profiles[2].clock_uncertainty_ns == report.profiles[3].clock_uncertainty_ns
    check(report, truth)


def test_a_container_that_does_not_say_when_it_started_is_bounded_by_causality(
    tmp_path: Path,
) -> None:
    paths, truth = planted(SHORT, tmp_path)
    with closing(sqlite3.connect(paths[1])) as db, db:
        db.execute("DROP TABLE TARGET_INFO_SESSION_START_TIME")

    report = bubbleviz.analyze(
        paths, align="causal", same_clock=[[file.host for file in truth.files[:2]]]
    )

    check(report, truth)


def test_machines_of_one_name_have_clocks_of_their_own(tmp_path: Path) -> None:
    paths, truth = planted(replace(SHORT, stages=4, servers=4), tmp_path)
    for path in paths:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(
                "UPDATE TARGET_INFO_SYSTEM_ENV SET value = 'localhost' WHERE name = 'Hostname'"
            )

    report = bubbleviz.analyze(paths)

    assert [p.clock_uncertainty_ns == 0 for p in report.profiles] == [True, False, False, False]
    assert len({r.label for r in report.ranks}) == 4
    check(report, truth)


def test_bounds_are_those_of_the_events(tmp_path: Path) -> None:
    # On host a: F [0, 100], B [400, 500]. On b: F [150, 250], B [260, 360].
    paths = []
    for pid, (f, b) in enumerate((((0, 100), (400, 500)), ((150, 250), (260, 360)))):
        kernels = [K(*f, 1, pid=pid), K(*b, 2, pid=pid)]
        calls = [C(-50, -49, 1, tid=pid, pid=pid), C(-30, -29, 2, tid=pid, pid=pid)]
        ranges = [
            R(-51, -48, "F0.0.0", tid=pid, pid=pid),
            R(-31, -28, "B0.0.0", tid=pid, pid=pid),
        ]
        paths.append(
            profile(tmp_path, kernels, calls, ranges, name=f"{pid}.sqlite", hostname=f"host{pid}")
        )

    report = bubbleviz.analyze(paths, order=[0, 1])

    # b moves right by at least -50 and at most 40.
    assert report.profiles[1].clock_offset_ns == -5
    assert report.profiles[1].clock_uncertainty_ns == 46
    ratio = report.iterations[0].ratios["schedule"]
    # The window of host a alone holds the other for every clock.
    assert ratio.window_ns == 500
    assert ratio.interval == pytest.approx((1 - 400 / 1000, 1 - 400 / 1000), abs=1e-4)


def earlier(row: RowT, by_ns: int) -> RowT:
    """Return a row of :mod:`tests.building` at times that are so much smaller."""
    return replace(row, start=row.start - by_ns, end=(row.end or 0) - by_ns)


@pytest.mark.parametrize("session_ns", [0, 1_000])
def test_a_receive_bounds_more_than_a_span_that_begins_before_it(
    session_ns: int, tmp_path: Path
) -> None:
    """F of host b begins with a kernel that needs no input, and receives inside its range.

    All of it may be before the session's time 0.
    """
    kernels = [
        [K(0, 100, 1, pid=0), K(400, 500, 2, pid=0)],
        [
            K(50, 70, 1, pid=1),
            K(60, 160, 3, pid=1, name="ncclDevKernel_SendRecv", stream=9),
            K(160, 250, 4, pid=1),
            K(260, 360, 2, pid=1),
        ],
    ]
    paths = []
    for pid, own in enumerate(kernels):
        calls = [
            C(-50 + k.correlation, -50 + k.correlation, k.correlation, tid=pid, pid=pid)
            for k in own
            if k.correlation is not None and k.correlation != 2
        ]
        calls.append(C(-30, -29, 2, tid=pid, pid=pid))
        ranges = [
            R(-55, -40, "F0.0.0", tid=pid, pid=pid),
            R(-31, -28, "B0.0.0", tid=pid, pid=pid),
        ]
        paths.append(
            profile(
                tmp_path,
                [earlier(row, session_ns) for row in own],
                [earlier(row, session_ns) for row in calls],
                [earlier(row, session_ns) for row in ranges],
                name=f"{pid}.sqlite",
                hostname=f"host{pid}",
            )
        )

    report = bubbleviz.analyze(paths, order=[0, 1])

    # The receive ends at 160: b moves right by at least -60, and at most 40.
    assert report.profiles[1].clock_offset_ns == -10
    assert report.profiles[1].clock_uncertainty_ns == 51


def keep(path: Path, low_ns: int, high_ns: int) -> None:
    """Leave of an export what starts in [low, high)."""
    with closing(sqlite3.connect(path)) as db, db:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            db.execute(
                f"DELETE FROM {table} WHERE start < ? OR start >= ?",
                (low_ns, high_ns),
            )


def first_start(truth: Truth, file: TrueFile, iteration: int) -> int:
    """Return when the first F of an iteration starts on a file's clock."""
    ranks = {rank.rank for rank in truth.ranks if rank.file == file.path}
    return min(
        op.file_start_ns
        for op in truth.operations
        if op.rank in ranks and op.iteration == iteration and op.file_start_ns is not None
    )


def test_captures_that_are_shifted_pair_by_utc(tmp_path: Path) -> None:
    """One host holds iterations 0 to 4, the other 3 to 7: as many of both, and unnamed."""
    planting = replace(
        LONG, stages=2, servers=2, microbatches=3, iterations=8, drift_ppb=(), barrier=True
    )
    paths, truth = planted(planting, tmp_path)
    lead_ns = 1_000_000
    keep(paths[0], 0, first_start(truth, truth.files[0], 5) - lead_ns)
    keep(paths[1], first_start(truth, truth.files[1], 3) - lead_ns, 1 << 60)

    report = bubbleviz.analyze(paths)

    held = {i.index: {own.rank for own in i.ranks} for i in report.iterations}
    assert held == {
        **{key: {0} for key in (0, 1, 2)},
        **{key: {0, 1} for key in (3, 4)},
        **{key: {1} for key in (5, 6, 7)},
    }
    for rank in (0, 1):
        own = report.profiles[rank]
        assert own.clock_uncertainty_ns is not None
        assert Clocks(truth).error_ns(own, rank) <= own.clock_uncertainty_ns


def test_a_clock_that_is_set_moves_no_iteration(tmp_path: Path) -> None:
    planting = replace(
        SHORT, servers=2, iterations=10, jitter=0.005, transfer_jitter=0, clock_error_ns=(0, 10**6)
    )
    paths, truth = planted(planting, tmp_path)
    jumping(paths[1], first_start(truth, truth.files[1], 2) - 2_000_000, -5_000_000)

    report = bubbleviz.analyze(paths)

    assert len(report.iterations) == 10
    assert report.contradicted("schedule")
    uncertainty = report.profiles[1].clock_uncertainty_ns
    assert uncertainty is not None
    assert uncertainty > 2_500_000


@pytest.mark.parametrize("named", [True, False])
def test_what_pairs_iterations_without_names_is_told(named: bool, tmp_path: Path) -> None:
    paths, _ = planted(replace(SHORT, iterations=6, iteration_ranges=named), tmp_path)

    report = bubbleviz.analyze(paths)

    told = [n.reason for n in report.limitations if n.what.startswith("how iterations of the")]
    assert len(told) == (not named)
    for reason in told:
        assert "how long their iterations take" in reason
        assert "the next best pairing" in reason


def test_iterations_that_nothing_tells_apart_are_not_paired(tmp_path: Path) -> None:
    # As much as an iteration takes: counts and UTC contradict each other.
    errors = (0, 40_000_000, -40_000_000, 40_000_000)
    alike = replace(SHORT, iterations=5, jitter=0, transfer_jitter=0, clock_error_ns=errors)
    paths, _ = planted(alike, tmp_path)

    report = bubbleviz.analyze(paths)

    (note,) = (n for n in report.limitations if n.what.startswith("which iterations of the ranks"))
    assert "is off by 1 iteration and moves clocks by" in note.reason
    assert "name iterations in the ranges" in note.reason
    assert [p.clock_uncertainty_ns for p in report.profiles[1:]] == [None] * 3


def test_equal_counts_that_utc_agrees_with_pair_iterations(tmp_path: Path) -> None:
    alike = replace(SHORT, iterations=5, jitter=0, transfer_jitter=0, clock_error_ns=())
    paths, _ = planted(alike, tmp_path)

    report = bubbleviz.analyze(paths)

    (note,) = (n for n in report.limitations if n.what.startswith("how iterations of the"))
    assert "equal counts, which UTC agrees with" in note.reason
    assert "would need clocks that are off by more than half an iteration" in note.reason
    assert None not in [p.clock_uncertainty_ns for p in report.profiles]


@pytest.mark.parametrize("off", [-5000, -194, -20, 150, 200, 1000])
def test_utc_that_is_off_by_an_iteration_pairs_no_other_iterations(
    off: int, tmp_path: Path
) -> None:
    planting = with_period(
        replace(SHORT, stages=2, servers=2, iterations=6, jitter=0.02), 194_000_000
    )
    paths, truth = planted(replace(planting, clock_error_ns=(0, off * 1_000_000)), tmp_path)

    report = bubbleviz.analyze(paths, align="causal")

    check(report, truth)
    assert len(report.iterations) == 6


@pytest.mark.parametrize("step", [-20_000_000, -200_000, 200_000, 1_000_000, 20_000_000])
@pytest.mark.parametrize("host", [0, 1])
def test_a_clock_that_is_set_leaves_no_ratio_without_the_truth(
    host: int, step: int, tmp_path: Path
) -> None:
    planting = with_period(
        replace(SHORT, stages=2, servers=2, iterations=8, jitter=0.02), 194_000_000
    )
    steps = (step, 0) if host == 0 else (0, step)
    planting = replace(planting, step_ns=steps, step_at_ns=760_000_000)
    paths, truth = planted(planting, tmp_path)

    report = bubbleviz.analyze(paths, align="causal")

    clocks = Clocks(truth)
    assert len(report.iterations) == 8
    for rank, own in enumerate(report.profiles):
        assert own.clock_uncertainty_ns is not None
        assert clocks.error_ns(own, rank) <= own.clock_uncertainty_ns + 2
    for iteration, true in zip(report.iterations, truth.iterations, strict=True):
        for name, ratio in iteration.ratios.items():
            if ratio.value is not None:
                assert ratio.contradicted, name
            if ratio.interval is not None:
                low, high = ratio.interval
                assert low - 1e-9 <= (true.bubble_ratio[name] or 0) <= high + 1e-9
    assert any(n.what.startswith("clocks that were set") for n in report.limitations)


def test_utc_that_contradicts_dependencies_is_told(tmp_path: Path) -> None:
    paths, _ = planted(SHORT, tmp_path)

    report = bubbleviz.analyze(paths, align="utc")

    (note,) = (n for n in report.limitations if n.what.endswith("contradict each other"))
    assert "by UTC it ran" in note.reason
    assert report.headline == "schedule"  # what overlaps by these clocks does not overlap
    assert report.contradicted("schedule")
    assert not report.contradicted("stage")


def test_a_host_that_counts_its_devices_otherwise_mixes_no_pipelines(tmp_path: Path) -> None:
    planting = replace(SHORT, replicas=2, servers=4, jitter=0.1, barrier=True)
    paths, truth = planted(planting, tmp_path)
    with closing(sqlite3.connect(paths[1])) as db, db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 1 - deviceId")
        db.execute("UPDATE TARGET_INFO_CUDA_DEVICE SET cudaId = 1 - cudaId")

    report = bubbleviz.analyze(paths, align="causal")

    true = {(r.file, r.pid): r.pipeline for r in truth.ranks}
    found = {
        (truth.files[r.profile].path, r.pid): r.pipeline
        for r in report.ranks
        if r.pipeline is not None
    }
    assert found in ({}, true, {key: 1 - own for key, own in true.items()})
    for rank in truth.ranks:
        own = report.profiles[[f.path for f in truth.files].index(rank.file)]
        assert own.clock_uncertainty_ns is not None
        assert Clocks(truth).error_ns(own, rank.rank) <= own.clock_uncertainty_ns


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 0, 2, 3]])
def test_an_order_that_waits_speak_against_is_told(order: list[int], tmp_path: Path) -> None:
    paths, _ = planted(SHORT, tmp_path)

    report = bubbleviz.analyze(paths, order=order)

    assert any("given with --order" in n.reason for n in report.limitations)


def test_containers_that_share_a_clock_by_word_are_put_by_utc(tmp_path: Path) -> None:
    paths, truth = planted(replace(SHORT, clock_error_ns=()), tmp_path)
    hosts = sorted({file.host for file in truth.files})

    report = bubbleviz.analyze(paths, same_clock=[hosts])

    started = [file.utc_epoch_ns for file in truth.files]
    assert [p.clock_offset_ns for p in report.profiles] == [s - started[0] for s in started]
    assert {p.clock_uncertainty_ns for p in report.profiles} == {0}
