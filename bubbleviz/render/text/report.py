"""The report as text: its headline, its first screen, and its sections in order.

The headline is the bubble ratio to quote, its uncertainty, and what it is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bubbleviz.explain.recognition.reasons import NO_PIPELINE
from bubbleviz.model.grouping import distinct
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import ProfileSummary
from bubbleviz.model.phase_masks import EVALUATION
from bubbleviz.model.phases import unnamed
from bubbleviz.model.texts import capitalised, counted, one_line, percent
from bubbleviz.render import document as doc
from bubbleviz.render.markdown import markdown
from bubbleviz.render.palette import BUBBLE_PARTS
from bubbleviz.render.text import orders, ranks, ratio_tables, savings, times
from bubbleviz.render.text import terminal_timeline as timeline
from bubbleviz.render.text.terminal import Display, paragraph, plain_text
from bubbleviz.report.advice import advise, shown_iteration
from bubbleviz.report.bubble_parts import (
    BubblePart,
    bubble_parts,
    flops_use,
    rounded_shares,
    step_parts,
    step_window,
)
from bubbleviz.report.labels import limitation_lines
from bubbleviz.report.long_bubbles import longest_bubbles, longest_implied
from bubbleviz.report.methods import methods
from bubbleviz.report.rank_means import idle_of, is_idle_elsewhere, many_ranks, measure_of
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps, describe_further_steps
from bubbleviz.report.view import View


def headline_lines(report: Report) -> tuple[str, str, str, str]:
    """Return the primary ratio, its uncertainty, the run that it is of, and why it is primary."""
    marked = "".join(f" ! ({mark})" for mark in _restriction_marks(report))
    bounds = "".join(f"{joint}{text}" for joint, text in _bounds(report))
    mean = report.summary.bubble_ratio[report.headline].mean
    why = f"primary ratio: {report.headline} ({one_line(report.headline_reason, 400)})"
    value = f"{measure_of(report)}: {percent(mean)}"
    spread = f"{_spread(report)}{_kernel_share(report)}"
    return value, f"{spread}{marked}{bounds}", _run(report), why


def _kernel_share(report: Report) -> str:
    """Return how long kernels ran where the ratio is only the idle time between operations.

    The ratio of a pipeline has this among its bounds.
    """
    if not is_idle_elsewhere(report) or not report.summary.iterations:
        return ""
    return f"; {report.kernel_time.sentence}"


def _spread(report: Report) -> str:
    """Return the confidence interval of the primary ratio, or its two values; empty for one."""
    spread = report.summary.bubble_ratio[report.headline]
    if spread.pair is not None:
        return " ({} and {} in two iterations)".format(*map(percent, spread.pair))
    if spread.ci95 is None or spread.mean is None:
        return ""
    return f" ± {percent(spread.ci95)} (95 % CI of the mean, n = {spread.n})"


def _worst(report: Report) -> str:
    """Return the worst iteration and its ratio, where that is far above the mean; else nothing."""
    spread = report.summary.bubble_ratio[report.headline]
    if spread.pair is not None or spread.max is None or spread.mean is None:
        return ""
    if spread.max - spread.mean < max(_FAR, _FAR_TIMES * spread.mean):
        return ""
    averaged = (iteration for iteration in report.iterations if iteration.averaged)
    worst = next(i for i in averaged if i.ratios[report.headline].value == spread.max)
    return f", {percent(spread.max)} in iteration {one_line(worst.name, 30)}"


def _restriction_marks(report: Report) -> tuple[str, ...]:
    """Return what restricts the primary ratio, what weighs most first."""
    marks = tuple(restriction.text for restriction in report.restrictions)
    contradicted = report.contradicted(report.headline)
    return (*marks, "clocks contradict each other") if contradicted else marks


def _bounds(report: Report, *, narrow: bool = True) -> Iterator[tuple[str, str]]:
    """Yield what bounds the primary ratio and what stands beside it, each with its joint.

    Args:
        report: any report.
        narrow: whether clock bounds count that are narrower than the confidence interval.
    """
    interval = report.summary.bubble_interval.get(report.headline)
    ci95 = report.summary.bubble_ratio[report.headline].ci95
    least = 0.0 if narrow else max(2 * (ci95 or 0.0), _CLOCK_BOUNDS)
    if interval is not None and interval[1] - interval[0] > least:
        yield ", ", f"clock bounds {doc.between(interval)} %"
    low = report.lower_bound(report.headline)
    if low is not None:
        yield "; ", f"{percent(low)} with compute outside every operation counted as work"
    kernels = report.kernel_time.sentence
    if report.summary.iterations and kernels is not None and not _kernel_share(report):
        yield "; ", kernels


def _run(report: Report) -> str:
    """Return the ranks, hosts and iterations that the primary ratio is of."""
    ranks, hosts = len(report.ranks), len({rank.host for rank in report.ranks})
    # Those that have the primary ratio: the last one has no period.
    averaged = report.summary.bubble_ratio[report.headline].n
    schedule = _exact_schedule(report)
    return (
        f"{f'{schedule} on ' if schedule else ''}"
        f"{counted(ranks, 'rank')} of {counted(hosts, 'host')}, {averaged} of "
        f"{counted(len(report.iterations), 'iteration')} averaged, "
        f"convention: {one_line(report.convention, 60)}"
    )


def _exact_schedule(report: Report) -> str:
    """Return the schedule that the order of the operations is, and no other; empty without."""
    ran = report.schedule
    if ran is None or not ran.exact or ran.name is None or ran.also:
        return ""
    return one_line(ran.name, 30)


def _utilization(report: Report) -> str:
    """Return the use made of the GPUs; empty where no FLOPs are given."""
    if (use := flops_use(report)) is None:
        return ""
    doubt = "; give FLOPs of one iteration, and the peak of one GPU" if use > 1 else ""
    return f"model FLOPs utilization (MFU): {percent(use)}{doubt}"


def _advice_sentence(report: Report, first: str | None) -> str | None:
    """Return the first advice, and what it would save; None where there is none."""
    if first is not None:
        return one_line(first, 600)
    if report.summary.iterations > 0:
        return None
    if lacking := unnamed(distinct(report.operations.phase).tolist()):
        return f"no range names {' or '.join(lacking)}; name it in ranges, or with --convention"
    skipped = any(i.complete and i.kind != EVALUATION for i in report.iterations)
    remedy = "leave out fewer with --skip, or record more" if skipped else "record whole ones"
    if not skipped and any(i.began_unrecorded for i in report.iterations):
        remedy = "start all profilers before the first iteration, or record more iterations"
    return f"no advice, since no iteration is averaged; {remedy}"


# The first screen: what one wants to know of a run, without scrolling.
#
# From top to bottom: the ratio and the run, what restricts the ratio; the typical iteration; what
# the bubble is made of; what to do; what limits all that.


#: Lines of the screen for up to eight rows, where it has 80 columns; two more rows have one more
#: line, and a higher terminal as many as it shows.
MOST_LINES, _ROWS = 24, 8
#: Lines of the screen for the most rows that are drawn.
_MOST_LINES_OF_MANY = 36
#: Share of compute time attributed to operations, below which coverage matters.
_COVERED = 0.95
#: How much clocks may leave open before it matters, where the confidence interval is narrower.
_CLOCK_BOUNDS = 0.005
#: Where an iteration is further above the mean, in points and as a share of it, it is named.
_FAR, _FAR_TIMES = 0.02, 0.1
#: Colour of a restriction.
_WARNING = "bold yellow"


def first_screen(report: Report, view: View, display: Display) -> list[doc.Line]:
    """Return the lines of the first screen.

    Args:
        report: any report.
        view: the iteration and the ranks to draw.
        display: where they are shown.
    """
    iteration, first = shown_iteration(report, view.iterations), describe_first_steps(report)
    marked = advise(report).marked_ranks
    selection = (
        None if iteration is None else timeline.timeline_selection(report, view, iteration, marked)
    )
    sentence = _advice_sentence(report, first)
    to_do = paragraph(sentence, display, lead="First:", most=4) if sentence else []
    if not marked:
        to_do = [*ranks.first_lines(report, display), *to_do]
    for text in describe_further_steps(report):
        to_do += paragraph(one_line(text, 200), display, lead="Then:", most=2)
    notes = f", -v coverage ({counted(len(report.limitations), 'note')})"
    more = f"-v (all tables), -v ranks{notes if report.limitations else ''}, -o bubbles.svg, --help"
    last = [*_limits(report, display), *paragraph(more, display, lead="More:", style="dim")]
    beside = [*_headline(report, display)], _bubble(report, display), to_do, last
    drawn: list[doc.Line] = []
    if selection is not None:
        asked = bool(view.ranks or view.rows)
        room = max(display.height, _MOST_LINES_OF_MANY) - sum(map(len, beside))
        drawn = timeline.terminal_timeline(
            report, selection, display, marked, room=None if asked else room
        )
    headline, *others = beside
    # An empty line stands between two blocks, as far as the screen has room for it.
    blocks = [block for block in (headline, drawn, *others) if block]
    rows = 0 if selection is None else len(selection.rows)
    above = max(rows - _ROWS, 0) // 2
    most = max(min(MOST_LINES + above, _MOST_LINES_OF_MANY), display.height)
    blank = max(min(most - sum(map(len, blocks)), len(blocks) - 1), 0)
    lines: list[doc.Line] = []
    for at, block in enumerate(blocks):
        lines += [(), *block] if 0 < at <= blank else block
    return lines


def _headline(report: Report, display: Display) -> Iterator[doc.Line]:
    """Yield the primary ratio, the run that it is of, and what restricts or bounds it."""
    mean = report.summary.bubble_ratio[report.headline].mean
    value = "unknown" if mean is None else percent(mean)
    lead = f"{capitalised(measure_of(report))}: {value}"
    spread = f"{_spread(report)}{_worst(report)}{_kernel_share(report)}"
    joint = ";" if spread.startswith(";") else ""
    yield from paragraph(spread.removeprefix(joint).strip(), display, lead=f"{lead}{joint}")
    yield from paragraph(_run(report), display, most=2)
    yield from paragraph(_utilization(report), display, most=2)
    ran = None if _exact_schedule(report) else report.schedule
    for title, order in (("schedule", ran), ("plan", report.plan)):
        if order is not None and order.reason not in NO_PIPELINE:
            yield from paragraph(orders.recognised(order), display, lead=f"{title}:", most=2)
    for mark in _restriction_marks(report):
        yield from paragraph(one_line(mark, 160), display, lead="!", lead_style=_WARNING, most=2)


def _bubble(report: Report, display: Display) -> list[doc.Line]:
    """Return the bar of what the bubble is made of, which adds up to the headline."""
    parts = bubble_parts(report)
    if not parts:
        return []
    shares = [part.share for part in parts]
    window = report.explanation.listed_ratio
    of = "window" if window == report.headline else f"{window} window"
    title = f"What the {idle_of(report)} is made of, % of the {of}; sum {100 * sum(shares):.2f}"
    bar = [
        (part.name, part.share, shown, BUBBLE_PARTS[part.name])
        for part, shown in zip(parts, rounded_shares(shares), strict=True)
    ]
    return [*paragraph(title, display, style="bold"), *timeline.stacked_bar(bar, display)]


def _limits(report: Report, display: Display) -> list[doc.Line]:
    """Return a line on what limits the ratio: coverage, clocks, and what is unknown."""
    limits = [text for _, text in _bounds(report, narrow=False)]
    gpu_ns = sum(profile.gpu_ns for profile in report.profiles)
    attributed_ns = sum(profile.attributed_gpu_ns for profile in report.profiles)
    if gpu_ns and attributed_ns < _COVERED * gpu_ns:
        limits.append(f"{percent(attributed_ns / gpu_ns)} of kernel time attributed")
    clocks = {report.clock(number) for number in range(len(report.profiles))}
    if any(uncertainty is None for _, _, uncertainty in clocks) and len(clocks) > 1:
        limits.append(f"offsets of {len(clocks)} clocks unknown")
    weighty = [each for each in report.limitations if each.kind is not LimitationKind.OTHER]
    limits += dict.fromkeys(one_line(each.what, 60) for each in weighty)
    if not limits:
        return []
    text = f"{'; '.join(limits)} (-v coverage)"
    return paragraph(text, display, lead="Limits:", lead_style=_WARNING, most=3)


# Sections.


def causes(report: Report) -> doc.Table:
    """Return the causes of the bubble of the averaged iterations, a row each, and their sum.

    It has no rows where nothing is known of them.
    """
    what = f"What the {idle_of(report)} is made of ({report.explanation.listed_ratio} window)"
    parts = bubble_parts(report)
    total = sum(part.share for part in parts)
    of_bubble = rounded_shares([part.share / total for part in parts]) if total else []
    return _parts_table(what, parts, {"% of bubble": [*of_bubble, doc.in_percent(1.0)]})


def step_time(report: Report) -> Iterator[doc.Block]:
    """Yield where the time of a step goes, the bubble among it, and the use made of the GPUs."""
    if parts := step_parts(report):
        window = step_window(report)
        yield _parts_table(f"Where the time of a step goes ({window} window)", parts, {})
    if used := _utilization(report):
        yield doc.Sentence(used)


def _parts_table(
    title: str, parts: Sequence[BubblePart], more: Mapping[str, Sequence[str]]
) -> doc.Table:
    """Return a table of parts of a window, and their sum.

    Args:
        title: of what they are parts.
        parts: in display order.
        more: cells of further columns, by title.
    """
    shares = [part.share for part in parts]
    cells = {
        "cause" if more else "part": [*(part.name for part in parts), "all"],
        "% of window": [*rounded_shares(shares), doc.in_percent(sum(shares))],
        **more,
        "ms": [*(doc.milliseconds(part.time_ns) for part in parts),
               doc.milliseconds(sum(part.time_ns for part in parts))],
        "meaning": [*(part.meaning for part in parts), ""],
    }  # fmt: skip
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    return doc.Table(
        f"{title}, mean of ranks and averaged iterations",
        rows if parts else [],
        left=("cause", "part", "meaning"),
        wrap=("meaning",),
        giving_way=("% of bubble",),
    )


def longest(report: Report) -> Iterator[doc.Block]:
    """Yield the longest bubbles of the averaged iterations that the schedule does not imply."""
    intervals, implied = longest_bubbles(report), longest_implied(report)
    if not intervals:
        return
    which = "" if implied is None else " that the schedule does not imply"
    yield doc.heading(f"Longest idle intervals{which} (all of them: -o idle.bubbles.csv)")
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
    yield "", [doc.Sentence("\n".join(lines), lead=capitalised(value))]
    yield "operations", orders.orders(report)
    first = describe_first_steps(report)
    if (advice := _advice_sentence(report, first)) is not None:
        yield "", [doc.Sentence(f"what to do first: {advice}")]
        further = describe_further_steps(report)
        yield "", [doc.Sentence(f"then: {one_line(more, 200)}") for more in further]
    yield "ratios", [ratio_tables.ratios(report)]
    yield "time", step_time(report)
    yield "causes", [table for table in [causes(report)] if table.rows]
    iteration = shown_iteration(report, view.iterations)
    if iteration is not None and iteration.ranks:
        yield "ranks", ranks.ranks(report, view, iteration)
        yield "causes", ranks.by_rank(report, view, iteration)
        yield "communication", ranks.communication(report, view, iteration)
        yield "causes", longest(report)
    yield "operations", times.phase_times(report)
    yield "operations", times.critical_path(report)
    yield "operations", savings.changes(report)
    yield "operations", savings.what_if(report)
    yield "operations", times.memory(report)
    yield "advice", savings.advice_table(report)
    yield "slowdown", savings.slowdowns(report)
    yield "ratios", ratio_tables.not_averaged(report)
    yield "clocks", clocks(report)
    yield "coverage", coverage(report)
    if report.limitations:
        yield "coverage", [doc.heading("Limitations"), doc.bullets(limitation_lines(report))]
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
    first = describe_first_steps(report)
    return [
        doc.Sentence(bounds, lead=capitalised(value)),
        doc.Sentence(f"{run}; {why}"),
        *([] if first is None else [doc.Sentence(f"What to do first: {first}")]),
        *(doc.Sentence(f"Then: {text}") for text in describe_further_steps(report)),
        ratio_tables.ratios(report),
        causes(report),
    ]


def as_markdown(report: Report, _: View) -> str:
    """Return a summary of a report, whatever the view."""
    return markdown(summary(report))
