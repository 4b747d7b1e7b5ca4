"""The report as text: its headline, its first screen, and its sections in order.

The headline is the bubble ratio to quote, its uncertainty, and what it is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bubbleviz.count.ratios import ratio_definitions
from bubbleviz.explain.recognition.reasons import NO_PIPELINE
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import ProfileSummary
from bubbleviz.model.phase_masks import EVALUATION
from bubbleviz.model.texts import capitalised, counted, one_line
from bubbleviz.render import document as doc
from bubbleviz.render.markdown import markdown
from bubbleviz.render.palette import BUBBLE_PARTS
from bubbleviz.render.text import ranks
from bubbleviz.render.text import sections as own
from bubbleviz.render.text import terminal_timeline as timeline
from bubbleviz.render.text.terminal import Display, paragraph, plain_text
from bubbleviz.report import bubbles
from bubbleviz.report.advice import first_thing, further_advice
from bubbleviz.report.methods import methods
from bubbleviz.report.rank_means import idle_of, kernel_time_of, many_ranks, measure_of
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


def headline_lines(report: Report) -> tuple[str, str, str, str]:
    """Return the primary ratio, its uncertainty, the run that it is of, and why it is primary."""
    marked = "".join(f" ! ({mark})" for mark in _restriction_marks(report))
    bounds = "".join(f"{joint}{text}" for joint, text in _bounds(report))
    mean = report.summary.bubble_ratio[report.headline].mean
    why = f"primary ratio: {report.headline} ({one_line(report.headline_reason, 400)})"
    value = f"{measure_of(report)}: {doc.percent(mean)}"
    return value, f"{_spread(report)}{marked}{bounds}", _run(report), why


def _spread(report: Report) -> str:
    """Return the confidence interval of the primary ratio, or its two values; empty for one."""
    spread = report.summary.bubble_ratio[report.headline]
    if spread.pair is not None:
        return " ({} and {} in two iterations)".format(*map(doc.percent, spread.pair))
    if spread.ci95 is None or spread.mean is None:
        return ""
    return f" ± {doc.percent(spread.ci95)} (95 % CI of the mean, n = {spread.n})"


def _restriction_marks(report: Report) -> tuple[str, ...]:
    """Return what restricts the primary ratio, what weighs most first."""
    marks = tuple(restriction.text for restriction in report.restrictions)
    contradicted = report.contradicted(report.headline)
    return (*marks, "clocks contradict each other") if contradicted else marks


def _bounds(report: Report) -> Iterator[tuple[str, str]]:
    """Yield what bounds the primary ratio and what stands beside it, each with its joint."""
    interval = report.summary.bubble_interval.get(report.headline)
    if interval is not None and interval[0] < interval[1]:
        yield ", ", f"clock bounds {doc.between(interval)} %"
    low = report.lower_bound(report.headline)
    if low is not None:
        yield "; ", f"{doc.percent(low)} with compute outside every operation counted as work"
    if report.summary.iterations and (kernels := kernel_time_of(report).sentence) is not None:
        yield "; ", kernels


def _run(report: Report) -> str:
    """Return the ranks, hosts and iterations that the primary ratio is of."""
    ranks, hosts = len(report.ranks), len({rank.host for rank in report.ranks})
    nvtx = "NVTX " if all(profile.format == "nsys" for profile in report.profiles) else ""
    return (
        f"{counted(ranks, 'rank')} on {counted(hosts, 'host')}, {report.summary.iterations} of "
        f"{counted(len(report.iterations), 'iteration')} averaged, "
        f"{nvtx}convention: {one_line(report.convention, 60)}"
    )


def _advice_sentence(report: Report, first: str | None) -> str | None:
    """Return the first advice, and what it would save; None where there is none."""
    if first is not None:
        return one_line(first, 600)
    if report.summary.iterations > 0:
        return None
    skipped = any(i.complete and i.kind != EVALUATION for i in report.iterations)
    remedy = "leave out fewer with --skip, or record more" if skipped else "record whole ones"
    return f"nothing can be advised, since no iteration is averaged; {remedy}"


# The first screen: what one wants to know of a run, in at most 40 lines of 80 columns.
#
# From top to bottom: the headline with its definition, what restricts it, the run; the typical
# iteration; what the bubble is made of; what to do first; which ranks stand out; what else matters.


#: Lines of the screen, where it has 80 columns or more; more than ten rows come on top.
MOST_LINES = 40
#: Rows of the timeline, from the fullest screen to the barest one; up to so many all are drawn.
_FITS, _ALL = (10, 8, 6, 5, 4, 2), 32
#: Share of compute time attributed to operations, below which coverage matters.
_COVERED = 0.95
#: How much clocks may leave open before they matter.
_CLOCK_BOUNDS = 0.005
#: Colour of a restriction.
_WARNING = "bold yellow"


def first_screen(report: Report, view: View, display: Display) -> list[doc.Line]:
    """Return the lines of the first screen.

    Args:
        report: any report.
        view: the iteration and the ranks to draw.
        display: where they are shown.
    """
    iteration = own.shown_iteration(report, view)
    selection = None if iteration is None else timeline.timeline_selection(report, view, iteration)
    first = first_thing(report)
    advice = _advice_sentence(report, first)
    more = (
        "-v (all tables), or -v ratios, ranks, causes, communication, operations, advice, "
        "slowdown, clocks, coverage; -o bubbles.svg draws it"
    )
    blocks = [
        [*_headline(report, display)],
        [],
        _bubble(report, display),
        paragraph(advice, display, lead="What to do first:", most=7) if advice else [],
        [
            line
            for further in further_advice(report, first)
            for line in paragraph(one_line(further, 200), display, lead="Then:", most=2)
        ],
        ranks.first_lines(report, display),
        [*_doubts(report, display)],
        paragraph(more, display, lead="More:", style="dim"),
    ]
    lines: list[doc.Line] = []
    stages = 0 if selection is None else len(selection.rows)
    for rows in _FITS if not _FITS[0] < stages <= _ALL else (stages,):
        if selection is not None:
            blocks[1] = timeline.terminal_timeline(report, selection, display, rows)
        # An empty line stands between two blocks.
        lines = [line for block in filter(None, blocks) for line in ((), *block)][1:]
        if len(lines) <= MOST_LINES + (rows if rows > _FITS[0] else 0):
            return lines
    return [line for line in lines if line]


def _headline(report: Report, display: Display) -> Iterator[doc.Line]:
    """Yield the primary ratio, what it means, bounds or restricts it, and the run that it is of."""
    mean = report.summary.bubble_ratio[report.headline].mean
    value = "unknown" if mean is None else doc.percent(mean)
    lead = f"{capitalised(measure_of(report))}: {value}"
    yield from paragraph(_spread(report).strip(), display, lead=lead)
    definition = next((r for r in ratio_definitions() if r.name == report.headline), None)
    words = "" if definition is None else definition.words_for(report.kind)
    reason = one_line(report.headline_reason, 200)
    means = f"{capitalised(words)} ({report.headline} is quoted: {reason})"
    yield from paragraph(means, display, most=4)
    for mark in _restriction_marks(report):
        yield from paragraph(one_line(mark, 160), display, lead="!", lead_style=_WARNING, most=2)
    beside = "; ".join(text for _, text in _bounds(report))
    yield from paragraph(one_line(beside, 400), display, most=4)
    yield from paragraph(_run(report), display, most=2)
    for title, order in (("schedule", report.schedule), ("plan", report.plan)):
        if order is not None and order.reason not in NO_PIPELINE:
            yield from paragraph(own.recognised(order), display, lead=f"{title}:", most=2)


def _bubble(report: Report, display: Display) -> list[doc.Line]:
    """Return the bar of what the bubble is made of, which adds up to the headline."""
    parts = bubbles.bubble_parts(report)
    if not parts:
        return []
    shares = [part.share for part in parts]
    window = report.explanation.listed_ratio
    of = "window" if window == report.headline else f"{window} window"
    title = f"What the {idle_of(report)} is made of, % of the {of}; sum {100 * sum(shares):.2f}"
    bar = [
        (part.name, part.share, shown, BUBBLE_PARTS[part.name])
        for part, shown in zip(parts, bubbles.rounded_shares(shares), strict=True)
    ]
    return [*paragraph(title, display, style="bold"), *timeline.stacked_bar(bar, display)]


def _doubts(report: Report, display: Display) -> Iterator[doc.Line]:
    """Yield how much is attributed, how far clocks agree, where in doubt, and a limitation."""
    gpu_ns = sum(profile.gpu_ns for profile in report.profiles)
    attributed_ns = sum(profile.attributed_gpu_ns for profile in report.profiles)
    if gpu_ns and attributed_ns < _COVERED * gpu_ns:
        sentence = (
            f"{doc.percent(attributed_ns / gpu_ns)} of compute-kernel time is attributed to "
            "operations (-v coverage)"
        )
        yield from paragraph(sentence, display, lead="Coverage:", most=2)
    clocks = {report.clock(number) for number in range(len(report.profiles))}
    interval = report.summary.bubble_interval.get(report.headline)
    loose = interval is not None and interval[1] - interval[0] > _CLOCK_BOUNDS
    known = [uncertainty for _, _, uncertainty in clocks if uncertainty is not None]
    if len(clocks) > 1 and (loose or len(known) < len(clocks)):
        off = "unknown" if len(known) < len(clocks) else f"up to ± {max(known) / 1e3:,.1f} us"
        sentence = f"offsets of {len(clocks)} hosts are {off} (-v clocks)"
        yield from paragraph(sentence, display, lead="Clocks:", most=1)
    if not report.limitations:
        return
    weighty = [each for each in report.limitations if each.kind is not LimitationKind.OTHER]
    (line, *_) = own.limitation_lines(report, (weighty or report.limitations)[:1])
    count = len(own.limitation_lines(report, most=None))
    where = "" if count == 1 else f" ({counted(count, 'limitation')}: -v coverage)"
    yield from paragraph(f"{line}{where}", display, lead="Limitation:", lead_style=_WARNING, most=4)


# Sections.


def causes(report: Report) -> doc.Table:
    """Return the causes of the bubble of the averaged iterations, a row each, and their sum.

    It has no rows where nothing is known of them.
    """
    what = f"What the {idle_of(report)} is made of ({report.explanation.listed_ratio} window)"
    parts = bubbles.bubble_parts(report)
    shares = [part.share for part in parts]
    total = sum(shares)
    of_bubble = bubbles.rounded_shares([s / total for s in shares]) if total else []
    rows = [
        {
            "cause": part.name,
            "% of window": of_window,
            "% of bubble": share,
            "ms": doc.milliseconds(part.time_ns),
            "meaning": part.meaning,
        }
        for part, of_window, share in zip(
            parts, bubbles.rounded_shares(shares), of_bubble, strict=False
        )
    ]
    if rows:
        whole = doc.milliseconds(sum(part.time_ns for part in parts))
        cells = ("all", doc.in_percent(total), doc.in_percent(1.0), whole, "")
        rows.append(dict(zip(rows[0], cells, strict=True)))
    return doc.Table(
        f"{what}, mean of ranks and averaged iterations",
        rows,
        left=("cause", "meaning"),
        wrap=("meaning",),
        giving_way=("% of bubble",),
    )


def longest(report: Report) -> Iterator[doc.Block]:
    """Yield the longest bubbles of the averaged iterations that the schedule does not imply."""
    intervals, implied = bubbles.longest_bubbles(report), bubbles.longest_implied(report)
    if not intervals:
        return
    which = "" if implied is None else " that the schedule does not imply"
    yield doc.heading(f"Longest idle intervals{which} (all of them: --bubbles FILE)")
    lines = [one_line(sentence, 400) for _, sentence in intervals]
    if implied is not None:
        lines.append(f"the longest that it implies: {one_line(implied, 400)}")
    yield doc.bullets(lines)


# Profiles: the clock of each host, and the coverage of each profile.


def clocks(report: Report) -> Iterator[doc.Block]:
    """Yield the offset of each host's clock, where there are several."""
    first: dict[tuple[str, float, int | None], ProfileSummary] = {}
    for number, profile in enumerate(report.profiles):
        first.setdefault(report.clock(number), profile)
    if len(first) < 2:
        return
    shown = [
        (float("inf") if p.clock_uncertainty_ns is None else p.clock_uncertainty_ns / 1e3, p)
        for p in first.values()
    ]
    if many_ranks(len(report.ranks)):
        shown.sort(key=lambda pair: -pair[0])
    rows = [
        {
            "host": doc.shortened(one_line(profile.host, 200), 28),
            "offset ms": doc.milliseconds(profile.clock_offset_ns),
            "± us": "-" if profile.clock_uncertainty_ns is None else f"{uncertainty:,.1f}",
            "drift ppm": f"{profile.clock_drift_ppm:.3f}" if profile.clock_drift_ppm else "-",
        }
        for uncertainty, profile in shown
    ]
    title = "Clocks: offset of each host to the first, and its uncertainty"
    yield doc.Table(title, doc.first_rows(rows, "host"), left=("host",))


