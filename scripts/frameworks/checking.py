"""Compares bubbleviz's report on a run with the log that its stages wrote."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import bubbleviz
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.range_names import parse_range_names
from bubbleviz.count.iterations import Iteration
from bubbleviz.model.phases import COUNTED, TRANSFERS, Phase
from bubbleviz.progress import unwatched
from bubbleviz.sources.operations.jsonl.sessions import read_session
from scripts.frameworks.cases import Case

#: Maximum error of the ratio ``schedule`` and maximum difference from PyTorch's profiler, both in
#: percentage points.
_POINTS, _POINTS_OF_PROFILER = 0.5, 1.0
#: Maximum median excess of an operation's duration over the work of its stage, as a fraction.
_LONGER = 0.03
#: Parts of a stage's work that an operation may contain.
#: PyTorch runs both halves of the first stage's backward in its W.
_PARTS = {Phase.F: {"F"}, Phase.B: {"B"}, Phase.W: {"W", "B"}, Phase.BW: {"B", "W"}}
_PARTS[Phase.FB] = {"F", "B", "W"}


@dataclass(frozen=True)
class Outcome:
    """The result of checking a run.

    Attributes:
        wrong: One sentence per failed check.
        longer: Median excess of an operation's duration over the work of its stage, as a fraction.
        points: Median error of the ratio ``schedule`` over the iterations, in percentage points.
        points_of_profiler: Median difference between the ratio ``schedule`` and its value in
            PyTorch's profile, in percentage points.
    """

    wrong: tuple[str, ...]
    longer: float = math.nan
    points: float = math.nan
    points_of_profiler: float = math.nan


@dataclass(frozen=True)
class _Work:
    iteration: int
    rank: int
    phase: str
    stage: int
    microbatch: int
    start_ns: int
    end_ns: int


def check(case: Case, folder: Path, wider: float = 1.0) -> Outcome:
    """Check a run that :mod:`scripts.frameworks.ranks` wrote to a folder.

    Args:
        case: The case.
        folder: Folder of the run.
        wider: Factor by which limits on times are multiplied, or infinity on a busy machine.
    """
    ranks = [
        json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8"))
        for rank in range(case.job.ranks)
    ]
    plan = folder / "plan.csv" if case.planned else None
    report = bubbleviz.analyze(folder / "recording", plan=plan)
    work = [
        _Work(_find_iteration(of, part[3]), of["rank"], *part)
        for of in ranks
        for part in of["worked"]
    ]
    wrong = [
        f"rank {of['rank']}: {problem}"
        for of in ranks
        for problem in (
            "" if of["unchanged"] else "losses or weights differ from a run without annotations",
            f"still wrapped: {', '.join(of['left'])}" if of["left"] else "",
        )
        if problem
    ]
    wrong += _check_names(report, work)
    wrong += _check_transfers(case, folder / "recording", work)
    wrong += _check_order(case, report, len(ranks[0]["spans"]))
    wrong += _check_iterations(report, ranks)
    points = _schedule_error(report, work)
    if not points <= wider * _POINTS:
        wrong.append(f"schedule is off by {points:.2f} points")
    longer = _compute_excess(report, work)
    if not longer <= wider * _LONGER:
        wrong.append(f"operations are {longer:.1%} longer than the work of their stages")
    of_profiler, differences = _compare_with_profiler(case, folder, plan, wider)
    wrong += differences
    return Outcome(tuple(dict.fromkeys(wrong)), longer, points, of_profiler)


def _find_iteration(log: dict[str, Any], start_ns: int) -> int:
    """Return the index of the iteration that contains a time on the rank."""
    starts_ns = [span[0] for span in log["spans"]]
    return int(np.searchsorted(starts_ns, start_ns, side="right")) - 1


def _list_operation_work(
    report: bubbleviz.Report, recorded_work: list[_Work]
) -> Iterator[tuple[int, list[_Work]]]:
    """Yield the row of each F and each backward in a report, and the logged work inside it."""
    operations = report.operations
    rows = np.flatnonzero(np.isin(operations.phase, COUNTED))
    by_rank: dict[int, list[_Work]] = defaultdict(list)
    for part in recorded_work:
        by_rank[part.rank].append(part)
    numbers = [rank.number for rank in report.ranks]
    for row in rows.tolist():
        start, end = int(operations.start_ns[row]), int(operations.end_ns[row])
        work = by_rank[numbers[int(operations.rank[row])]]
        yield row, [part for part in work if start <= part.start_ns and part.end_ns <= end]


def _check_names(report: bubbleviz.Report, recorded_work: list[_Work]) -> Iterator[str]:
    """Yield the operations whose phase, stage, microbatch or iteration differs from the log."""
    operations = report.operations
    n_operations: Counter[_Work] = Counter()
    for row, parts in _list_operation_work(report, recorded_work):
        n_operations.update(parts)
        phase = Phase(int(operations.phase[row]))
        stage, number = int(operations.virtual_stage[row]), int(operations.microbatch[row])
        operation = f"{phase.label} of microbatch {number} on stage {stage}"
        for part in parts:
            key = (part.stage, part.microbatch, part.iteration)
            named_parts = {(stage, number, int(operations.iteration[row]))}
            if phase is Phase.FB and part.phase != "F":
                named_parts = (
                    {key} if part.microbatch == int(operations.second_microbatch[row]) else set()
                )
            if part.phase not in _PARTS[phase] or key not in named_parts:
                yield f"{operation} ran {part.phase}{part.microbatch} on stage {part.stage}"
        # In PyTorch, the first stage's B is empty.
        if not parts and not (phase is Phase.B and stage == 0):
            yield f"{operation}: no work inside"
    unmatched = [part for part in recorded_work if n_operations[part] != 1]
    if unmatched:
        counts = f"{len(unmatched)} of {len(recorded_work)} parts"
        yield f"{counts} are in no operation or in several operations: {unmatched[0]}"


@dataclass(frozen=True)
class _Transfer:
    """A recorded transfer. ``places`` contains one or two (virtual stage, microbatch) pairs."""

    phase: Phase
    places: tuple[tuple[int, int], ...]
    launches: bool
    start_ns: int
    end_ns: int


def _read_transfers(recording: Path) -> Iterator[tuple[int, int, list[_Transfer]]]:
    """Yield the rank, the iteration and the transfers of each recorded iteration."""
    for file in recording.iterdir():
        session = read_session(str(file), unwatched)
        operations = session.stretch.operations
        range_names = parse_range_names(session.names, built_in()["bubbleviz"])
        of_iteration: list[list[_Transfer]] = [[] for _ in session.stretch.iterations.number]
        for row in np.flatnonzero(
            np.isin(range_names.phase[operations.name_id], TRANSFERS)
        ).tolist():
            name = operations.name_id[row]
            places = (
                (int(range_names.stage[name]), int(range_names.microbatch[name])),
                (int(range_names.second_stage[name]), int(range_names.second_microbatch[name])),
            )
            of_iteration[operations.iteration[row]].append(
                _Transfer(
                    Phase(int(range_names.phase[name])),
                    tuple(pair for pair in places if min(pair) >= 0),
                    bool(operations.launches[row]),
                    int(operations.host_start_ns[row]),
                    int(operations.host_end_ns[row]),
                )
            )
        for number, transfers in enumerate(of_iteration):
            yield session.header.rank, number, transfers


def _check_transfers(case: Case, recording: Path, recorded_work: list[_Work]) -> Iterator[str]:
    """Yield the transfers with wrong names, and the inputs that no transfer delivers.

    A send transfers the result of one of the last two operations before it. A receive transfers the
    input of a later operation. If the receive waits, it ends after its input was sent.
    """
    placement, last_stage = case.job.placement, {"F": 0, "B": len(case.job.placement) - 1}
    # The gradient is complete after B, whether or not W follows.
    parts = [part for part in recorded_work if part.phase != "W"]
    runs = {(p.iteration, p.phase, p.stage, p.microbatch): p for p in parts}
    for rank, number, transfers in _read_transfers(recording):
        work = [p for p in parts if (p.rank, p.iteration) == (rank, number)]
        missing = {
            (p.phase, p.stage, p.microbatch)
            for p in work
            if p.stage != last_stage[p.phase]
            and placement[p.stage + (-1 if p.phase == "F" else 1)] != rank
        }
        required = frozenset(missing)
        for transfer in transfers:
            last_ends_ns = sorted(p.end_ns for p in work if p.end_ns <= transfer.start_ns)[-2:]
            results = {
                (f"SEND_{p.phase}", p.stage, p.microbatch) for p in work if p.end_ns in last_ends_ns
            }
            for stage, microbatch in transfer.places or [(-1, -1)]:
                brought = set()
                for way, step in (("F", -1), ("B", 1)):
                    input_ = way, stage, microbatch
                    if input_ in required and transfer.phase.label in {f"RECV_{way}", "SEND_RECV"}:
                        user = runs[(number, *input_)]
                        sent_ns = runs[number, way, stage + step, microbatch].end_ns
                        if transfer.start_ns <= user.start_ns and (
                            transfer.launches or sent_ns <= transfer.end_ns <= user.start_ns
                        ):
                            brought.add(input_)
                missing -= brought
                is_exchange = transfer.phase is Phase.SEND_RECV
                kinds = ("SEND_F", "SEND_B") if is_exchange else (transfer.phase.label,)
                if not brought and not results & {(kind, stage, microbatch) for kind in kinds}:
                    yield f"rank {rank}: {transfer} has no data of microbatch {microbatch}"
        for way, stage, microbatch in sorted(missing):
            yield f"rank {rank}: no transfer brings {way}{microbatch} of stage {stage} its input"


def _check_order(case: Case, report: bubbleviz.Report, iterations: int) -> Iterator[str]:
    """Yield the differences between the iterations in a report and the iterations of the case.

    Args:
        case: The case that ran.
        report: Report of its recording.
        iterations: Number of recorded iterations.
    """
    completeness = [(i.complete, i.microbatches) for i in report.iterations]
    if completeness != [(True, case.job.microbatches)] * iterations:
        yield f"iterations are (complete, microbatches) {completeness}, not {iterations}"
    if case.recognized:
        schedule = report.schedule
        if (
            schedule is None
            or not schedule.exact
            or case.recognized not in (schedule.name, *schedule.also)
        ):
            schedule_name = "" if schedule is None else schedule.name or schedule.reason
            yield f"the order is recognized as {schedule_name or None}, not {case.recognized}"
    steps = int((report.operations.phase == Phase.OPTIMIZER).sum())
    if not case.forward_only and steps != iterations * case.job.ranks:
        yield f"{steps} optimizer steps instead of one per rank and iteration"
    if any(rank.stage != rank.number for rank in report.ranks):
        yield f"ranks are on stages {[(rank.number, rank.stage) for rank in report.ranks]}"


def _check_iterations(report: bubbleviz.Report, ranks: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the iterations that begin before, or end after, the training loop's iterations."""
    for number, iteration in enumerate(report.iterations):
        first_ns = min(of["spans"][number][0] for of in ranks)
        last_ns = max(of["spans"][number][1] for of in ranks)
        if not first_ns <= iteration.start_ns <= iteration.end_ns <= last_ns:
            yield (
                f"iteration {number} starts {iteration.start_ns - first_ns} ns after the iteration "
                f"of the loop, and ends {iteration.end_ns - last_ns} ns after it"
            )


