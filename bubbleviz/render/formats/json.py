"""JSON: the machine-readable report, schema ``bubbleviz.report/1``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.count.count import Spread
    from bubbleviz.count.iterations import Account, Iteration, RankIteration
    from bubbleviz.explain.critical_path import CriticalPath
    from bubbleviz.explain.phase_times import PhaseTime
    from bubbleviz.explain.recognition.recognition import Recognition
    from bubbleviz.render.parts import File
    from bubbleviz.report.bubbles import LongBubble
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


#: More operations than this are not listed with their slack.
_MOST_SLACKS = 20_000


def render(report: Report, view: View) -> str:
    """Return the whole report as JSON, whatever the view."""
    from bubbleviz.render.json_files import written

    del view
    return written(document(report))


def parts(report: Report) -> Iterator[File]:
    """Yield the files of a folder; see :func:`bubbleviz.render.json_files.files_of`."""
    from bubbleviz.render.json_files import files_of

    return files_of(report, document(report, by_rank=False), rank_entries)


def document(report: Report, *, by_rank: bool = True, slowdown: bool = True) -> dict[str, Any]:
    """Return the report as nested JSON values, keys as in the documented schema.

    Args:
        report: any report.
        by_rank: whether iterations list their ranks, and operations follow.
        slowdown: whether slowdowns are worked out, which takes long for very many ranks.
    """
    from bubbleviz.model.limitations import written
    from bubbleviz.report.advice import first_thing
    from bubbleviz.report.advice_list import advice_of
    from bubbleviz.report.bubbles import bubble_parts
    from bubbleviz.report.kernel_time import kernel_time_of
    from bubbleviz.report.methods import methods
    from bubbleviz.report.report import SCHEMA

    summary, typical = report.summary, report.typical_iteration()
    return {
        "schema": SCHEMA,
        "version": report.version,
        "kind": report.kind,
        "headline": report.headline,
        "headline_reason": report.headline_reason,
        "convention": report.convention,
        "profiles": [asdict(profile) for profile in report.profiles],
        "ranks": [
            {
                "index": rank.index,
                "label": rank.label,
                "host": rank.host,
                "pid": rank.pid,
                "device_id": rank.device_id,
                "uuid": rank.uuid,
                "gpu": rank.gpu,
                "pci": rank.pci,
                "stage": rank.stage,
                "pipeline": rank.pipeline,
                "profile": rank.profile,
            }
            for rank in report.ranks
        ],
        "what_to_do_first": first_thing(report),
        "advice": [asdict(advice) for advice in advice_of(report)],
        **written(report.restrictions),
        "typical_iteration": None if typical is None else typical.index,
        "iterations": [
            {
                **_iteration(report, iteration),
                "ranks": rank_entries(report, iteration, iteration.ranks) if by_rank else [],
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
            "cause_ns": _summed_causes(report),
            "bubble_parts": [asdict(part) for part in bubble_parts(report)],
            "kernel_time": kernel_time_of(report).entry,
        },
        "schedule": _recognition(report.schedule),
        "plan": _recognition(report.plan),
        **_explained(report),
        "slowdown": _slowdown(report) if slowdown else None,
        "coverage": [asdict(rank) for rank in report.coverage],
        "unattributed_kernels": [asdict(kernels) for kernels in report.unattributed_kernels],
        "limitations": [limitation.entry for limitation in report.limitations],
        "methods": methods(report),
        "timeline": _timeline(report) if by_rank else None,
    }


def _timeline(report: Report) -> dict[str, Any] | None:
    """Return the operations that pictures are drawn from; None where they are very many."""
    from bubbleviz.report.timeline import MOST_SAVED, saved, timeline_of

    return saved(timeline_of(report)) if len(report.operations) <= MOST_SAVED else None


def _spreads(spreads: Mapping[str, Spread]) -> dict[str, Any]:
    return {name: asdict(spread) for name, spread in spreads.items()}


def _intervals(
    intervals: Mapping[str, tuple[float, float] | None],
) -> dict[str, list[float] | None]:
    """Return the clock bounds of the ratios that need a common clock; None for unknown bounds."""
    from bubbleviz.count.ratios import ratio_definitions

    bounds = {r.name: intervals.get(r.name) for r in ratio_definitions() if r.common_clock}
    return {name: None if ends is None else list(ends) for name, ends in bounds.items()}


def _iteration(report: Report, iteration: Iteration) -> dict[str, Any]:
    from bubbleviz.count.rank_iterations import has_account

    ratios, causes = iteration.ratios, report.explanation.causes
    counted = {name for name in ratios if has_account(iteration.ranks, name)}
    return {
        "index": iteration.index,
        "name": iteration.name,
        "kind": iteration.kind,
        "complete": iteration.complete,
        "averaged": iteration.averaged,
        "microbatches": iteration.microbatches,
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
            name: causes.of_iteration(name, iteration.index) for name in ratios if name in counted
        },
    }


def rank_entries(
    report: Report, iteration: Iteration, ranks: Sequence[RankIteration]
) -> list[dict[str, Any]]:
    """Return the entries of some ranks of an iteration."""
    return [{**_rank(rank), **_idle(report, iteration.index, rank)} for rank in ranks]


def _idle(report: Report, iteration: int, rank: RankIteration) -> dict[str, Any]:
    """Return why a rank was idle, and how long it communicated."""
    causes, communication = report.explanation.causes, report.explanation.communication
    return {
        "cause_ns": {name: causes.of_rank(name, iteration, rank.rank) for name in rank.accounts},
        "communication": {
            field.name: int(getattr(communication, field.name)[iteration, rank.rank])
            for field in fields(communication)
        },
    }


def _summed_causes(report: Report) -> dict[str, dict[str, int]]:
    """Return idle time by cause over the averaged iterations that have a ratio."""
    import numpy as np

    causes = report.explanation.causes
    averaged = [i for i in report.iterations if i.averaged]
    return {
        name: causes.of_iterations(
            name,
            np.array([i.index for i in averaged if i.ratios[name].value is not None], np.int64),
        )
        for name in causes.idle_ns
    }


def _explained(report: Report) -> dict[str, Any]:
    """Return the explanation except for causes."""
    from bubbleviz.report.bubbles import longest_bubbles

    explanation = report.explanation
    times, path = explanation.phase_times, explanation.path
    return {
        "phase_times": [_phase_time(kind) for kind in times.kinds],
        "chunk_costs": [asdict(cost) for cost in explanation.chunk_costs],
        "transfer_ns": times.transfer_ns,
        "imbalance": dict(times.imbalance),
        "stragglers": [
            {**_operation(report, s.operation), "times_median": s.times} for s in times.stragglers
        ],
        "critical_path": None
        if path is None
        else {
            "iteration": path.iteration,
            "length_ns": path.length_ns,
            "parts": [asdict(part) for part in path.parts],
            "collectives": [asdict(collective) for collective in path.collectives],
            "operations": [_operation(report, row) for row in path.operations.tolist()],
            "slack": _slack(report, path),
        },
        "what_if": [asdict(change) for change in explanation.what_if],
        "alternatives": _alternatives(report),
        "memory": _memory(report),
        "longest_bubbles": [_bubble(report, bubble) for bubble in longest_bubbles(report)],
    }


def _memory(report: Report) -> dict[str, Any] | None:
    """Return what ranks and operations hold; null where that was not read, or not recorded."""
    memory = report.memory
    if memory is None:
        return None
    kinds = [{**asdict(kind), "phase": kind.phase.label} for kind in memory.operations]
    for kind in kinds:
        kind["virtual_stage"] = _number(kind["virtual_stage"])
    # Of reports by parts, the ranks that tell their stages are elsewhere.
    ranks = [{**asdict(peak), "stage": report.ranks[peak.rank].stage} for peak in memory.ranks]
    return {"ranks": ranks, "operations": kinds}


def _slowdown(report: Report) -> dict[str, Any] | None:
    """Return what stragglers cost over all averaged iterations."""
    slowdowns = report.slowdowns
    if slowdowns is None:
        return None
    return {
        **{field.name: getattr(slowdowns, field.name) for field in fields(slowdowns)},
        "by_link": {f"{source}-{target}": s for (source, target), s in slowdowns.by_link.items()},
        "replay_error": asdict(slowdowns.replay_error),
    }


def _phase_time(kind: PhaseTime) -> dict[str, Any]:
    places = {name: _number(getattr(kind, name)) for name in ("stage", "chunk", "virtual_stage")}
    return {**asdict(kind), **places, "phase": kind.phase.label}


def _number(number: int) -> int | None:
    """Return a number; null where there is none."""
    return None if number < 0 else number


def _slack(report: Report, path: CriticalPath) -> list[dict[str, Any]] | None:
    """Return the slack of the operations off the path; None where there are very many."""
    import numpy as np

    rows = np.flatnonzero(path.slack_ns > 0).tolist()
    if len(rows) > _MOST_SLACKS:
        return None
    return [{**_operation(report, row), "slack_ns": int(path.slack_ns[row])} for row in rows]


def _alternatives(report: Report) -> dict[str, Any] | None:
    others = report.alternatives
    if others is None:
        return None
    return {
        "reason": others.reason,
        "window": others.window,
        "times": None if others.measured is None else asdict(others.measured),
        "rows": [asdict(row) for row in others.rows],
    }


def _operation(report: Report, row: int) -> dict[str, Any]:
    from bubbleviz.model.phases import Phase

    operations = report.operations
    return {
        "rank": int(operations.rank[row]),
        "iteration": int(operations.iteration[row]),
        "phase": Phase(int(operations.phase[row])).label,
        "microbatch": _number(int(operations.microbatch[row])),
        "chunk": _number(int(operations.chunk[row])),
        "start_ns": int(operations.start_ns[row]),
        "end_ns": int(operations.end_ns[row]),
    }


def _bubble(report: Report, bubble: LongBubble) -> dict[str, Any]:
    from bubbleviz.explain.causes.cause import Cause

    bubbles = report.bubbles
    return {
        "rank": int(bubbles.rank[bubble.row]),
        "iteration": int(bubbles.iteration[bubble.row]),
        "start_ns": int(bubbles.start_ns[bubble.row]),
        "end_ns": int(bubbles.end_ns[bubble.row]),
        "cause": Cause(int(bubbles.cause[bubble.row])).label,
        "sentence": bubble.sentence,
    }


def _rank(rank: RankIteration) -> dict[str, Any]:
    """Return one rank's entry; the plain sums are those of the window of ``schedule``."""
    schedule = rank.accounts.get("schedule")
    return {
        "rank": rank.rank,
        "busy_ns": dict(rank.busy_ns),
        "compute_ns": rank.compute_ns,
        "active_ns": rank.active_ns,
        "kernel_ns": rank.kernel_ns,
        "gap_ns": rank.gap_ns,
        "unattributed_ns": schedule.unattributed_ns if schedule else None,
        "overlap_ns": schedule.overlap_ns if schedule else None,
        "bubble_ns": {name: account.bubble_ns for name, account in rank.accounts.items()},
        "bubble_ratio": dict(rank.bubble_ratio),
        "bubble_interval": _intervals(rank.bubble_interval),
        "missing": rank.missing,
        "windows": {name: _account(account) for name, account in rank.accounts.items()},
    }


