"""The report as text: its sections in the order in which they are printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.count.rank_iterations import indices_of
from bubbleviz.model.texts import one_line
from bubbleviz.render.document import (
    MOST_ROWS,
    Bullets,
    Heading,
    Sentence,
    Table,
    in_percent,
    milliseconds,
    shortened,
)
from bubbleviz.render.text.headline import advice, headline
from bubbleviz.render.text.ranks import ranks
from bubbleviz.render.text.sections import (
    advice_table,
    alternatives,
    critical_path,
    limitation_lines,
    memory,
    not_averaged,
    orders,
    phase_times,
    ratios,
    shown_iteration,
    slowdowns,
    what_if,
)
from bubbleviz.render.text.terminal import WIDTH
from bubbleviz.report.rank_means import many_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bubbleviz.count.iterations import Iteration
    from bubbleviz.model.columns import Ints
    from bubbleviz.model.operations import ProfileSummary
    from bubbleviz.render.document import Block
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


def causes(report: Report) -> Table:
    """Return the causes of the bubble of the averaged iterations, a row each, and their sum.

    It has no rows where nothing is known of them.
    """
    from bubbleviz.report.bubbles import bubble_parts, rounded_shares
    from bubbleviz.report.rank_means import idle_of

    what = f"What the {idle_of(report)} is made of ({report.explanation.listed_ratio} window)"
    parts = bubble_parts(report)
    shares = [part.share for part in parts]
    total = sum(shares)
    rows = zip(
        (*(part.name for part in parts), "all"),
        (*rounded_shares(shares), in_percent(total)),
        (*rounded_shares([share / total for share in shares]), in_percent(1.0)) if total else (),
        (*(part.time_ns for part in parts), sum(part.time_ns for part in parts)),
        (*(part.meaning for part in parts), ""),
        strict=bool(total),
    )
    return Table(
        f"{what}, mean of ranks and averaged iterations",
        [
            {
                "cause": name,
                "% of window": of_window,
                "% of bubble": of_bubble,
                "ms": milliseconds(time_ns),
                "meaning": meaning,
            }
            for name, of_window, of_bubble, time_ns, meaning in rows
        ],
        left=("cause", "meaning"),
        wrap=("meaning",),
        giving_way=("% of bubble",),
    )


def longest(report: Report) -> Iterator[Block]:
    """Yield the longest bubbles of the averaged iterations that the schedule does not imply."""
    from bubbleviz.report.bubbles import longest_bubbles, longest_implied

    bubbles, implied = longest_bubbles(report), longest_implied(report)
    if not bubbles:
        return
    which = "" if implied is None else " that the schedule does not imply"
    yield Heading(f"Longest idle intervals{which} (all of them: --bubbles FILE)")
    lines = [one_line(bubble.sentence, 400) for bubble in bubbles]
    if implied is not None:
        lines.append(f"the longest that it implies: {one_line(implied.sentence, 400)}")
    yield Bullets(lines)


def by_rank(report: Report, view: View, iteration: Iteration) -> Iterator[Block]:
    """Yield the causes of each rank's idle time in an iteration; of each stage's, of very many."""
    from bubbleviz.explain.causes.cause import Cause
    from bubbleviz.render.text.ranks import listed_ranks

    name = report.explanation.listed_ratio
    idle_ns = report.explanation.causes.idle_ns[name][iteration.index]
    at_work = indices_of(iteration.ranks)
    columns = [cause for cause in Cause if idle_ns[at_work, cause].any()]
    if not columns:
        return
    listed, more, of_what = listed_ranks(report, view, iteration)
    rows = []
    for row in listed:
        means_ns = idle_ns[list(row.ranks)].mean(axis=0).tolist()
        times = {cause.label: milliseconds(means_ns[cause]) for cause in columns}
        rows.append({"#": row.number, "stage": row.stage, **times})
    of = f"idle time by cause{of_what}, ms ({name} window)"
    yield Table(f"Iteration {one_line(iteration.name, 60)}: {of}", [*rows, *more])


def communication(report: Report, view: View, iteration: Iteration) -> Iterator[Block]:
    """Yield how long each rank communicated in an iteration, and waited for it."""
    from bubbleviz.render.text.ranks import listed_ranks

    times = report.explanation.communication
    ranks = indices_of(iteration.ranks)
    at = iteration.index
    if not times.communication_ns[at, ranks].any() and not times.wait_ns[at, ranks].any():
        return
    # Without a receive whose input is known, or a collective whose members are, no time is known to
    # be waiting or transfer.
    known = bool(report.explanation.received.any()) or bool(times.wait_ns.any())
    rows = []
    listed, more, of_what = listed_ranks(report, view, iteration)
    for row in listed:

        def mean_ns(column: Ints, own: tuple[int, ...] = row.ranks) -> float:
            return float(column[at, list(own)].mean())

        whole_ns, exposed_ns = mean_ns(times.communication_ns), mean_ns(times.exposed_ns)
        alone_ns = whole_ns - mean_ns(times.overlapped_ns)
        least = "" if known or alone_ns <= exposed_ns else "≥ "
        overlap = (whole_ns - alone_ns) / whole_ns if whole_ns else None
        rows.append(
            {
                "#": row.number,
                "stage": row.stage,
                "wait": milliseconds(mean_ns(times.wait_ns)) if known else "-",
                "transfer": milliseconds(mean_ns(times.transfer_ns)) if known else "-",
                "exposed": f"{least}{milliseconds(exposed_ns)}",
                "kernels": milliseconds(whole_ns),
                "overlap %": in_percent(overlap),
            }
        )
    title = f"Iteration {one_line(iteration.name, 60)}: communication{of_what}, ms"
    yield Table(title, [*rows, *more])
    yield Sentence(_COMMUNICATION)


# Profiles: the clock of each host, and the coverage of each profile.


def clocks(report: Report) -> Iterator[Block]:
    """Yield the offset of each host's clock, where there are several."""
    first: dict[tuple[str, float, int | None], ProfileSummary] = {}
    for number, profile in enumerate(report.profiles):
        first.setdefault(report.clock(number), profile)
    if len(first) < 2:
        return
    shown = list(first.values())
    if many_ranks(len(report.ranks)):
        shown.sort(key=lambda own: -_unbounded(own.clock_uncertainty_ns))
    rows = [
        {
            "host": shortened(one_line(own.host, 200), 28),
            "offset ms": milliseconds(own.clock_offset_ns),
            "± us": "-"
            if own.clock_uncertainty_ns is None
            else f"{own.clock_uncertainty_ns / 1e3:,.1f}",
            "drift ppm": f"{own.clock_drift_ppm:.3f}" if own.clock_drift_ppm else "-",
        }
        for own in shown[:MOST_ROWS]
    ]
    if len(first) > MOST_ROWS:
        rows.append({"host": f"… and {len(first) - MOST_ROWS} more"})
    title = "Clocks: offset of each host to the first, and its uncertainty"
    yield Table(title, rows, left=("host",))