def _schedule_error(report: bubbleviz.Report, recorded_work: list[_Work]) -> float:
    """Return the median error of ``schedule`` in points, measured against the log of the stages."""
    differences = []
    for number, iteration in enumerate(report.iterations):
        parts = _merge_backwards([part for part in recorded_work if part.iteration == number])
        window = max(part.end_ns for part in parts) - min(part.start_ns for part in parts)
        busy = sum(part.end_ns - part.start_ns for part in parts)
        truth = 1 - busy / window / len(report.ranks)
        differences.append(100 * abs(truth - _schedule_ratio(iteration)))
    return statistics.median(differences)


def _schedule_ratio(iteration: Iteration) -> float:
    """Return the ratio ``schedule`` of an iteration, or NaN, which exceeds every limit."""
    value = iteration.ratios["schedule"].value
    return math.nan if value is None else value


def _merge_backwards(parts: list[_Work]) -> list[_Work]:
    """Return the parts, with each B and W merged if one directly follows the other."""
    merged: list[_Work] = []
    for part in sorted(parts, key=lambda part: (part.rank, part.start_ns)):
        last = merged[-1] if merged else None
        is_same_operation = last and (last.rank, last.stage, last.microbatch) == (
            *(part.rank, part.stage, part.microbatch),
        )
        if last is not None and is_same_operation and last.phase != "F" != part.phase:
            merged[-1] = replace(last, end_ns=part.end_ns)
        else:
            merged.append(part)
    return merged


