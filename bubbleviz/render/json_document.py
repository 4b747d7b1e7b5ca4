"""The report as JSON values, schema ``bubbleviz.report/1``, and as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from bubbleviz.count.count import Spread
from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import (
    PHASES,
    RankIterations,
    account_column,
    has_account,
    indices_of,
    lacking,
    own_intervals,
    own_ratios,
    rank_column,
)
from bubbleviz.count.ratios import ratio_definitions
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.recognition.recognition import Recognition
from bubbleviz.explain.what_if import microbatch_lengths
from bubbleviz.model import limitations
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.report import bubbles
from bubbleviz.report.advice import Advice, advice_of, first_thing
from bubbleviz.report.methods import methods
from bubbleviz.report.rank_means import scores_of
from bubbleviz.report.report import SCHEMA, Report, even_chunks
from bubbleviz.report.timeline import MOST_SAVED, saved, timeline_of
from bubbleviz.report.view import View

if TYPE_CHECKING:
    from bubbleviz.report.saved import SavedReport
    from bubbleviz.schedules.measured_times import MeasuredTimes

#: More operations than this are not listed with their slack.
_MOST_SLACKS = 20_000
_OF_RANK = "index global_rank label host pid device_id uuid gpu pci stage pipeline profile"
#: What a prompt takes in chunks as long as each other, and in chunks that take as long.
_OF_EVEN_CHUNKS = ("virtual_stage", "tokens", "equal_ns", "even_ns")
_OF_ACCOUNT = (
    *("start_ns", "end_ns", "compute_ns", "optimizer_ns", "overlap_ns", "unattributed_ns"),
    *("bubble_ns", "window_ns"),
)
_OF_OPERATION = ("rank", "iteration", "phase", "microbatch", "chunk", "start_ns", "end_ns")
_OF_TIMES = ("compute_ns", "active_ns", "kernel_ns", "gap_ns")


def render(report: Report, _: View) -> str:
    """Return the whole report as JSON, whatever the view."""
    return written(document(report))


def document(report: Report, *, by_rank: bool = True, slowdown: bool = True) -> dict[str, Any]:
    """Return the report as nested JSON values, keys as in the documented schema.

    Args:
        report: any report.
        by_rank: whether iterations list their ranks, and operations follow.
        slowdown: whether slowdowns are worked out, which takes long for very many ranks.
    """
    summary, typical, explanation = report.summary, report.typical_iteration(), report.explanation
    averaged, causes = [i for i in report.iterations if i.averaged], explanation.causes
    known = {
        name: [i.index for i in averaged if i.ratios[name].value is not None]
        for name in causes.idle_ns
    }
    times, idle = explanation.phase_times, report.bubbles
    others, memory = report.alternatives, report.memory
    even = even_chunks(explanation.chunk_costs)
    slowdowns = report.slowdowns if slowdown else None
    scores = scores_of(report)
    slow = np.array([row for row, _ in times.stragglers], np.int64)
    drawn = by_rank and len(report.operations) <= MOST_SAVED
    return {
        "schema": SCHEMA,
        **_attributes(report, "version kind headline headline_reason convention"),
        "profiles": [asdict(profile) for profile in report.profiles],
        "ranks": [
            {**_attributes(rank, _OF_RANK), "relative_score": relative, "individual_score": own}
            for rank, relative, own in zip(report.ranks, *map(_known, scores), strict=True)
        ],
        "what_to_do_first": first_thing(report),
        "advice": [_advice(advice) for advice in advice_of(report)],
        **limitations.written(report.restrictions),
        "typical_iteration": None if typical is None else typical.index,
        "iterations": [
            {
                **_iteration(report, iteration),
                "ranks": rank_entries(report, iteration.index, iteration.ranks) if by_rank else [],
            }
            for iteration in report.iterations
        ],
        "summary": {
            "iterations": summary.iterations,
            "bubble_ratio": _spreads(summary.bubble_ratio),
            "bubble_interval": _intervals(summary.bubble_interval),
            # The lower bound; readers of the JSON report rely on this key.
            "bubble_low": _spreads(summary.bubble_low),
            "bubble_overhead": _spreads(summary.bubble_overhead),
            "window_ns": _spreads(summary.window_ns),
            # Over the averaged iterations that have a ratio.
            "cause_ns": {
                name: causes.of_iterations(name, np.array(known[name], np.int64))
                for name in causes.idle_ns
            },
            "bubble_parts": [asdict(part) for part in bubbles.bubble_parts(report)],
            "kernel_time": report.kernel_time.entry,
            "launch_gap": report.launch_gap,
            # All that a step's time goes into; the use of FLOPs where these are given.
            "step": {
                "window": bubbles.step_window(report),
                "parts": [asdict(part) for part in bubbles.step_parts(report)],
                "flops_use": bubbles.flops_use(report),
            },
        },
        "schedule": _recognition(report.schedule),
        "plan": _recognition(report.plan),
        "phase_times": [
            _with_phase(kind, "stage", "chunk", "virtual_stage") for kind in times.kinds
        ],
        "chunk_costs": [asdict(cost) for cost in explanation.chunk_costs],
        "even_chunks": even and dict(zip(_OF_EVEN_CHUNKS, even, strict=True)),
        "transfer_ns": times.transfer_ns,
        "microbatch_lengths": _microbatch_lengths(report),
        "imbalance": dict(times.imbalance),
        "stragglers": [
            {**operation, "times_median": many}
            for operation, (_, many) in zip(
                _operations(report, slow), times.stragglers, strict=True
            )
        ],
        "critical_path": _critical_path(report),
        "what_if": [asdict(change) for change in explanation.what_if],
        "alternatives": others
        and {
            **_attributes(others, "reason window"),
            "times": others.measured and _times(others.measured),
            "rows": [asdict(row) for row in others.rows],
            # In which order unequal microbatches are shortest, and the share that this saves.
            "reordered": others.reordered,
        },
        # What ranks and operations hold; null where that was not read, or not recorded.
        "memory": memory
        and {
            "ranks": [asdict(peak) for peak in memory.ranks],
            "operations": [asdict(kind) for kind in memory.operations],
        },
        "longest_bubbles": [
            {
                **{
                    name: int(getattr(idle, name)[row])
                    for name in ("rank", "iteration", "start_ns", "end_ns")
                },
                "cause": Cause(int(idle.cause[row])).label,
                "sentence": sentence,
            }
            for row, sentence in bubbles.longest_bubbles(report)
        ],
        # What stragglers cost over all averaged iterations.
        "slowdown": slowdowns
        and {
            **{field.name: getattr(slowdowns, field.name) for field in fields(slowdowns)},
            "by_link": {f"{ends[0]}-{ends[1]}": s for ends, s in slowdowns.by_link.items()},
            "replay_error": asdict(slowdowns.replay_error),
        },
        "coverage": [asdict(rank) for rank in report.coverage],
        "unattributed_kernels": [asdict(kernels) for kernels in report.unattributed_kernels],
        "limitations": [limitation.entry for limitation in report.limitations],
        "methods": methods(report),
        # What pictures are drawn from.
        "timeline": saved(timeline_of(report)) if drawn else None,
    }


def _microbatch_lengths(report: Report) -> list[list[float]]:
    """Return how long the microbatches of averaged iterations are, as shares of their mean."""
    averaged = [i.index for i in report.iterations if i.averaged and i.kind == "training"]
    counts = {report.iterations[index].microbatches for index in averaged}
    if len(counts) != 1 or None in counts:
        return []
    (count,) = counts
    pipeline = np.array([NONE if r.pipeline is None else r.pipeline for r in report.ranks])
    found = microbatch_lengths(report.operations, pipeline, averaged, count or 0)
    return [[round(length, 4) for length in row] for row in found.tolist()]


def _known(values: Floats) -> list[float | None]:
    """Return numbers, null for NaN."""
    return [None if isnan(value) else value for value in values.tolist()]


def _advice(advice: Advice) -> dict[str, Any]:
    """Return the entry of an advice, whose ranks are named as all of the document's are."""
    entry = asdict(advice)
    return entry | {"ranks": entry.pop("indices")}


