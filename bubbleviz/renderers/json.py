"""JSON: the machine-readable report, schema ``bubbleviz.report/1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bubbleviz.renderers import Renderer

if TYPE_CHECKING:
    from bubbleviz.count import Account, Iteration, RankIteration, Spread
    from bubbleviz.recognition import Recognition
    from bubbleviz.report import Report, View


def render(report: Report, view: View) -> str:
    """Return the report as JSON; the view plays no part, everything is in it."""
    del view
    return (
        "{\n"
        + ",\n".join(f"{_text(k)}: {_lines(v)}" for k, v in document(report).items())
        + "\n}\n"
    )


def _lines(value: Any) -> str:
    """Return a value with a line for each item of a list: to be read, compared and searched.

    Indented all the way down it would take twenty times as long.
    """
    if isinstance(value, list) and value:
        return "[\n " + ",\n ".join(map(_text, value)) + "\n]"
    return _text(value)


def _text(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def document(report: Report) -> dict[str, Any]:
    """Return the report as nested JSON values, keys as in the documented schema."""
    from bubbleviz.report import SCHEMA

    summary = report.summary
    return {
        "schema": SCHEMA,
        "bubbleviz": report.version,
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
        "iterations": [_iteration(iteration) for iteration in report.iterations],
        "summary": {
            "iterations": summary.iterations,
            "bubble_ratio": _spreads(summary.bubble_ratio),
            "bubble_interval": _intervals(summary.bubble_interval),
            "bubble_low": _spreads(summary.bubble_low),
            "bubble_overhead": _spreads(summary.bubble_overhead),
            "window_ns": _spreads(summary.window_ns),
        },
        "schedule": _recognition(report.schedule),
        "plan": _recognition(report.plan),
        "coverage": [asdict(own) for own in report.coverage],
        "unattributed_kernels": [asdict(kernels) for kernels in report.unattributed_kernels],
        "limitations": [asdict(limitation) for limitation in report.limitations],
    }


def _spreads(spreads: Mapping[str, Spread]) -> dict[str, Any]:
    return {name: asdict(spread) for name, spread in spreads.items()}


def _intervals(
    intervals: Mapping[str, tuple[float, float] | None],
) -> dict[str, list[float] | None]:
    """Return between what the clocks allow the ratios that need a common one; None unknown."""
    from bubbleviz.statistics import statistics

    found = {s.name: intervals.get(s.name) for s in statistics() if s.common_clock}
    return {name: None if own is None else list(own) for name, own in found.items()}


def _iteration(iteration: Iteration) -> dict[str, Any]:
    ratios = iteration.ratios
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
        "ranks": [_rank(own) for own in iteration.ranks],
    }


def _rank(own: RankIteration) -> dict[str, Any]:
    """Return one rank's entry; the plain sums are those of the window of ``schedule``."""
    schedule = own.accounts.get("schedule")
    return {
        "rank": own.rank,
        "busy_ns": dict(own.busy_ns),
        "compute_ns": own.compute_ns,
        "active_ns": own.active_ns,
        "unattributed_ns": schedule.unattributed_ns if schedule else None,
        "overlap_ns": schedule.overlap_ns if schedule else None,
        "bubble_ns": {name: account.bubble_ns for name, account in own.accounts.items()},
        "bubble_ratio": dict(own.bubble_ratio),
        "bubble_interval": _intervals(own.bubble_interval),
        "missing": own.missing,
        "windows": {name: _account(account) for name, account in own.accounts.items()},
    }


def _account(account: Account) -> dict[str, int]:
    return {**asdict(account), "window_ns": account.window_ns}


def _recognition(found: Recognition | None) -> dict[str, Any] | None:
    """Return which schedule ran, or how a plan was kept to."""
    if found is None:
        return None
    return {
        "name": found.name,
        "also": list(found.also),
        "exact": found.exact,
        "distance": found.distance,
        "because": found.because or None,
        "iterations": [
            {**asdict(own), "also": list(own.also), "names": list(own.names)}
            for own in found.iterations
        ],
        "deviation_count": found.deviation_count,
        "deviations": [
            {**asdict(one), "phase": one.phase.label, "chunk": None if one.chunk < 0 else one.chunk}
            for one in found.deviations
        ],
    }


RENDERER = Renderer(
    name="json",
    summary="machine-readable report (schema bubbleviz.report/1)",
    render=render,
    order=2,
)