def _compute_excess(report: bubbleviz.Report, recorded_work: list[_Work]) -> float:
    """Return the median excess of operations over the work inside them, as a fraction."""
    operations = report.operations
    shares = [
        (operations.end_ns[row] - operations.start_ns[row])
        / sum(part.end_ns - part.start_ns for part in _merge_backwards(parts))
        - 1
        for row, parts in _list_operation_work(report, recorded_work)
        if parts
    ]
    return float(np.median(shares)) if shares else math.nan


def _compare_with_profiler(
    case: Case, folder: Path, plan: Path | None, wider: float
) -> tuple[float, list[str]]:
    """Return the median difference of ``schedule`` in points, and sentences about differences."""
    recorded = bubbleviz.analyze(folder / "twice", plan=plan)
    traces = [folder / f"trace{rank}.json" for rank in range(case.job.ranks)]
    # Traces of older versions do not name their host.
    traced = bubbleviz.analyze(traces, plan=plan, align="utc")
    wrong = []
    if _list_operations(recorded) != _list_operations(traced):
        wrong.append("PyTorch's profile has another order than the recording")
    names = [report.schedule and report.schedule.name for report in (recorded, traced)]
    if names[0] != names[1]:
        wrong.append(f"the recording is {names[0]}, PyTorch's profile {names[1]}")
    ratios = [list(map(_schedule_ratio, report.iterations)) for report in (recorded, traced)]
    if len(ratios[0]) != len(ratios[1]):
        return math.nan, [*wrong, f"iterations differ: {len(ratios[0])}, {len(ratios[1])}"]
    points = statistics.median(100 * abs(one - other) for one, other in zip(*ratios, strict=True))
    if not points <= wider * _POINTS_OF_PROFILER:
        wrong.append(f"PyTorch's profile differs by {points:.2f} points")
    return points, wrong


def _list_operations(report: bubbleviz.Report) -> list[tuple[int, ...]]:
    """Return rank, iteration, phase, microbatch and stage of each operation, in launch order."""
    operations = report.operations
    rows = np.flatnonzero(np.isin(operations.phase, COUNTED))
    rows = rows[np.lexsort((operations.host_start_ns[rows], operations.rank[rows]))]
    columns = ("rank", "iteration", "phase", "microbatch", "virtual_stage")
    return list(zip(*(getattr(operations, name)[rows].tolist() for name in columns), strict=True))