def rank_entries(report: Report, iteration: int, ranks: RankIterations) -> list[dict[str, Any]]:
    """Return the entries of ranks of an iteration.

    The plain sums are those of the window of ``schedule``.
    """
    causes, communication = report.explanation.causes, report.explanation.communication
    kinds = [field.name for field in fields(communication)]
    names = [name for name in ranks.columns.accounts if has_account(ranks, name)]
    windows = {name: _rows(_OF_ACCOUNT, partial(account_column, ranks, name)) for name in names}
    idle_ns = {name: causes.of_ranks(name, iteration, ranks.rank) for name in names}
    ratios = {name: own_ratios(ranks, name) for name in ranks.columns.accounts}
    bounds = {name: own_intervals(ranks, name) for name in names}
    columns = zip(
        indices_of(ranks),
        rank_column(ranks, "phase_ns").tolist(),
        _rows(_OF_TIMES, partial(rank_column, ranks)),
        _rows(kinds, lambda kind: getattr(communication, kind)[iteration][ranks.rank]),
        lacking(ranks),
        strict=True,
    )
    entries = []
    for at, (rank, phase_ns, times, communicated, missing) in enumerate(columns):
        own = {name: of_ranks[at] for name, of_ranks in windows.items()}
        schedule = own.get("schedule", {})
        entries.append(
            {
                "rank": rank,
                "busy_ns": dict(zip(PHASES, phase_ns, strict=True)),
                **times,
                "unattributed_ns": schedule.get("unattributed_ns"),
                "overlap_ns": schedule.get("overlap_ns"),
                "bubble_ns": {name: window["bubble_ns"] for name, window in own.items()},
                "bubble_ratio": {name: of_ranks[at] for name, of_ranks in ratios.items()},
                "bubble_interval": _intervals({n: of_ranks[at] for n, of_ranks in bounds.items()}),
                "missing": missing,
                "windows": own,
                "cause_ns": {name: of_ranks[at] for name, of_ranks in idle_ns.items()},
                "communication": communicated,
            }
        )
    return entries


