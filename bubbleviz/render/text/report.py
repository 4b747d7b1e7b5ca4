"""The report as text: its sections in the order in which they are printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.count.rank_iterations import indices_of
from bubbleviz.model.texts import one_line
from bubbleviz.render.text.headline import advice, headline
from bubbleviz.render.text.ranks import ranks
from bubbleviz.render.text.sections import (
    advice_table,
    memory,
    not_averaged,
    orders,
    ratios,
    slowdowns,
)
from bubbleviz.render.text.stacked_bar import limitations
from bubbleviz.render.text.tables import (
    MOST_ROWS,
    WIDTH,
    BulletList,
    Table,
    in_percent,
    milliseconds,
    shortened,
    titled,
)
from bubbleviz.render.text.times import alternatives, critical_path, phase_times, what_if
from bubbleviz.report.rank_means import many_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from bubbleviz.count.iterations import Iteration
    from bubbleviz.model.operations import ProfileSummary
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


# Causes: what bubbles are made of, over all iterations and on each rank of one.


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
    from bubbleviz.report.rank_means import idle_of

    what = f"What the {idle_of(report)} is made of ({report.explanation.listed_ratio} window)"
    return f"{what}, mean of ranks and averaged iterations"


def cause_cells(report: Report) -> list[dict[str, str]]:
    """Return a row of cells by column for each cause, and one for their sum; none without any."""
    from bubbleviz.report.bubbles import bubble_parts, rounded_shares

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

    from bubbleviz.report.bubbles import longest_bubbles, longest_implied

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
    from bubbleviz.render.text.ranks import listed_ranks

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

    from bubbleviz.render.text.ranks import listed_ranks

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


# Profiles: the clock of each host, and the coverage of each profile.


def clocks(report: Report) -> Iterator[RenderableType]:
    """Yield the offset of each host's clock, where there are several."""
    first: dict[tuple[str, float, int | None], ProfileSummary] = {}
    for number, profile in enumerate(report.profiles):
        first.setdefault(report.clock(number), profile)
    if len(first) < 2:
        return
    table = Table("host", "offset ms", "± us", "drift ppm", left=("host",))
    shown = list(first.values())
    if many_ranks(len(report.ranks)):
        shown.sort(key=lambda own: -_unbounded(own.clock_uncertainty_ns))
    for profile in shown[:MOST_ROWS]:
        uncertainty_ns = profile.clock_uncertainty_ns
        table.add_row(
            shortened(one_line(profile.host, 200), 28),
            milliseconds(profile.clock_offset_ns),
            "-" if uncertainty_ns is None else f"{uncertainty_ns / 1e3:,.1f}",
            f"{profile.clock_drift_ppm:.3f}" if profile.clock_drift_ppm else "-",
        )
    if len(first) > MOST_ROWS:
        table.add_row(f"… and {len(first) - MOST_ROWS} more")
    yield from titled("Clocks: offset of each host to the first, and its uncertainty", table)


def _unbounded(uncertainty_ns: int | None) -> float:
    return float("inf") if uncertainty_ns is None else float(uncertainty_ns)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "-"


def coverage(report: Report) -> Iterator[RenderableType]:
    """Yield how many kernels of each profile are attributed, and the largest that are not."""
    table = Table(
        "profile",
        "kernels",
        "linked %",
        "attributed %",
        "cross-thread",
        "attributed time %",
        "comm. ms",
        "copies ms",
        left=("profile",),
        giving_way=("cross-thread", "copies ms", "comm. ms", "attributed %", "linked %", "kernels"),
    )
    profiles = list(report.profiles)
    if many_ranks(len(report.ranks)):
        # Of very many, those of which least is explained.
        profiles.sort(key=lambda own: own.attributed_gpu_ns / own.gpu_ns if own.gpu_ns else 0.0)
    for profile in profiles[:MOST_ROWS]:
        table.add_row(
            shortened(one_line(Path(profile.path).name, 200), 28),
            f"{profile.kernels:,}",
            _share(profile.linked_kernels, profile.kernels),
            _share(profile.attributed_kernels, profile.kernels),
            f"{profile.cross_thread_kernels:,}",
            _share(profile.attributed_gpu_ns, profile.gpu_ns),
            milliseconds(profile.comm_ns),
            milliseconds(profile.copy_ns),
        )
    if len(report.profiles) > MOST_ROWS:
        table.add_row(f"… and {len(report.profiles) - MOST_ROWS} more")
    yield from titled("Coverage: kernels, and compute time attributed to operations", table)
    largest = sorted(report.unattributed_kernels, key=lambda k: (-k.gpu_ns, k.rank, k.name))[:5]
    if largest:
        yield BulletList(
            f"unattributed: {milliseconds(k.gpu_ns)} ms in {k.count:,} x {one_line(k.name, 60)} "
            f"on {one_line(report.ranks[k.rank].label, 40)}, {one_line(k.where, 80)}"
            for k in largest
        )