def _unbounded(uncertainty_ns: int | None) -> float:
    return float("inf") if uncertainty_ns is None else float(uncertainty_ns)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "-"


def coverage(report: Report) -> Iterator[Block]:
    """Yield how many kernels of each profile are attributed, and the largest that are not."""
    profiles = list(report.profiles)
    if many_ranks(len(report.ranks)):
        # Of very many, those of which least is explained.
        profiles.sort(key=lambda own: own.attributed_gpu_ns / own.gpu_ns if own.gpu_ns else 0.0)
    rows = [
        {
            "profile": shortened(one_line(Path(profile.path).name, 200), 28),
            "kernels": f"{profile.kernels:,}",
            "linked %": _share(profile.linked_kernels, profile.kernels),
            "attributed %": _share(profile.attributed_kernels, profile.kernels),
            "cross-thread": f"{profile.cross_thread_kernels:,}",
            "attributed time %": _share(profile.attributed_gpu_ns, profile.gpu_ns),
            "comm. ms": milliseconds(profile.comm_ns),
            "copies ms": milliseconds(profile.copy_ns),
        }
        for profile in profiles[:MOST_ROWS]
    ]
    if len(report.profiles) > MOST_ROWS:
        rows.append({"profile": f"… and {len(report.profiles) - MOST_ROWS} more"})
    yield Table(
        "Coverage: kernels, and compute time attributed to operations",
        rows,
        left=("profile",),
        giving_way=("cross-thread", "copies ms", "comm. ms", "attributed %", "linked %", "kernels"),
    )
    largest = sorted(report.unattributed_kernels, key=lambda k: (-k.gpu_ns, k.rank, k.name))[:5]
    if largest:
        yield Bullets(
            [
                f"unattributed: {milliseconds(k.gpu_ns)} ms in {k.count:,} x "
                f"{one_line(k.name, 60)} on {one_line(report.ranks[k.rank].label, 40)}, "
                f"{one_line(k.where, 80)}"
                for k in largest
            ]
        )


def limitations(report: Report) -> Iterator[Block]:
    """Yield the limitations, if any."""
    if report.limitations:
        yield Heading("Limitations")
        yield Bullets(limitation_lines(report))


def methods(report: Report) -> Iterator[Block]:
    """Yield the sentences on methods for a paper, where there is a ratio of a pipeline to quote."""
    from bubbleviz.report.methods import methods as sentences

    if report.no_pipeline is None and report.summary.bubble_ratio[report.headline].mean is not None:
        yield Heading("Methods, ready to paste")
        yield Sentence(one_line(sentences(report), None))


# All sections, and those of some names.


def sections(report: Report, view: View, width: int = WIDTH) -> Iterator[Block]:
    """Yield the sections of a report, for a console of that width."""
    for _, blocks in _sections(report, view, width):
        yield from blocks


def details(
    report: Report, view: View, names: Sequence[str], width: int = WIDTH
) -> Iterator[Block]:
    """Yield some tables of a report, in the order named.

    Args:
        report: any report.
        view: the iteration and the ranks that are listed.
        names: as in ``--details``.
        width: of the console.
    """
    for name in names:
        listed = [
            b for own, blocks in _sections(report, view, width) if own == name for b in blocks
        ]
        yield from listed or [Sentence(f"\n{name}: this run has nothing to list")]


def _sections(report: Report, view: View, width: int) -> Iterator[tuple[str, Iterable[Block]]]:
    """Yield sections in the order in which they are printed, with their names in ``--details``."""
    yield "", [headline(report)]
    yield "operations", orders(report)
    yield "", advice(report)
    yield "ratios", [ratios(report)]
    yield "causes", [table for table in [causes(report)] if table.rows]
    iteration = shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield "ranks", ranks(report, view, iteration, width)
        yield "causes", by_rank(report, view, iteration)
        yield "communication", communication(report, view, iteration)
        yield "causes", longest(report)
    yield "operations", phase_times(report)
    yield "operations", critical_path(report)
    yield "operations", what_if(report)
    yield "operations", alternatives(report)
    yield "operations", memory(report)
    yield "advice", advice_table(report)
    yield "slowdown", slowdowns(report)
    yield "ratios", not_averaged(report)
    yield "clocks", clocks(report)
    yield "coverage", coverage(report)
    yield "coverage", limitations(report)
    yield "ratios", methods(report)
