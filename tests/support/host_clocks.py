"""Generates jobs on several hosts whose clocks are wrong, and checks the reports on the jobs.

``python -m scripts.score_inference clocks`` simulates random jobs and counts their outcomes::

    right     iterations are paired correctly, and errors are within the reported uncertainty
    unknown   the report states that the pairing is unknown
    wrong     anything else, which must never happen
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import bubbleviz
from bubbleviz.errors import BubblevizError
from bubbleviz.model.columns import Ints
from bubbleviz.model.phases import COUNTED
from bubbleviz.report.report import Report
from tests.planting import plant
from tests.planting.options import Planting
from tests.planting.truth import TrueFile, Truth

MS = 1_000_000
SECOND = 1000 * MS
#: Half-open range of the iterations that the capture of a host contains.
Held = tuple[int, int]


@dataclass(frozen=True)
class Job:
    """A synthetic job.

    ``held`` is the range of iterations in each host's capture, or () for all.
    """

    planting: Planting
    held: tuple[Held, ...] = ()
    inside: float = 0.0

    @property
    def name(self) -> str:
        """Short description of the job's clocks and captures."""
        p = self.planting
        period_ms = estimate_iteration_ns(p) // MS
        errors = "/".join(str(e // MS) for e in p.clock_error_ns[: p.servers])
        steps = [s / 1e6 for s in p.step_ns if s]
        return (
            f"{p.schedule} servers={p.servers} replicas={p.replicas} iterations={p.iterations} "
            f"period={period_ms}ms jitter={p.jitter} errors={errors}ms held={self.held} "
            f"inside={self.inside} steps={steps} seed={p.seed}"
        )


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job: ``right``, ``unknown`` or ``wrong``, with the reason."""

    kind: str
    reason: str = ""


def estimate_iteration_ns(planting: Planting) -> int:
    """Estimate the length of an iteration, in ns."""
    work = planting.forward_ns + planting.backward_ns + planting.weight_ns
    return (planting.microbatches + planting.stages - 1) * work + max(planting.optimizer_ns, 0)


def set_period(planting: Planting, period_ns: int) -> Planting:
    """Return a copy of the planting, scaled to iterations of about ``period_ns``."""
    part = period_ns // (3 * (planting.microbatches + planting.stages - 1))
    return replace(
        planting,
        forward_ns=part,
        backward_ns=part,
        weight_ns=part,
        optimizer_ns=max(part // 2, 10_000),
    )


def find_outcome(job: Job) -> Outcome:
    """Simulate a job, analyze it, and compare the report with the truth."""
    with TemporaryDirectory() as folder:
        truth = plant(job.planting, Path(folder))
        paths = [Path(folder) / file.path for file in truth.files]
        for number, path in enumerate(paths):
            if job.held:
                cut_export(path, *_find_extent(job, truth, truth.files[number], job.held[number]))
        try:
            report = bubbleviz.analyze(paths, align="causal")
        except BubblevizError as error:
            return Outcome("unknown", f"refused: {error}")
    # The truth has no ratio for an iteration that is cut off by the end of a capture.
    lows, highs = zip(*(job.held or [(-1, job.planting.iterations + 1)]), strict=True)
    return compare_with_truth(report, truth, range(max(lows) + 1, min(highs) - 1))


def compare_with_truth(report: Report, truth: Truth, complete_iterations: range) -> Outcome:
    """Compare a report with the truth.

    The outcome is "wrong" if the true value of a clock or a ratio is outside the reported bounds.
    It is also "wrong" if iterations are paired incorrectly and no limitation says so. Otherwise, it
    is "right" if all clocks are aligned, and "unknown" if not.

    Args:
        report: Report of the analysis.
        truth: Truth about the job.
        complete_iterations: Iterations whose ratios are compared.
    """
    unpaired = [n for n in report.limitations if n.what.startswith("iterations across ranks")]
    is_paired = _has_known_offsets(report)
    true_iterations = _find_true_iterations(report, truth)
    pairs = {
        (int(k), t)
        for k, t in zip(report.operations.iteration, true_iterations, strict=True)
        if k >= 0 <= t
    }
    mixed = len({k for k, _ in pairs}) != len(pairs)
    values = [r.value for i in report.iterations for n, r in i.ratios.items() if n != "stage"]
    if mixed:
        is_reported = bool(unpaired) and not is_paired and all(v is None for v in values)
        return (
            Outcome("unknown")
            if is_reported
            else Outcome("wrong", "iterations of others are paired")
        )
    problem = _find_clock_problem(report, truth, true_iterations) or _find_ratio_problem(
        report, truth, true_iterations, complete_iterations
    )
    if problem:
        return Outcome("wrong", problem)
    return Outcome(
        "right" if is_paired and not unpaired else "unknown", "" if is_paired else "no bounds"
    )


def _has_known_offsets(report: Report) -> bool:
    return all(profile.clock_uncertainty_ns is not None for profile in report.profiles)


def _find_extent(job: Job, truth: Truth, file: TrueFile, captured_range: Held) -> tuple[int, int]:
    """Return the first and the last time in a capture, on the clock of the file."""
    lead_ns = estimate_iteration_ns(job.planting) // 50
    inside_ns = round(job.inside * estimate_iteration_ns(job.planting))
    bounds = [find_first_start(truth, file, k) for k in captured_range]
    low = 0 if bounds[0] is None else bounds[0] - lead_ns + inside_ns * (captured_range[0] > 0)
    high = 1 << 60 if bounds[1] is None else bounds[1] - lead_ns + inside_ns
    return low, high


def find_first_start(truth: Truth, file: TrueFile, iteration: int) -> int | None:
    """Return the start of an iteration on the clock of a file, or None if there is none."""
    ranks = {rank.rank for rank in truth.ranks if rank.file == file.path}
    starts = [
        op.file_start_ns
        for op in truth.operations
        if op.rank in ranks and op.iteration == iteration and op.file_start_ns is not None
    ]
    return min(starts, default=None)


def cut_export(path: Path, low_ns: int, high_ns: int) -> None:
    """Delete all rows of an export whose start is outside [low_ns, high_ns)."""
    with closing(sqlite3.connect(path)) as db, db:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            db.execute(f"DELETE FROM {table} WHERE start < ? OR start >= ?", (low_ns, high_ns))


def _convert_to_file_times(report: Report, profile: int, times: Ints) -> Ints:
    """Convert times from the report's clock to a profile's clock."""
    clock = report.profiles[profile]
    ppm = clock.clock_drift_ppm * 1e-6
    session_ns = times - clock.clock_offset_ns
    return np.asarray(
        session_ns - np.rint((session_ns - clock.clock_t0_ns) * ppm / (1 + ppm)), np.int64
    )


def _find_true_iterations(report: Report, truth: Truth) -> list[int]:
    """Return the true iteration of each operation, or -1 for operations other than F, B and W.

    Operations are matched by rank and end time on the file's clock. If no true operation on the
    rank ends at exactly this time, the next one to end is used.
    """
    files = [file.path for file in truth.files]
    table = report.operations
    spanned = (table.has_span == 1) & np.isin(table.phase, COUNTED)
    true_iterations = np.full(len(table), -1, np.int64)
    for rank in report.ranks:
        (true,) = (
            r.rank
            for r in truth.ranks
            if (files.index(r.file), r.pid, r.device_id) == (rank.profile, rank.pid, rank.device_id)
        )
        ops = sorted(
            (op.file_end_ns, op.iteration)
            for op in truth.operations
            if op.rank == true and op.file_end_ns is not None
        )
        end_ns, iterations = (np.array(column, np.int64) for column in zip(*ops, strict=True))
        rows = np.flatnonzero((table.rank == rank.index) & spanned)
        file_end_ns = _convert_to_file_times(report, rank.profile, table.end_ns[rows])
        # An operation that is cut off by the end of the capture lacks its last kernels.
        nearest = np.clip(np.searchsorted(end_ns, file_end_ns - 3), 0, len(end_ns) - 1)
        true_iterations[rows] = iterations[nearest]
    return true_iterations.tolist()


def _find_clock_problem(report: Report, truth: Truth, true_iterations: Sequence[int]) -> str:
    """Describe a clock whose error exceeds its uncertainty, or return "" if there is none."""
    files = [file.path for file in truth.files]
    table, spanned = report.operations, np.array(true_iterations) >= 0
    errors_of_rank = {}
    for one in report.ranks:
        rows = np.flatnonzero((table.rank == one.index) & spanned)
        end_ns = _convert_to_file_times(report, one.profile, table.end_ns[rows])
        errors_of_rank[one.profile, one.pid, one.device_id] = int(end_ns.min()), int(end_ns.max())
    for rank in truth.ranks:
        clock = report.profiles[files.index(rank.file)]
        if clock.clock_uncertainty_ns is None:
            continue
        low, high = errors_of_rank[files.index(rank.file), rank.pid, rank.device_id]
        times = [
            (o.end_ns, o.file_end_ns)
            for o in truth.operations
            if o.rank == rank.rank and low <= (o.file_end_ns or low - 1) <= high
        ]
        true, file_ns = np.array(times, np.int64).T
        drifted = np.rint((file_ns - clock.clock_t0_ns) * clock.clock_drift_ppm * 1e-6)
        corrected_ns = file_ns + clock.clock_offset_ns + drifted
        error = float(np.abs(corrected_ns - truth.files[0].clock.of(true)).max())
        if error > clock.clock_uncertainty_ns + 2:
            return (
                f"clock of {rank.host} off by {error / 1e3:.1f} us, said "
                f"{clock.clock_uncertainty_ns / 1e3:.1f} us"
            )
    return ""


def _find_ratio_problem(
    report: Report, truth: Truth, true_iterations: Sequence[int], complete_iterations: range
) -> str:
    """Describe a ratio whose interval excludes the truth, or that is not marked for a clock step.

    The result is "" if there is none.
    """
    right = {i.index: i.bubble_ratio for i in truth.iterations}
    ranks = len(truth.ranks)
    stepped = any(file.clock.step_ns for file in truth.files)
    table = report.operations
    for iteration in report.iterations:
        rows = np.flatnonzero(
            (table.iteration == iteration.index) & (np.array(true_iterations) >= 0)
        )
        if len(iteration.ranks) < ranks or not len(rows) or not iteration.complete:
            continue
        true = true_iterations[int(rows[0])]
        if true not in complete_iterations:
            continue
        for name in ("schedule", "step", "stage", "period"):
            ratio, value = iteration.ratios.get(name), right[true][name]
            if ratio is None or ratio.value is None or value is None:
                continue
            if ratio.interval is not None:
                low, high = ratio.interval
                if not low - 1e-9 <= value <= high + 1e-9:
                    return f"{name} {value:.4f} not in {low:.4f}..{high:.4f}"
            elif not ratio.contradicted and abs(ratio.value - value) > (2e-3 if stepped else 1e-3):
                return f"{name} {ratio.value:.4f} is {value:.4f}, unmarked"
    return ""


BASE = Planting(
    transfer_ns=60_000, transfer_back_ns=150_000, transfer_jitter=0.5, session_gap_ns=SECOND // 10
)


def generate_jobs(count: int, seed: int) -> Iterator[Job]:
    """Yield random jobs with clock errors and captures of all kinds."""
    draw = random.Random(seed)
    for number in range(count):
        servers = draw.choice((2, 2, 2, 4, 4, 8))
        iterations = draw.choice((3, 3, 4, 5, 8, 12, 20))
        period = round(50 * MS * 100 ** draw.random())
        errors = [0] + [
            draw.choice((-1, 1)) * round(20 * MS * 250 ** draw.random()) for _ in range(servers - 1)
        ]
        if draw.random() < 0.3:  # the clock is wrong by about one iteration
            errors[-1] = draw.choice((-1, 1)) * round(period * draw.uniform(0.9, 1.1))
        replicas = draw.choice((1, 1, 1, 1, 2)) if servers <= 4 else 1
        planting = replace(
            BASE,
            schedule=draw.choice(("1f1b", "1f1b", "gpipe", "zb-h1")),
            stages=max(servers // replicas, 2),
            servers=servers,
            replicas=replicas,
            barrier=replicas > 1 or draw.random() < 0.3,
            microbatches=draw.choice((4, 8)),
            iterations=iterations,
            jitter=draw.choice((0.0, 0.0005, 0.002, 0.02, 0.02, 0.05, 0.1)),
            transfer_jitter=draw.choice((0.0, 0.1, 0.5)),
            clock_error_ns=tuple(errors),
            drift_ppb=tuple(draw.randint(-20_000, 20_000) for _ in range(servers)),
            communication=draw.random() < 0.7,
            seed=number,
        )
        planting = set_period(planting, period)
        yield _cut_captures(_add_clock_step(planting, draw), draw)


def _add_clock_step(planting: Planting, draw: random.Random) -> Planting:
    """With a probability of 1/5, step the clock of a random host by 0.2 to 20 ms during the run."""
    if draw.random() > 0.2:
        return planting
    step = draw.choice((-1, 1)) * round(0.2 * MS * 100 ** draw.random())
    run_ns = planting.iterations * estimate_iteration_ns(planting)
    steps = [0] * planting.servers
    steps[draw.randrange(planting.servers)] = step
    step_at_ns = round(run_ns * draw.uniform(0.3, 0.7))
    return replace(planting, step_ns=tuple(steps), step_at_ns=step_at_ns)


def _cut_captures(planting: Planting, draw: random.Random) -> Job:
    """Return a job in which the captures of some hosts begin late or end early by a few iterations.

    Two of five jobs keep complete captures. In the other jobs, the captures of some hosts begin
    later ("starts", "shifted") or end earlier ("ends"). This always affects the last host. Each
    host between the first and the last is affected with a probability of one half. In a "shifted"
    job, the captures of all other hosts end earlier.
    """
    n = planting.iterations
    sort = draw.choice(("whole", "whole", "starts", "ends", "shifted"))
    captured = []
    n_shifted = draw.randint(1, max(1, min(3, n - 2)))
    for host in range(planting.servers):
        is_shifted = host > 0 and (host == planting.servers - 1 or draw.random() < 0.5)
        low = n_shifted if sort in ("starts", "shifted") and is_shifted else 0
        high = n - n_shifted if sort == "ends" and is_shifted else n
        if sort == "shifted" and not is_shifted:
            high = n - n_shifted
        captured.append((low, high))
    cut_share = draw.choice((0.0, 0.0, 0.3, 0.7))
    return Job(planting, () if sort == "whole" else tuple(captured), cut_share)
