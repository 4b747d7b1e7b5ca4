"""A table of the pieces of extra work that fit into the bubbles of each stage."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.explain.extra_work import ExtraWork, StageSlots
from bubbleviz.model.texts import format_count
from bubbleviz.render import document as doc
from bubbleviz.report.labels import name_rank
from bubbleviz.report.report import Report

#: Name of the row for a job whose pieces all stages share.
_SHARED = "all, shared"


def list_extra_work(report: Report) -> Iterator[doc.Block]:
    """Yield a table of what fits into the bubbles of each stage, and a sentence about the table.

    Yields nothing if no extra work was given.
    """
    extra = report.extra_work
    if extra is None:
        return
    job = f"{doc.format_ms(extra.work_ns)} ms in pieces of {doc.format_ms(extra.piece_ns)} ms"
    if not extra.iterations:
        yield doc.Sentence(
            f"It is unknown how much extra work fits ({job}): no iteration with a known "
            f"{extra.ratio} window is averaged"
        )
        return
    rows = [_make_stage_row(report, stage, extra.work_ns) for stage in extra.stages[: doc.MAX_ROWS]]
    rows.append(_make_shared_row(extra))
    yield doc.Table(
        f"Extra work that fits into bubbles, per iteration: {job}",
        rows,
        left=("stage",),
        drop_order=("idle ms",),
    )
    yield doc.Sentence(
        f"Mean of {format_count(extra.iterations, 'iteration')}, {extra.ratio} window. The "
        f"longest bubble lasts {doc.format_ms(extra.longest_ns)} ms. Each stage is represented by "
        "its rank with the fewest pieces, and runs the whole job; in the last row, the stages "
        "share its pieces. Memory, kernel contention and data dependencies are ignored (see: "
        "bubbleviz guide extra-work)"
    )


def _make_stage_row(report: Report, slots: StageSlots, work_ns: int) -> dict[str, str]:
    """Return the table cells for a stage, keyed by header."""
    name = str(slots.stage) if slots.stage >= 0 else name_rank(report, slots.rank)
    kinds = (slots.warm_up_pieces, slots.between_pieces, slots.drain_pieces)
    return _make_row(name, slots.idle_ns, kinds, slots.fitting_ns, work_ns)


def _make_shared_row(extra: ExtraWork) -> dict[str, str]:
    """Return the table cells for a job whose pieces all stages share, keyed by header."""
    kinds = (
        sum(slots.warm_up_pieces for slots in extra.stages),
        sum(slots.between_pieces for slots in extra.stages),
        sum(slots.drain_pieces for slots in extra.stages),
    )
    idle_ns = sum(slots.idle_ns for slots in extra.stages)
    return _make_row(_SHARED, idle_ns, kinds, extra.fitting_ns, extra.work_ns)


def _make_row(
    name: str, idle_ns: float, kinds: tuple[float, float, float], fitting_ns: float, work_ns: int
) -> dict[str, str]:
    """Return the table cells of a row, keyed by header.

    Args:
        name: First cell of the row.
        idle_ns: Time of the bubbles.
        kinds: Number of pieces that fit before the first operation, between two operations, and
            after the last operation.
        fitting_ns: Time of the job that fits.
        work_ns: Length of the job.
    """
    warm_up, between, drain = map(_format_pieces, kinds)
    return {
        "stage": name,
        "idle ms": doc.format_ms(idle_ns),
        "warm-up": warm_up,
        "between": between,
        "drain": drain,
        "pieces": _format_pieces(sum(kinds)),
        "fits ms": doc.format_ms(fitting_ns),
        "fits %": doc.format_percent_cell(fitting_ns / work_ns),
        "rest ms": doc.format_ms(work_ns - fitting_ns),
    }


def _format_pieces(count: float) -> str:
    """Format a mean number of pieces, with one decimal unless it is an integer."""
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"