def coverage(report: Report) -> Iterator[doc.Block]:
    """Yield how many kernels of each profile are attributed, and the largest that are not."""

    def share(part: int, whole: int) -> str:
        return f"{100 * part / whole:.2f}" if whole else "-"

    profiles = list(report.profiles)
    if many_ranks(len(report.ranks)):
        # Of very many, those of which least is explained.
        profiles.sort(key=lambda p: p.attributed_gpu_ns / p.gpu_ns if p.gpu_ns else 0.0)
    rows = [
        {
            "profile": doc.shortened(one_line(Path(profile.path).name, 200), 28),
            "kernels": f"{profile.kernels:,}",
            "linked %": share(profile.linked_kernels, profile.kernels),
            "attributed %": share(profile.attributed_kernels, profile.kernels),
            "cross-thread": f"{profile.cross_thread_kernels:,}",
            "attributed time %": share(profile.attributed_gpu_ns, profile.gpu_ns),
            "comm. ms": doc.milliseconds(profile.comm_ns),
            "copies ms": doc.milliseconds(profile.copy_ns),
        }
        for profile in profiles
    ]
    yield doc.Table(
        "Coverage: kernels, and compute time attributed to operations",
        doc.first_rows(rows, "profile"),
        left=("profile",),
        giving_way=("cross-thread", "copies ms", "comm. ms", "attributed %", "linked %", "kernels"),
    )
    largest = sorted(report.unattributed_kernels, key=lambda k: (-k.gpu_ns, k.rank, k.name))[:5]
    if largest:
        yield doc.bullets(
            [
                f"unattributed: {doc.milliseconds(k.gpu_ns)} ms in {k.count:,} x "
                f"{one_line(k.name, 60)} on {one_line(report.ranks[k.rank].label, 40)}, "
                f"{one_line(k.where, 80)}"
                for k in largest
            ]
        )


