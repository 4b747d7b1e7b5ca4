"""Slowdowns: how many times longer iterations take than ideal ones, and what makes them so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.text.cells import in_percent, milliseconds, titled
from bubbleviz.render.text.tables import BulletList, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.explain.slowdown.slowdowns import Slowdowns
    from bubbleviz.report.report import Report

#: So many of each kind are listed, the slowest.
_LISTED = 3


def slowdowns(report: Report) -> Iterator[RenderableType]:
    """Yield what stragglers cost over all averaged iterations."""
    from rich.text import Text

    found = report.slowdowns
    source = report.explanation.slowdown_source
    if found is None:
        if source is not None and source.reason:
            yield Text(f"\nSlowdowns are unknown: {source.reason}")
        return
    table = Table("what", "slowdown", left=("what",), wrap=("what",))
    table.add_row("all together", _times(found.total))
    for name, value in _slowest(report, found):
        table.add_row(one_line(name, 60), _times(value))
    yield from titled(
        f"Slowdown against an ideal iteration, over {counted(len(found.by_iteration), 'iteration')}"
        f" ({milliseconds(found.original_ns)} against {milliseconds(found.ideal_ns)} ms)",
        table,
    )
    yield BulletList(_notes(found))


def _slowest(report: Report, found: Slowdowns) -> Iterator[tuple[str, float]]:
    """Yield what costs most of each kind, the slowest first."""
    from bubbleviz.report.labels import numbered_rank

    groups = (
        [(f"phase {name}", s) for name, s in found.by_phase.items()],
        [(f"stage {stage}", s) for stage, s in found.by_stage.items()],
        [(f"replica {replica}", s) for replica, s in found.by_replica.items()],
        [(numbered_rank(report, rank), s) for rank, s in found.by_rank.items()],
        [(f"microbatch {number}", s) for number, s in found.by_microbatch.items()],
        [(f"link {ends[0]} to {ends[1]}", s) for ends, s in found.by_link.items()],
        [(f"iteration {report.iterations[n].name}", s) for n, s in found.by_iteration.items()],
    )
    for group in groups:
        if len(group) > 1:
            yield from sorted(group, key=lambda pair: -pair[1])[:_LISTED]


def _notes(found: Slowdowns) -> Iterator[str]:
    yield (
        "ideal: every kind of operation takes its mean over all ranks and iterations, every "
        "transfer its median; a part is the ideal with only its own times put back"
    )
    if found.worker_share is not None:
        yield (
            "share of the slowdown that goes without the slowest 3 % of the ranks (at least one): "
            f"{in_percent(found.worker_share)} %"
        )
    if found.last_stage_share is not None:
        yield f"share that goes without the last stage: {in_percent(found.last_stage_share)} %"
    error = found.replay_error
    yield (
        f"the replay, without launch delays, is off by {in_percent(error.mean)} % on average and "
        f"{in_percent(error.maximum)} % at most, with them by "
        f"{in_percent(error.mean_with_delays)} % and {in_percent(error.maximum_with_delays)} %"
    )


def _times(slowdown: float) -> str:
    return f"{slowdown:.3f}"