def _account(account: Account) -> dict[str, int]:
    return {
        "start_ns": account.start_ns,
        "end_ns": account.end_ns,
        "compute_ns": account.compute_ns,
        "optimizer_ns": account.optimizer_ns,
        "overlap_ns": account.overlap_ns,
        "unattributed_ns": account.unattributed_ns,
        "bubble_ns": account.bubble_ns,
        "window_ns": account.window_ns,
    }


def _recognition(recognition: Recognition | None) -> dict[str, Any] | None:
    """Return which schedule ran, or how a plan was kept to."""
    if recognition is None:
        return None
    return {
        "name": recognition.name,
        "also": list(recognition.also),
        "exact": recognition.exact,
        "distance": recognition.distance,
        "reason": recognition.reason or None,
        "iterations": [
            {**asdict(i), "also": list(i.also), "names": list(i.names)}
            for i in recognition.iterations
        ],
        "deviation_count": recognition.deviation_count,
        "deviations": [
            {**asdict(d), "phase": d.phase.label, "chunk": None if d.chunk < 0 else d.chunk}
            for d in recognition.deviations
        ],
    }


RENDERER = Renderer(
    name="json",
    summary="report for programs (bubbleviz.report/1)",
    suffixes=(".json",),
    render=render,
    order=2,
    parts=parts,
)