# All sections, those of some names, and what files hold.


def sections(report: Report, view: View) -> Iterator[doc.Block]:
    """Yield the sections of a report."""
    for _, blocks in _sections(report, view):
        yield from blocks


def details(report: Report, view: View, names: Sequence[str]) -> Iterator[doc.Block]:
    """Yield some tables of a report, in the order named.

    Args:
        report: any report.
        view: the iteration and the ranks that are listed.
        names: as in ``--details``.
    """
    for name in names:
        listed = [b for n, blocks in _sections(report, view) if n == name for b in blocks]
        yield from listed or [doc.Sentence(f"\n{name}: this run has nothing to list")]


def _sections(report: Report, view: View) -> Iterator[tuple[str, Iterable[doc.Block]]]:
    """Yield sections in the order in which they are printed, with their names in ``--details``."""
    value, *lines = headline_lines(report)
    yield "", [doc.Sentence("\n".join(lines), lead=value)]
    yield "operations", own.orders(report)
    first = first_thing(report)
    if (advice := _advice_sentence(report, first)) is not None:
        yield "", [doc.Sentence(f"what to do first: {advice}")]
        yield (
            "",
            [
                doc.Sentence(f"then: {one_line(more, 200)}")
                for more in further_advice(report, first)
            ],
        )
    yield "ratios", [own.ratios(report)]
    yield "causes", [table for table in [causes(report)] if table.rows]
    iteration = own.shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield "ranks", ranks.ranks(report, view, iteration)
        yield "causes", ranks.by_rank(report, view, iteration)
        yield "communication", ranks.communication(report, view, iteration)
        yield "causes", longest(report)
    yield "operations", own.phase_times(report)
    yield "operations", own.critical_path(report)
    yield "operations", own.what_if(report)
    yield "operations", own.alternatives(report)
    yield "operations", own.memory(report)
    yield "advice", own.advice_table(report)
    yield "slowdown", own.slowdowns(report)
    yield "ratios", own.not_averaged(report)
    yield "clocks", clocks(report)
    yield "coverage", coverage(report)
    if report.limitations:
        yield "coverage", [doc.heading("Limitations"), doc.bullets(own.limitation_lines(report))]
    # There is a ratio of a pipeline to quote.
    if report.no_pipeline is None and report.summary.bubble_ratio[report.headline].mean is not None:
        ready = doc.Sentence(one_line(methods(report), None))
        yield "ratios", [doc.heading("Methods, ready to paste"), ready]


def as_text(report: Report, view: View) -> str:
    """Return the tables as plain text."""
    return plain_text(sections(report, view))


def summary(report: Report) -> list[doc.Block]:
    """Return the headline, what to do first, the ratios and the causes."""
    value, bounds, run, why = headline_lines(report)
    first = first_thing(report)
    return [
        doc.Sentence(bounds, lead=value),
        doc.Sentence(f"{run}; {why}"),
        *([] if first is None else [doc.Sentence(f"What to do first: {first}")]),
        own.ratios(report),
        causes(report),
    ]


def as_markdown(report: Report, view: View) -> str:
    """Return a summary of a report, whatever the view."""
    del view
    return markdown(summary(report))
