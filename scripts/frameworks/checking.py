"""Hold what bubbleviz says of a run against what its stages wrote down themselves."""

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
from bubbleviz.conventions.range_names import understand
from bubbleviz.count.iterations import Iteration
from bubbleviz.model.phases import COUNTED, TRANSFERS, Phase
from bubbleviz.progress import unwatched
from bubbleviz.sources.operations.jsonl.sessions import read_session
from scripts.frameworks.cases import Case

#: Points of the ratio ``schedule`` between truth and report, and between report and profiler.
_POINTS, _POINTS_OF_PROFILER = 0.5, 1.0
#: How much longer than its stage worked an operation may be in the median: layers and framework.
_LONGER = 0.03
#: Which parts of a stage an operation runs; PyTorch runs both halves of a first stage's in its W.
_PARTS = {Phase.F: {"F"}, Phase.B: {"B"}, Phase.W: {"W", "B"}, Phase.BW: {"B", "W"}}
_PARTS[Phase.FB] = {"F", "B", "W"}


@dataclass(frozen=True)
class Outcome:
    """What came out.

    Attributes:
        wrong: what does not hold, one sentence each.
        longer: share by which operations are longer than their stage worked, in the median.
        points: difference of ``schedule`` to the truth, the median of iterations, in points.
        points_of_profiler: the same to PyTorch's profile of iterations that both recorded.
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
    """Return what came out of a run that :mod:`scripts.frameworks.ranks` wrote to a folder.

    Args:
        case: that was run.
        folder: of the run.
        wider: factor of the limits of times, infinity on a machine that does much else.
    """
    ranks = [
        json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8"))
        for rank in range(case.job.ranks)
    ]
    plan = folder / "plan.csv" if case.planned else None
    report = bubbleviz.analyze(folder / "recording", plan=plan)
    worked = [
        _Work(_iteration(of, part[3]), of["rank"], *part) for of in ranks for part in of["worked"]
    ]
    wrong = [
        f"rank {of['rank']}: {said}"
        for of in ranks
        for said in (
            "" if of["unchanged"] else "losses or weights are others than without annotations",
            f"still wrapped: {', '.join(of['left'])}" if of["left"] else "",
        )
        if said
    ]
    wrong += _named(report, worked)
    wrong += _transferred(case, folder / "recording", worked)
    wrong += _recognised(case, report, len(ranks[0]["spans"]))
    wrong += _iterations(report, ranks)
    points = _points(report, worked)
    if not points <= wider * _POINTS:
        wrong.append(f"schedule is off by {points:.2f} points")
    longer = _longer(report, worked)
    if not longer <= wider * _LONGER:
        wrong.append(f"operations are {longer:.1%} longer than their stages worked")
    of_profiler, differing = _beside_the_profiler(case, folder, plan, wider)
    wrong += differing
    return Outcome(tuple(dict.fromkeys(wrong)), longer, points, of_profiler)


def _iteration(of_rank: dict[str, Any], start_ns: int) -> int:
    begun = [span[0] for span in of_rank["spans"]]
    return int(np.searchsorted(begun, start_ns, side="right")) - 1


def _inside(report: bubbleviz.Report, worked: list[_Work]) -> Iterator[tuple[int, list[_Work]]]:
    """Yield each F and backward of a report, with what worked inside it."""
    operations = report.operations
    rows = np.flatnonzero(np.isin(operations.phase, COUNTED))
    by_rank: dict[int, list[_Work]] = defaultdict(list)
    for part in worked:
        by_rank[part.rank].append(part)
    numbers = [rank.number for rank in report.ranks]
    for row in rows.tolist():
        start, end = int(operations.start_ns[row]), int(operations.end_ns[row])
        mine = by_rank[numbers[int(operations.rank[row])]]
        yield row, [part for part in mine if start <= part.start_ns and part.end_ns <= end]


def _named(report: bubbleviz.Report, worked: list[_Work]) -> Iterator[str]:
    """Say which operations have another name, stage, microbatch or iteration than was worked in."""
    operations = report.operations
    held: Counter[_Work] = Counter()
    for row, parts in _inside(report, worked):
        held.update(parts)
        phase = Phase(int(operations.phase[row]))
        stage, number = int(operations.virtual_stage[row]), int(operations.microbatch[row])
        what = f"{phase.label} of microbatch {number} on stage {stage}"
        for part in parts:
            there = (part.stage, part.microbatch, part.iteration)
            both = {(stage, number, int(operations.iteration[row]))}
            if phase is Phase.FB and part.phase != "F":
                both = (
                    {there} if part.microbatch == int(operations.second_microbatch[row]) else set()
                )
            if part.phase not in _PARTS[phase] or there not in both:
                yield f"{what} ran {part.phase}{part.microbatch} on stage {part.stage}"
        # PyTorch's first stage has nothing to do in its B.
        if not parts and not (phase is Phase.B and stage == 0):
            yield f"{what}: nothing worked in it"
    lost = [part for part in worked if held[part] != 1]
    if lost:
        yield f"{len(lost)} of {len(worked)} parts are in no operation, or several: {lost[0]}"


@dataclass(frozen=True)
class _Transfer:
    """A recorded transfer; ``places`` are its (virtual stage, microbatch), one or two."""

    phase: Phase
    places: tuple[tuple[int, int], ...]
    launches: bool
    start_ns: int
    end_ns: int


def _transfers(recording: Path) -> Iterator[tuple[int, int, list[_Transfer]]]:
    """Yield rank, iteration and transfers of each recorded iteration, also without any."""
    for file in recording.iterdir():
        session = read_session(str(file), unwatched)
        own, named = session.stretch.operations, understand(session.names, built_in()["bubbleviz"])
        found: list[list[_Transfer]] = [[] for _ in session.stretch.iterations.number]
        for row in np.flatnonzero(np.isin(named.phase[own.name_id], TRANSFERS)).tolist():
            name = own.name_id[row]
            places = (
                (int(named.stage[name]), int(named.microbatch[name])),
                (int(named.second_stage[name]), int(named.second_microbatch[name])),
            )
            found[own.iteration[row]].append(
                _Transfer(
                    Phase(int(named.phase[name])),
                    tuple(place for place in places if min(place) >= 0),
                    bool(own.launches[row]),
                    int(own.host_start_ns[row]),
                    int(own.host_end_ns[row]),
                )
            )
        for number, transfers in enumerate(found):
            yield session.header.rank, number, transfers


def _transferred(case: Case, recording: Path, worked: list[_Work]) -> Iterator[str]:
    """Say which transfers are named after what they do not carry, and which inputs none brings.

    What a transfer sends was made by one of the last two operations before it; what it brings is
    worked on later, and where it waits was sent before it ended.
    """
    at, ends = case.job.placement, {"F": 0, "B": len(case.job.placement) - 1}
    # A gradient is there once B is done, whether W follows or not.
    parts = [part for part in worked if part.phase != "W"]
    runs = {(p.iteration, p.phase, p.stage, p.microbatch): p for p in parts}
    for rank, number, transfers in _transfers(recording):
        mine = [p for p in parts if (p.rank, p.iteration) == (rank, number)]
        lacking = {
            (p.phase, p.stage, p.microbatch)
            for p in mine
            if p.stage != ends[p.phase] and at[p.stage + (-1 if p.phase == "F" else 1)] != rank
        }
        wanted = frozenset(lacking)
        for transfer in transfers:
            ended = sorted(p.end_ns for p in mine if p.end_ns <= transfer.start_ns)[-2:]
            made = {(f"SEND_{p.phase}", p.stage, p.microbatch) for p in mine if p.end_ns in ended}
            for stage, microbatch in transfer.places or [(-1, -1)]:
                brought = set()
                for way, step in (("F", -1), ("B", 1)):
                    input_ = way, stage, microbatch
                    if input_ in wanted and transfer.phase.label in {f"RECV_{way}", "SEND_RECV"}:
                        user = runs[(number, *input_)]
                        sent_ns = runs[number, way, stage + step, microbatch].end_ns
                        if transfer.start_ns <= user.start_ns and (
                            transfer.launches or sent_ns <= transfer.end_ns <= user.start_ns
                        ):
                            brought.add(input_)
                lacking -= brought
                both = transfer.phase is Phase.SEND_RECV
                kinds = ("SEND_F", "SEND_B") if both else (transfer.phase.label,)
                if not brought and not made & {(kind, stage, microbatch) for kind in kinds}:
                    yield f"rank {rank}: {transfer} carries nothing of microbatch {microbatch}"
        for way, stage, microbatch in sorted(lacking):
            yield f"rank {rank}: no transfer brings {way}{microbatch} of stage {stage} its input"


def _recognised(case: Case, report: bubbleviz.Report, iterations: int) -> Iterator[str]:
    whole = [(i.complete, i.microbatches) for i in report.iterations]
    if whole != [(True, case.job.microbatches)] * iterations:
        yield f"iterations are (complete, microbatches) {whole}, not {iterations}"
    if case.recognised:
        schedule = report.schedule
        if (
            schedule is None
            or not schedule.exact
            or case.recognised not in (schedule.name, *schedule.also)
        ):
            found = "" if schedule is None else schedule.name or schedule.reason
            yield f"the order is not recognised as {case.recognised} ({found})"
    steps = int((report.operations.phase == Phase.OPTIMIZER).sum())
    if not case.forward_only and steps != iterations * case.job.ranks:
        yield f"{steps} steps of optimizers are named, not one a rank and iteration"
    if any(rank.stage != rank.number for rank in report.ranks):
        yield f"ranks are on stages {[(rank.number, rank.stage) for rank in report.ranks]}"


def _iterations(report: bubbleviz.Report, ranks: list[dict[str, Any]]) -> Iterator[str]:
    """Say which iterations begin or end where no rank began or ended one."""
    for number, iteration in enumerate(report.iterations):
        begun = min(of["spans"][number][0] for of in ranks)
        ended = max(of["spans"][number][1] for of in ranks)
        if not begun <= iteration.start_ns <= iteration.end_ns <= ended:
            yield (
                f"iteration {number} is {iteration.start_ns - begun} ns after its beginning, to "
                f"{iteration.end_ns - ended} ns after its end"
            )


def _points(report: bubbleviz.Report, worked: list[_Work]) -> float:
    """Return how far ``schedule`` is from its definition, applied to the truth, in the median."""
    differences = []
    for number, iteration in enumerate(report.iterations):
        parts = _whole([part for part in worked if part.iteration == number])
        window = max(part.end_ns for part in parts) - min(part.start_ns for part in parts)
        busy = sum(part.end_ns - part.start_ns for part in parts)
        truth = 1 - busy / window / len(report.ranks)
        differences.append(100 * abs(truth - _schedule(iteration)))
    return statistics.median(differences)


def _schedule(iteration: Iteration) -> float:
    """Return an iteration's ratio; not a number where it has none, which is within no limit."""
    value = iteration.ratios["schedule"].value
    return math.nan if value is None else value