def _rows(names: Sequence[str], column: Callable[[str], Ints]) -> list[dict[str, int]]:
    """Return the rows of some columns."""
    rows = zip(*(column(name).tolist() for name in names), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _attributes(value: object, names: str) -> dict[str, Any]:
    """Return some attributes of a value, as JSON has them."""
    return {name: getattr(value, name) for name in names.split()}


def _with_phase(value: Any, *numbers: str) -> dict[str, Any]:
    """Return all fields of a value, its phase by name, some numbers null where there are none."""
    known = {name: _number(getattr(value, name)) for name in numbers}
    return {**asdict(value), "phase": value.phase.label, **known}


def _number(number: int) -> int | None:
    """Return a number; null where there is none."""
    return None if number < 0 else number


def _spreads(spreads: Mapping[str, Spread]) -> dict[str, Any]:
    return {name: asdict(spread) for name, spread in spreads.items()}


def _intervals(
    intervals: Mapping[str, tuple[float, float] | None],
) -> dict[str, list[float] | None]:
    """Return the clock bounds of the ratios that need a common clock; None for unknown bounds."""
    bounds = {r.name: intervals.get(r.name) for r in ratio_definitions() if r.common_clock}
    return {name: None if ends is None else list(ends) for name, ends in bounds.items()}


def _iteration(report: Report, iteration: Iteration) -> dict[str, Any]:
    ratios, causes = iteration.ratios, report.explanation.causes
    return {
        **_attributes(iteration, "index name kind complete averaged microbatches"),
        "start_ns": iteration.start_ns if iteration.ranks else None,
        "end_ns": iteration.end_ns if iteration.ranks else None,
        "window_ns": {name: ratio.window_ns for name, ratio in ratios.items()},
        "bubble_ratio": {name: ratio.value for name, ratio in ratios.items()},
        "bubble_low": {name: ratio.low for name, ratio in ratios.items()},
        "bubble_overhead": {name: ratio.overhead for name, ratio in ratios.items()},
        "bubble_interval": _intervals({name: ratio.interval for name, ratio in ratios.items()}),
        "incomplete": any(ratio.incomplete for ratio in ratios.values()),
        "clocks_contradict": any(ratio.contradicted for ratio in ratios.values()),
        "clock_set": iteration.clock_set,
        "cause_ns": {
            name: causes.of_iteration(name, iteration.index)
            for name in ratios
            if has_account(iteration.ranks, name)
        },
    }


def _recognition(recognition: Recognition | None) -> dict[str, Any] | None:
    """Return which schedule ran, or how a plan was kept to."""
    if recognition is None:
        return None
    return {
        **_attributes(recognition, "name also exact distance"),
        "reason": recognition.reason or None,
        "iterations": [
            {**asdict(i), "also": list(i.also), "names": list(i.names)}
            for i in recognition.iterations
        ],
        "deviation_count": recognition.deviation_count,
        "deviations": [_with_phase(deviation, "chunk") for deviation in recognition.deviations],
    }


def _times(measured: MeasuredTimes) -> dict[str, Any]:
    """Return times by stage, without those of virtual stages."""
    times = _attributes(measured.times, "forward_ms backward_ms weight_ms transfer_ms lengths")
    sizes = _attributes(measured, "stages microbatches chunks")
    return {**sizes, "times": times, "split": measured.split}


def _critical_path(report: Report) -> dict[str, Any] | None:
    """Return the path, and the slack of the operations off it unless these are very many."""
    path = report.explanation.path
    if path is None:
        return None
    slack, off = None, path.slack_ns > 0
    if off.sum() <= _MOST_SLACKS:
        late = zip(
            _operations(report, path.replayed[off]), path.slack_ns[off].tolist(), strict=True
        )
        slack = [{**operation, "slack_ns": slack_ns} for operation, slack_ns in late]
    return {
        "iteration": path.iteration,
        "length_ns": path.length_ns,
        "parts": [asdict(part) for part in path.parts],
        "collectives": [asdict(collective) for collective in path.collectives],
        "operations": _operations(report, path.operations),
        "slack": slack,
    }


def _operations(report: Report, rows: Ints) -> list[dict[str, Any]]:
    return [
        {
            **row,
            "phase": Phase(row["phase"]).label,
            "microbatch": _number(row["microbatch"]),
            "chunk": _number(row["chunk"]),
        }
        for row in _rows(_OF_OPERATION, lambda name: getattr(report.operations, name)[rows])
    ]


# Text.


def written(values: Mapping[str, Any]) -> str:
    """Return values as JSON, a line for each item of a list: to be read, compared and searched.

    Indented all the way down it would take twenty times as long.
    """
    text = json.JSONEncoder(allow_nan=False).encode

    def lines(value: Any) -> str:
        if isinstance(value, list) and value:
            return "[\n " + ",\n ".join(map(text, value)) + "\n]"
        return text(value)

    return "{\n" + ",\n".join(f"{text(k)}: {lines(v)}" for k, v in values.items()) + "\n}\n"


def saved_of(report: Report, *, slowdown: bool = True) -> SavedReport:
    """Return the numbers of a report, as read back after saving it.

    Args:
        report: any report.
        slowdown: whether slowdowns are among them, which take long for very many ranks.
    """
    from bubbleviz.report.saved import saved_report

    values = document(report, by_rank=False, slowdown=slowdown)
    return saved_report("the report", written(values).encode())


def pipeline_of(report: Report) -> SavedReport:
    """Return the numbers of a report with which schedules are simulated.

    Raises:
        InputError: it is of no whole pipeline.
    """
    from bubbleviz.report.saved import of_pipeline

    return of_pipeline("the run", saved_of(report, slowdown=False))