def sections(report: Report, view: View, width: int = WIDTH) -> Iterator[RenderableType]:
    """Yield the sections of a report, for a console of that width."""
    yield headline(report)
    yield from orders(report)
    yield from advice(report)
    yield from ratios(report)
    yield from causes(report)
    iteration = shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield from ranks(report, view, iteration, width)
        yield from idle_of_ranks(report, view, iteration)
    yield from phase_times(report)
    yield from critical_path(report)
    yield from what_if(report)
    yield from alternatives(report)
    yield from memory(report)
    yield from advice_table(report)
    yield from slowdowns(report)
    yield from not_averaged(report)
    yield from clocks(report)
    yield from coverage(report)
    yield from limitations(report)
    yield from _methods(report)


def details(
    report: Report, view: View, names: Sequence[str], width: int = WIDTH
) -> Iterator[RenderableType]:
    """Yield some tables of a report, in the order named.

    Args:
        report: any report.
        view: the iteration and the ranks that are listed.
        names: as in ``--details``.
        width: of the console.
    """
    from rich.text import Text

    for name in names:
        empty = True
        for section in _TABLES[name](report, view, width):
            empty = False
            yield section
        if empty:
            yield Text(f"\n{name}: this run has nothing to list")


def _listed_ratios(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from ratios(report)
    yield from not_averaged(report)
    yield from _methods(report)


def _listed_ranks(report: Report, view: View, width: int) -> Iterator[RenderableType]:
    iteration = shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield from ranks(report, view, iteration, width)


def _listed_causes(report: Report, view: View, _width: int) -> Iterator[RenderableType]:
    yield from causes(report)
    iteration = shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield from by_rank(report, view, iteration)
        yield from longest(report)


def _listed_communication(report: Report, view: View, _width: int) -> Iterator[RenderableType]:
    iteration = shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield from communication(report, view, iteration)


def _listed_operations(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from orders(report)
    yield from phase_times(report)
    yield from critical_path(report)
    yield from what_if(report)
    yield from alternatives(report)
    yield from memory(report)


def _listed_advice(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from advice_table(report)


def _listed_slowdowns(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from slowdowns(report)


def _listed_clocks(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from clocks(report)


def _listed_coverage(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from coverage(report)
    yield from limitations(report)


#: The tables by name; see ``--details``.
_TABLES: Mapping[str, Callable[[Report, View, int], Iterator[RenderableType]]] = {
    "ratios": _listed_ratios,
    "ranks": _listed_ranks,
    "causes": _listed_causes,
    "communication": _listed_communication,
    "operations": _listed_operations,
    "advice": _listed_advice,
    "slowdown": _listed_slowdowns,
    "clocks": _listed_clocks,
    "coverage": _listed_coverage,
}


def shown_iteration(report: Report, view: View) -> Iteration | None:
    """Return the iteration that is listed by rank: the first of the view, else the typical one."""
    chosen = [i for i in report.iterations if i.index in view.iterations]
    return chosen[0] if chosen else report.typical_iteration()


def _methods(report: Report) -> Iterator[RenderableType]:
    from rich.text import Text

    from bubbleviz.report.methods import methods

    if report.no_pipeline is not None or report.summary.bubble_ratio[report.headline].mean is None:
        return
    yield Text("\nMethods, ready to paste", style="bold")
    yield Text(one_line(methods(report), None))
