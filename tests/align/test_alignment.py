"""Alignment of several hosts: planted jobs with known clocks, and contradicting clocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bubbleviz
from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.limitations import list_harmful_subjects
from bubbleviz.model.operations import ProfileSummary
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps
from tests.planting import plant
from tests.planting.options import Planting
from tests.planting.truth import TrueOperation, Truth
from tests.support.edited_databases import edit_database
from tests.support.host_clocks import find_first_start, set_period
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.pipeline_jobs import Job, simulate_job

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
#: A run without sends and receives.
SILENT = Planting(stages=4, microbatches=8, iterations=3, jitter=0.02, communication=False)
NO_UTC = "DROP TABLE TARGET_INFO_SESSION_START_TIME"
HOST = "UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{}' WHERE name = 'Hostname'"

#: Time in ns by which the forwards and backwards of a rank are shifted.
EARLY_NS = 25_000_000
#: Captures of half a minute.
#: In this time, the drift exceeds the uncertainty due to transfers.
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
    "V": replace(SHORT, schedule="zb-v", stages=6, servers=3, microbatches=12),
    "V, long, drifting": replace(LONG, schedule="zb-v", microbatches=8, iterations=2),
    "split backward": replace(SHORT, schedule="zb-h1", drift_ppb=DRIFTS),
    "no transfers seen": replace(SHORT, communication=False),
    "receives inside F": replace(SHORT, nested_receive_ns=100_000, kernels=4),
    "one file per rank": replace(SHORT, stages=8, files="rank", drift_ppb=DRIFTS),
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
    "tensor parallel": replace(SHORT, tensor=2, drift_ppb=DRIFTS),
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
    "replicas of tensor parallel, sizes told": replace(
        SHORT, tensor=2, replicas=2, servers=8, barrier=True, files="rank"
    ),
}


def measure_error_ns(truth: Truth, summary: ProfileSummary, rank: int) -> float:
    """Return the maximum error of a rank's operation times after alignment, in ns.

    The clock of the first profile is the reference.
    """
    operations = spans(truth, rank)
    file_ns = np.array([op.file_start_ns for op in operations], np.int64)
    true_ns = np.array([op.start_ns for op in operations], np.int64)
    drifted = np.rint((file_ns - summary.clock_t0_ns) * summary.clock_drift_ppm * 1e-6)
    told_ns = file_ns + summary.clock_offset_ns + drifted
    return float(np.abs(told_ns - truth.files[0].clock.of(true_ns)).max())


def measure_permitted_ns(truth: Truth, host: str) -> float:
    """Return half the width of the clock interval that F and B permit, without drift, in ns."""
    hosts = sorted({file.host for file in truth.files})
    location = {rank.rank: (hosts.index(rank.host), rank.pipeline) for rank in truth.ranks}
    bounds = {
        (
            op.iteration,
            location[op.rank][1],
            op.microbatch,
            op.virtual_stage,
            op.phase == "F",
        ): op
        for op in truth.operations
        if op.phase in ("F", "B", "BW") and op.start_ns is not None and op.complete
    }
    min_gap_ns = np.full((len(hosts), len(hosts)), np.inf)
    np.fill_diagonal(min_gap_ns, 0)
    for (k, p, mb, stage, forward), op in bounds.items():
        assert stage is not None
        source = bounds.get((k, p, mb, stage - 1 if forward else stage + 1, forward))
        if source is not None and op.start_ns is not None and source.end_ns is not None:
            pair = location[op.rank][0], location[source.rank][0]
            min_gap_ns[pair] = min(min_gap_ns[pair], op.start_ns - source.end_ns)
    for via in range(len(hosts)):
        min_gap_ns = np.minimum(min_gap_ns, min_gap_ns[:, [via]] + min_gap_ns[[via], :])
    own_index, first = hosts.index(host), hosts.index(truth.files[0].host)
    return float(min_gap_ns[own_index, first] + min_gap_ns[first, own_index]) / 2


def spans(truth: Truth, rank: int | None = None) -> list[TrueOperation]:
    return [
        op
        for op in truth.operations
        if op.start_ns is not None and (rank is None or op.rank == rank)
    ]


def check(report: Report, truth: Truth) -> None:
    """Check every operation and ratio of a report against the truth."""
    files = {file.path: n for n, file in enumerate(truth.files)}
    for rank in truth.ranks:
        profile = report.profiles[files[rank.file]]
        assert profile.clock_uncertainty_ns is not None
        assert measure_error_ns(truth, profile, rank.rank) <= profile.clock_uncertainty_ns + 2, rank
    capture = max(op.end_ns or 0 for op in spans(truth)) - min(
        op.start_ns or 0 for op in spans(truth)
    )
    for file, profile in zip(truth.files, report.profiles, strict=True):
        assert profile.clock_uncertainty_ns is not None
        if file.host == truth.files[0].host:
            assert profile.clock_uncertainty_ns == 0
        elif not truth.planting.nested_receive_ns:  # this F begins before its input can exist
            half = measure_permitted_ns(truth, file.host)
            assert profile.clock_uncertainty_ns <= 1.1 * half + 50e-6 * capture
    for iteration, true in zip(report.iterations, truth.iterations, strict=True):
        ratio, right = iteration.ratios["schedule"], true.bubble_ratio["schedule"]
        assert (ratio.value is None) == (right is None)
        if ratio.value is not None and right is not None:
            assert ratio.interval is not None
            low, high = ratio.interval
            assert low <= ratio.value <= high
            assert low - 1e-9 <= right <= high + 1e-9


def list_reasons(report: Report, subject: str) -> list[str]:
    """Return the reasons of the limitations whose subject starts or ends with ``subject``."""
    return [
        n.reason
        for n in report.limitations
        if n.what.startswith(subject) or n.what.endswith(subject)
    ]


def plant_run(planting: Planting, folder: Path) -> tuple[list[Path], Truth]:
    truth = plant(planting, folder)
    return [folder / file.path for file in truth.files], truth


@pytest.mark.parametrize("name", JOBS)
def test_every_operation_lies_within_the_uncertainty(name: str, tmp_path: Path) -> None:
    planting = JOBS[name]
    paths, truth = plant_run(planting, tmp_path)
    sizes = bubbleviz.Parallel(tp=planting.tensor, pp=planting.stages, dp=planting.replicas)

    report = bubbleviz.analyze(
        paths, align="causal", parallel=sizes if name.endswith("sizes told") else None
    )

    check(report, truth)
    if {r.pipeline for r in report.ranks} == {None}:
        # Replicas on one machine run in lockstep, so each may belong to either pipeline.
        assert name == "tensor parallel"
        assert [r.stage for r in report.ranks] == sorted(r.stage for r in truth.ranks)
        return
    assert [r.stage for r in report.ranks] == [
        r.stage for r in sorted(truth.ranks, key=lambda r: (r.pipeline, r.stage))
    ]
    assert [r.pipeline for r in report.ranks] == sorted(r.pipeline for r in truth.ranks)


def test_a_drift_is_reported_only_if_it_is_needed(tmp_path: Path) -> None:
    short, _ = plant_run(replace(SHORT, drift_ppb=DRIFTS), tmp_path / "short")
    long, truth = plant_run(LONG, tmp_path / "long")

    assert all(p.clock_drift_ppm == 0 for p in bubbleviz.analyze(short).profiles)
    profiles = bubbleviz.analyze(long).profiles
    for profile, file in zip(profiles[1:], truth.files[1:], strict=True):
        right = (truth.files[0].clock.drift_ppb - file.clock.drift_ppb) / 1000
        assert profile.clock_uncertainty_ns is not None
        # Both ends of the capture may be off by the uncertainty.
        error_ppm = (
            2 * profile.clock_uncertainty_ns / max(op.end_ns or 0 for op in truth.operations) * 1e6
        )
        assert profile.clock_drift_ppm == pytest.approx(right, abs=error_ppm)


def test_utc_is_trusted_if_the_user_asks_for_it(tmp_path: Path) -> None:
    paths, truth = plant_run(SHORT, tmp_path)

    report = bubbleviz.analyze(paths, align="utc")

    started = [file.clock.utc_epoch_ns for file in truth.files]
    assert [p.clock_offset_ns for p in report.profiles] == [s - started[0] for s in started]
    assert [p.clock_uncertainty_ns for p in report.profiles] == [0, None, None, None]
    assert report.iterations[0].ratios["schedule"].value is not None
    assert report.iterations[0].ratios["schedule"].interval is None
    assert any("NTP" in n.reason for n in report.limitations)
    # Dependencies contradict UTC: operations overlap by UTC although one depends on the other.
    assert "according to UTC it ran" in list_reasons(report, "contradict each other")[0]
    assert report.headline == "schedule"
    assert report.contradicted("schedule")
    assert not report.contradicted("stage")
    # A profile that lacks UTC is reported.
    edit_database(paths[2], NO_UTC)
    assert list_reasons(bubbleviz.analyze(paths, align="causal"), "clock of a profile") == []
    assert list_reasons(bubbleviz.analyze(paths, align="utc"), "clock of a profile") == [
        f"{paths[2]} does not record when its session started, so its times are used unchanged"
    ]


def test_one_host_needs_no_alignment(tmp_path: Path) -> None:
    paths, _ = plant_run(replace(SHORT, servers=1, files="rank"), tmp_path)

    causal, utc, none = (bubbleviz.analyze(paths, align=a) for a in ("causal", "utc", "none"))

    ratio = causal.iterations[0].ratios["schedule"]
    assert ratio == utc.iterations[0].ratios["schedule"] == none.iterations[0].ratios["schedule"]
    assert ratio.value is not None
    assert ratio.interval == (ratio.value, ratio.value)
    assert none.headline == "schedule"
    assert none.headline_reason == "iterations do not overlap, so each is measured on its own"
    with pytest.raises(UsageError, match="must be one of causal, utc, none"):
        bubbleviz.analyze(paths, align="ptp")


def test_contradicting_clocks_are_named(tmp_path: Path) -> None:
    paths, truth = plant_run(replace(SHORT, stages=4, servers=2, iterations=8), tmp_path)
    jump_ns = (find_first_start(truth, truth.files[1], 4) or 0) + 10_000_000
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        for column in ("start", "end"):
            update = f"UPDATE {table} SET {column} = {column} + 3000000 WHERE {column} >= {jump_ns}"
            edit_database(paths[1], update)

    report = bubbleviz.analyze(paths)

    (reason,) = list_reasons(report, "contradict each other")
    assert all(
        words in reason
        for words in ("node0", "node1", "needs the result of 'B", "needs the result of 'F")
    )
    missed = float(reason.split("the error is at least ")[1].split(" us")[0].replace(",", ""))
    assert missed == pytest.approx(3_000, rel=0.1)
    for iteration in report.iterations:
        defined_ratios = {n for n, r in iteration.ratios.items() if r.value is not None}
        assert {n for n, r in iteration.ratios.items() if r.contradicted} == defined_ratios
        assert {"schedule", "stage", "step"} <= defined_ratios
    uncertainty = report.profiles[1].clock_uncertainty_ns
    assert uncertainty is not None
    assert uncertainty > 1_300_000


def test_a_missing_server_in_the_middle_is_reported(tmp_path: Path) -> None:
    planting = replace(SHORT, stages=6, servers=3, absent=(1,))
    named_files, truth = plant_run(replace(planting, iteration_ranges=True), tmp_path / "named")
    unnamed, _ = plant_run(planting, tmp_path / "unnamed")

    report = bubbleviz.analyze(named_files)

    assert "ranks 2, 3," in list_reasons(report, "ranks without a profile")[0]
    assert all(i.ratios["schedule"].incomplete for i in report.iterations)
    # Causality reaches across the missing profile: the bounds are looser but still correct.
    last = report.profiles[1]
    assert measure_error_ns(truth, last, 4) <= (last.clock_uncertainty_ns or 0)
    assert list_reasons(bubbleviz.analyze(unnamed), "stages that may be missing")
    # At an end of the pipeline, receives reveal a missing server.
    for end in (0, 2):
        end_files, _ = plant_run(replace(planting, absent=(end,)), tmp_path / str(end))
        report = bubbleviz.analyze(end_files)
        assert list_reasons(report, "stages without a profile")
        assert all(i.ratios["schedule"].incomplete for i in report.iterations)


@pytest.mark.parametrize("iteration_ranges", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_later_server_has_later_stages(
    iteration_ranges: bool, replicas: int, tmp_path: Path
) -> None:
    """With rank numbers, stages are correct. Without them, the first recorded stage is stage 0."""
    paths, _ = plant_run(
        replace(
            SHORT,
            stages=8,
            replicas=replicas,
            absent=(0, 2, 3),
            names="constant",
            iteration_ranges=iteration_ranges,
        ),
        tmp_path,
    )

    report = bubbleviz.analyze(paths)

    first = 2 if iteration_ranges else 0
    assert {rank.stage for rank in report.ranks} == {first, first + 1}
    assert list_reasons(report, "stages without a profile")
    assert bool(list_reasons(report, "stage numbers")) is not iteration_ranges
    assert all(i.ratios["schedule"].incomplete for i in report.iterations)


def test_indistinguishable_replicas_give_looser_bounds(tmp_path: Path) -> None:
    # The ranks run in lockstep to the nanosecond, so either pair of ranks may be a pipeline.
    planting = replace(
        SHORT, replicas=2, servers=8, barrier=True, jitter=0, transfer_jitter=0, iterations=2
    )
    paths, truth = plant_run(planting, tmp_path)

    report = bubbleviz.analyze(paths, align="causal")

    assert sorted(r.stage for r in report.ranks if r.stage is not None) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {r.pipeline for r in report.ranks} == {None}
    assert list_reasons(report, "pipelines")
    assert {i.ratios["schedule"].value for i in report.iterations} == {None}
    for rank in truth.ranks:
        profile = report.profiles[[f.path for f in truth.files].index(rank.file)]
        if profile.clock_uncertainty_ns is not None:
            assert measure_error_ns(truth, profile, rank.rank) <= profile.clock_uncertainty_ns


def test_impossible_sizes_are_refused(tmp_path: Path) -> None:
    paths, _ = plant_run(SHORT, tmp_path)
    for ranks, possible_sizes in ((16, {"tp": 2, "pp": 4, "dp": 2}), (2, {"pp": 2})):
        with pytest.raises(MismatchError, match=f"makes {ranks} ranks"):
            bubbleviz.analyze(paths, parallel=bubbleviz.Parallel(**possible_sizes))
    for sizes in ({"tp": 0}, {"pp": -4}, {"dp": 1_000_001}, {"tp": 10**9, "dp": 10**9}):
        with pytest.raises(UsageError, match="must not exceed 1,000,000 ranks"):
            bubbleviz.Parallel(**sizes)


def test_one_microbatch_fewer_may_mean_a_missing_range(tmp_path: Path) -> None:
    plant(Planting(stages=2, files="rank"), tmp_path)
    edit_database(tmp_path / "rank1.sqlite", "DELETE FROM NVTX_EVENTS WHERE text GLOB '[FB]7.*'")

    with pytest.raises(MismatchError, match="or a range is missing from one"):
        bubbleviz.analyze(tmp_path)


def test_a_lost_forward_and_a_different_backward_do_not_mean_fewer_microbatches(
    tmp_path: Path,
) -> None:
    plant(Planting(stages=2, files="rank"), tmp_path)
    is_removed = "text GLOB 'F7.*' OR text GLOB 'B6.*'"
    edit_database(tmp_path / "rank1.sqlite", f"DELETE FROM NVTX_EVENTS WHERE {is_removed}")

    report = bubbleviz.analyze(tmp_path)

    assert not any(i.averaged for i in report.iterations)
    assert list_reasons(report, "a forward has no backward with the same number")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("absent", [(3,), (2, 3)])
def test_without_transfers_a_missing_last_stage_is_reported_and_no_host_is_blamed(
    absent: tuple[int, ...], schedule: str, tmp_path: Path
) -> None:
    planting = replace(SILENT, schedule=schedule, files="rank", absent=absent)
    report = bubbleviz.analyze(plant_run(planting, tmp_path / "run")[0])

    assert list_reasons(report, "stages that may be missing")
    assert (describe_first_steps(report) or "").startswith("Check for missing profiles")
    assert not any(advice.kind == "launch" for advice in report.advice)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-v", "looped-bfs"])
@pytest.mark.parametrize("late_ns", [0, 400_000, 2_500_000])
def test_a_late_host_of_the_last_stage_does_not_suggest_missing_stages(
    late_ns: int, schedule: str, tmp_path: Path
) -> None:
    planting = replace(SILENT, schedule=schedule, late_stage=3, late_ns=late_ns)
    report = bubbleviz.analyze(plant_run(planting, tmp_path / "run")[0])

    assert not list_reasons(report, "stages that may be missing")
    assert Cause.UNKNOWN not in report.explanation.bubbles.cause


def test_captures_far_apart_in_utc_are_one_run_if_the_user_says_so(tmp_path: Path) -> None:
    hour = 3600 * SECOND
    paths, truth = plant_run(replace(SHORT, clock_error_ns=(0, hour, 2 * hour, 3 * hour)), tmp_path)

    with pytest.raises(MismatchError, match="not from one run"):
        bubbleviz.analyze(paths)
    check(bubbleviz.analyze(paths, align="causal"), truth)


def test_containers_of_one_machine_have_one_clock(tmp_path: Path) -> None:
    """Each container numbers its own processes, so equal ids do not mean the same process."""
    paths, truth = plant_run(replace(SHORT, clock_error_ns=()), tmp_path)
    for path in paths:
        edit_database(path, "UPDATE TARGET_INFO_SESSION_START_TIME SET systemClockNs = NULL")
    hosts = [file.host for file in truth.files]
    pids = {rank.pid for rank in bubbleviz.analyze(paths).ranks}

    report = bubbleviz.analyze(paths, same_clock=[hosts[:2], hosts[2:]])

    assert len(pids) < len(hosts)
    assert [p.clock_uncertainty_ns == 0 for p in report.profiles] == [True, True, False, False]
    assert report.profiles[2].clock_uncertainty_ns == report.profiles[3].clock_uncertainty_ns
    check(report, truth)
    # Hosts that are declared to share a clock are aligned by UTC.
    report = bubbleviz.analyze(paths, same_clock=[sorted(set(hosts))])
    started = [file.clock.utc_epoch_ns for file in truth.files]
    assert [p.clock_offset_ns for p in report.profiles] == [s - started[0] for s in started]
    assert {p.clock_uncertainty_ns for p in report.profiles} == {0}


@pytest.mark.parametrize(
    "statement", [HOST.format("localhost"), NO_UTC], ids=["one name", "no UTC"]
)
def test_each_machine_has_a_separate_clock(statement: str, tmp_path: Path) -> None:
    paths, truth = plant_run(replace(SHORT, stages=4, servers=4), tmp_path)
    for path in paths:
        edit_database(path, statement)

    report = bubbleviz.analyze(paths)

    assert [p.clock_uncertainty_ns == 0 for p in report.profiles] == [True, False, False, False]
    assert len({r.label for r in report.ranks}) == 4
    check(report, truth)


@pytest.mark.parametrize(
    ("forwards", "session_ns", "bounds"),
    [
        # Host b may be shifted by at least -50 and at most 40.
        ([(150, 250, "gemm")], 0, (-5, 46)),
        # The F of host b begins with a kernel that needs no input.
        # It receives inside its range until 160, and may lie before the session's time 0.
        *(
            (
                [(50, 70, "gemm"), (60, 160, "ncclDevKernel_SendRecv"), (160, 250, "gemm")],
                at,
                (-10, 51),
            )
            for at in (0, 1_000)
        ),
    ],
)
def test_bounds_follow_from_the_events(
    forwards: list[tuple[int, int, str]],
    session_ns: int,
    bounds: tuple[int, int],
    tmp_path: Path,
) -> None:
    """On host a: F [0, 100], B [400, 500]. On host b: F until 250, B [260, 360]."""
    paths = []
    for pid, (forward, b) in enumerate((([(0, 100, "gemm")], (400, 500)), (forwards, (260, 360)))):
        kernels, calls = [], []
        for n, (start, end, name) in enumerate((*forward, (*b, "gemm"))):
            call_ns = (-30 if n == len(forward) else -50 + n) - session_ns
            calls.append(C(call_ns, call_ns, n, tid=pid, pid=pid))
            stream = 9 if "nccl" in name else 7
            kernels.append(K(start - session_ns, end - session_ns, n, name, pid=pid, stream=stream))
        ranges = [
            R(-55 - session_ns, -40 - session_ns, "F0.0.0", tid=pid, pid=pid),
            R(-31 - session_ns, -28 - session_ns, "B0.0.0", tid=pid, pid=pid),
        ]
        host = f"host{pid}"
        name = f"{pid}.sqlite"
        paths.append(write_profile(tmp_path, kernels, calls, ranges, name=name, hostname=host))

    report = bubbleviz.analyze(paths, order=[0, 1])

    clock, ratio = report.profiles[1], report.iterations[0].ratios["schedule"]
    assert (clock.clock_offset_ns, clock.clock_uncertainty_ns) == bounds
    if (
        len(forwards) == 1
    ):  # whatever the clocks, the window of host a contains the window of host b
        assert ratio.window_ns == 500
        assert ratio.interval == pytest.approx((0.6, 0.6), abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"iterations": 6, "iteration_ranges": True}, ()),
        ({"iterations": 6}, ("and by event times", "the next best match")),
        (
            {"iterations": 5, "jitter": 0, "transfer_jitter": 0, "clock_error_ns": ()},
            (
                "matched by data dependencies, capture times, iteration counts and UTC. The least",
                "would require clocks that are wrong by more than half an iteration",
            ),
        ),
    ],
    ids=["named", "varied", "alike"],
)
def test_the_report_says_how_unnamed_iterations_were_paired(
    changes: dict[str, Any], expected: tuple[str, ...], tmp_path: Path
) -> None:
    paths, _ = plant_run(replace(SHORT, **changes), tmp_path)

    report = bubbleviz.analyze(paths)

    reasons = list_reasons(report, "iterations across hosts")
    assert len(reasons) == (len(expected) > 0)
    assert all(words in reason for reason in reasons for words in expected)
    # Pictures do not mention a match that is almost certain.
    assert list_harmful_subjects(report.limitations) == ""
    assert None not in [p.clock_uncertainty_ns for p in report.profiles]
    if "jitter" not in changes:
        return
    # With an error of one iteration length, iteration counts and UTC contradict each other.
    errors = (0, 40_000_000, -40_000_000, 40_000_000)
    paths, _ = plant_run(replace(SHORT, **changes | {"clock_error_ns": errors}), tmp_path / "off")
    report = bubbleviz.analyze(paths)
    (reason,) = list_reasons(report, "iterations across ranks")
    assert "differs by 1 iteration (clocks moved by" in reason
    assert "name iterations in ranges" in reason
    assert [p.clock_uncertainty_ns for p in report.profiles[1:]] == [None] * 3


PERIODIC = set_period(replace(SHORT, stages=2, servers=2, jitter=0.02), 194_000_000)


@pytest.mark.parametrize("step", [-20_000_000, -200_000, 200_000, 1_000_000, 20_000_000])
@pytest.mark.parametrize("host", [0, 1])
def test_a_clock_step_does_not_make_a_ratio_miss_the_truth(
    host: int, step: int, tmp_path: Path
) -> None:
    steps = (step, 0) if host == 0 else (0, step)
    planting = replace(PERIODIC, iterations=8, step_ns=steps, step_at_ns=760_000_000)
    paths, truth = plant_run(planting, tmp_path)

    report = bubbleviz.analyze(paths, align="causal")

    assert len(report.iterations) == 8
    for rank, profile in enumerate(report.profiles):
        assert profile.clock_uncertainty_ns is not None
        assert measure_error_ns(truth, profile, rank) <= profile.clock_uncertainty_ns + 2
    for iteration, true in zip(report.iterations, truth.iterations, strict=True):
        for name, ratio in iteration.ratios.items():
            if ratio.value is not None:
                assert ratio.contradicted, name
            if ratio.interval is not None:
                low, high = ratio.interval
                assert low - 1e-9 <= (true.bubble_ratio[name] or 0) <= high + 1e-9
    assert list_reasons(report, "clocks set during the capture")


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 0, 2, 3]])
@pytest.mark.parametrize("servers", [1, 4])
def test_an_impossible_order_is_accepted_and_reported(
    order: list[int], servers: int, tmp_path: Path
) -> None:
    paths, _ = plant_run(replace(SHORT, servers=servers), tmp_path)
    inferred = bubbleviz.analyze(paths).ranks

    report = bubbleviz.analyze(paths, order=order)

    assert [r.label for r in report.ranks] == [inferred[n].label for n in order]
    message = "order set by --order or --parallel contradicts"
    assert any(message in n.reason for n in report.limitations)


@pytest.mark.parametrize("by_ns", [-2_000_000, 0, 2_000_000])
def test_ranks_of_one_host_that_contradict_each_other_are_named(by_ns: int, tmp_path: Path) -> None:
    """According to their common clock, one rank received data before the other produced it."""
    paths, _ = plant_run(replace(SHORT, stages=4, servers=1, files="rank"), tmp_path)
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        edit_database(paths[2], f"UPDATE {table} SET start = start + {by_ns}, end = end + {by_ns}")

    report = bubbleviz.analyze(paths, same_clock=[["node0"]])

    reasons = list_reasons(report, "ranks on one host contradict each other")
    assert len(reasons) == (by_ns != 0)
    assert not report.contradicted("schedule")
    for reason in reasons:
        missed_us = float(reason.split("clock it ran ")[1].split(" us")[0].replace(",", ""))
        assert missed_us == pytest.approx(2_000, rel=0.1)
        assert f"(virtual stages {'2 and 1' if by_ns < 0 else '3 and 2'})" in reason


@pytest.mark.parametrize("messages", [True, False])
def test_a_rank_of_a_table_that_works_before_its_input_exists_is_named(
    messages: bool, tmp_path: Path
) -> None:
    """The forwards and backwards of a rank are early, but its sends and receives are not."""
    job = simulate_job(Job(replicas=1, messages=messages, launches=False, iterations=4))
    rows = [
        row | {"start_ns": int(row["start_ns"]) - EARLY_NS, "end_ns": int(row["end_ns"]) - EARLY_NS}
        if row["rank"] == 1 and row["phase"] in {"F", "B", "W", "BW"}
        else row
        for row in job.rows
    ]

    report = bubbleviz.analyze(replace(job, rows=rows).written(tmp_path / "early.csv"))

    (reason,) = list_reasons(report, "ranks on one host contradict each other")
    missed_us = float(reason.split("clock it ran ")[1].split(" us")[0].replace(",", ""))
    assert missed_us == pytest.approx(EARLY_NS / 1e3, abs=400)
    assert reason.count("(iteration ") == 2
    assert list_reasons(bubbleviz.analyze(job.written(tmp_path / "right.csv")), "contradict") == []


def test_one_host_is_not_reported_to_have_several_clocks(tmp_path: Path) -> None:
    # Constant names do not distinguish iterations, so the iterations cannot be paired.
    paths, _ = plant_run(Planting(names="constant", optimizer_ns=-1, iterations=3), tmp_path)
    report = bubbleviz.analyze(paths)
    (reason,) = list_reasons(report, "iterations across ranks")
    assert "hosts" not in reason
