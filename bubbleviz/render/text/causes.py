"""Causes: what bubbles are made of, over all iterations and on each rank of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.count.rank_iterations import indices_of
from bubbleviz.model.texts import one_line
from bubbleviz.render.text.cells import in_percent, milliseconds, titled
from bubbleviz.render.text.tables import BulletList, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.count.iterations import Iteration
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View

#: The columns of communication.
_COMMUNICATION = (
    "wait: a receive runs, its input is not ready on the peer, or a collective, its last member "
    "has not entered; transfer: from then to its end; exposed: transfer while the rank runs "
    "nothing, and time in which a collective and no compute kernel runs inside operations (≥: of "
    "the other communication nothing tells waiting from transfer); "
    "kernels: communication kernels in the window, and from the iteration's first receive on; "
    "overlap: the share of that in which compute kernels run"
)


def causes(report: Report) -> Iterator[RenderableType]:
    """Yield the causes of the bubble of the averaged iterations."""
    rows = cause_cells(report)
    if not rows:
        return
    table = Table(
        *rows[0], left=("cause", "meaning"), wrap=("meaning",), giving_way=("% of bubble",)
    )
    for row in rows:
        table.add_row(*row.values())
    yield from titled(causes_title(report), table)


def causes_title(report: Report) -> str:
    """Return the title of the table of causes."""
    from bubbleviz.report.measure import idle_of

    what = f"What the {idle_of(report)} is made of ({report.explanation.listed_ratio} window)"
    return f"{what}, mean of ranks and averaged iterations"


def cause_cells(report: Report) -> list[dict[str, str]]:
    """Return a row of cells by column for each cause, and one for their sum; none without any."""
    from bubbleviz.report.bubble_parts import bubble_parts, rounded_shares

    parts = bubble_parts(report)
    total = sum(part.share for part in parts)
    if total == 0:
        return []
    shares = [part.share for part in parts]
    rows = zip(
        (*(part.name for part in parts), "all"),
        (*rounded_shares(shares), in_percent(total)),
        (*rounded_shares([share / total for share in shares]), in_percent(1.0)),
        (*(part.time_ns for part in parts), sum(part.time_ns for part in parts)),
        (*(part.meaning for part in parts), ""),
        strict=True,
    )
    return [
        {
            "cause": name,
            "% of window": of_window,
            "% of bubble": of_bubble,
            "ms": milliseconds(time_ns),
            "meaning": meaning,
        }
        for name, of_window, of_bubble, time_ns, meaning in rows
    ]


def idle_of_ranks(report: Report, view: View, iteration: Iteration) -> Iterator[RenderableType]:
    """Yield the causes of each rank's idle time in an iteration, communication, longest bubbles."""
    yield from by_rank(report, view, iteration)
    yield from communication(report, view, iteration)
    yield from longest(report)


def longest(report: Report) -> Iterator[RenderableType]:
    """Yield the longest bubbles of the averaged iterations that the schedule does not imply."""
    from rich.text import Text

    from bubbleviz.report.long_bubbles import longest_bubbles, longest_implied

    bubbles, implied = longest_bubbles(report), longest_implied(report)
    if not bubbles:
        return
    which = "" if implied is None else " that the schedule does not imply"
    yield Text(f"\nLongest idle intervals{which} (all of them: --bubbles FILE)", style="bold")
    lines = [one_line(bubble.sentence, 400) for bubble in bubbles]
    if implied is not None:
        lines.append(f"the longest that it implies: {one_line(implied.sentence, 400)}")
    yield BulletList(lines)


def by_rank(report: Report, view: View, iteration: Iteration) -> Iterator[RenderableType]:
    """Yield the causes of each rank's idle time in an iteration; of each stage's, of very many."""
    from bubbleviz.explain.causes.cause import Cause
    from bubbleviz.render.text.many_ranks import listed_ranks

    name = report.explanation.listed_ratio
    idle_ns = report.explanation.causes.idle_ns[name][iteration.index]
    at_work = indices_of(iteration.ranks)
    columns = [cause for cause in Cause if idle_ns[at_work, cause].any()]
    if not columns:
        return
    listed = listed_ranks(report, view, iteration)
    table = Table("#", "stage", *(cause.label for cause in columns))
    for row in listed.rows:
        means_ns = idle_ns[list(row.ranks)].mean(axis=0).tolist()
        table.add_row(row.number, row.stage, *(milliseconds(means_ns[cause]) for cause in columns))
    if listed.omitted:
        table.add_row("", f"… {listed.omitted} more")
    of = f"idle time by cause{listed.of}, ms ({name} window)"
    yield from titled(f"Iteration {one_line(iteration.name, 60)}: {of}", table)


def communication(report: Report, view: View, iteration: Iteration) -> Iterator[RenderableType]:
    """Yield how long each rank communicated in an iteration, and waited for it."""
    from rich.text import Text

    from bubbleviz.render.text.many_ranks import listed_ranks

    times = report.explanation.communication
    ranks = indices_of(iteration.ranks)
    at = iteration.index
    if not times.communication_ns[at, ranks].any() and not times.wait_ns[at, ranks].any():
        return
    columns = ("wait", "transfer", "exposed", "kernels", "overlap %")
    # Without a receive whose input is known, or a collective whose members are, no time is known to
    # be waiting or transfer.
    known = bool(report.explanation.received.any()) or bool(times.wait_ns.any())
    table = Table("#", "stage", *columns)
    listed = listed_ranks(report, view, iteration)
    for row in listed.rows:
        own = list(row.ranks)
        whole = float(times.communication_ns[at, own].mean())
        alone_ns = whole - float(times.overlapped_ns[at, own].mean())
        exposed_ns = float(times.exposed_ns[at, own].mean())
        table.add_row(
            row.number,
            row.stage,
            *(
                milliseconds(float(column[at, own].mean())) if known else "-"
                for column in (times.wait_ns, times.transfer_ns)
            ),
            f"{'' if known or alone_ns <= exposed_ns else '≥ '}{milliseconds(exposed_ns)}",
            milliseconds(whole),
            in_percent((whole - alone_ns) / whole if whole else None),
        )
    if listed.omitted:
        table.add_row("", f"… {listed.omitted} more")
    of = f"communication{listed.of}, ms"
    yield from titled(f"Iteration {one_line(iteration.name, 60)}: {of}", table)
    yield Text(_COMMUNICATION)