def _whole(parts: list[_Work]) -> list[_Work]:
    """Return the parts with B and W of one backward as one, where nothing ran between them."""
    whole: list[_Work] = []
    for part in sorted(parts, key=lambda part: (part.rank, part.start_ns)):
        last = whole[-1] if whole else None
        same = last and (last.rank, last.stage, last.microbatch) == (
            *(part.rank, part.stage, part.microbatch),
        )
        if last is not None and same and last.phase != "F" != part.phase:
            whole[-1] = replace(last, end_ns=part.end_ns)
        else:
            whole.append(part)
    return whole


def _longer(report: bubbleviz.Report, worked: list[_Work]) -> float:
    """Return by how much operations are longer than the sleep in them, in the median."""
    operations = report.operations
    shares = [
        (operations.end_ns[row] - operations.start_ns[row])
        / sum(part.end_ns - part.start_ns for part in _whole(parts))
        - 1
        for row, parts in _inside(report, worked)
        if parts
    ]
    return float(np.median(shares)) if shares else math.nan


def _beside_the_profiler(
    case: Case, folder: Path, plan: Path | None, wider: float
) -> tuple[float, list[str]]:
    """Return how far both recordings of the same iterations are apart, and what else differs."""
    recorded = bubbleviz.analyze(folder / "twice", plan=plan)
    traces = [folder / f"trace{rank}.json" for rank in range(case.job.ranks)]
    # Older versions do not say that they are of one host.
    traced = bubbleviz.analyze(traces, plan=plan, align="utc")
    wrong = []
    if _order(recorded) != _order(traced):
        wrong.append("PyTorch's profiler saw another order than the recording")
    names = [report.schedule and report.schedule.name for report in (recorded, traced)]
    if names[0] != names[1]:
        wrong.append(f"the recording is {names[0]}, PyTorch's profile {names[1]}")
    ratios = [list(map(_schedule, report.iterations)) for report in (recorded, traced)]
    if len(ratios[0]) != len(ratios[1]):
        return math.nan, [*wrong, f"iterations differ: {len(ratios[0])}, {len(ratios[1])}"]
    points = statistics.median(100 * abs(one - other) for one, other in zip(*ratios, strict=True))
    if not points <= wider * _POINTS_OF_PROFILER:
        wrong.append(f"PyTorch's profile differs by {points:.2f} points")
    return points, wrong


def _order(report: bubbleviz.Report) -> list[tuple[int, ...]]:
    """Return rank, iteration, phase, microbatch and virtual stage of operations, in order."""
    operations = report.operations
    rows = np.flatnonzero(np.isin(operations.phase, COUNTED))
    rows = rows[np.lexsort((operations.host_start_ns[rows], operations.rank[rows]))]
    columns = ("rank", "iteration", "phase", "microbatch", "virtual_stage")
    return list(zip(*(getattr(operations, name)[rows].tolist() for name in columns), strict=True))
