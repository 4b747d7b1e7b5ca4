"""The headline of a report, and the first screen: what one wants to know without scrolling.

The headline is the bubble ratio to quote, its uncertainty, and what it is the ratio of. The screen
shows from top to bottom the ratio and the run, what restricts the ratio, the typical iteration,
what the bubble is made of, what to do, and what limits all that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bubbleviz.explain.recognition.reasons import NO_PIPELINE
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.phases import list_missing_passes
from bubbleviz.model.run_kinds import EVALUATION
from bubbleviz.model.texts import capitalize, format_count, format_percent, to_one_line
from bubbleviz.render import document as doc
from bubbleviz.render.palette import BUBBLE_PARTS
from bubbleviz.render.text import orders, ranks
from bubbleviz.render.text import terminal_timeline as timeline
from bubbleviz.render.text.stacked_bar import stacked_bar
from bubbleviz.render.text.terminal import Display, paragraph
from bubbleviz.report.advice import advise, shown_iteration
from bubbleviz.report.bubble_parts import (
    bubble_parts,
    flops_use,
    rounded_shares,
)
from bubbleviz.report.measure import is_idle_elsewhere, name_measure
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps, describe_further_steps
from bubbleviz.report.view import View

#: Maximum number of lines of the screen for up to eight rows and 80 columns. Two more rows have one
#: more line, and a higher terminal has as many lines as it shows.
MOST_LINES, _ROWS = 24, 8
#: Maximum number of lines of the screen for any number of rows.
_MOST_LINES_OF_MANY = 36
#: Share of compute time attributed to operations below which coverage is mentioned.
_COVERED = 0.95
#: Width of the bounds of clocks above which they are mentioned, if they are the wider interval.
_CLOCK_BOUNDS = 0.005
#: Distance from the mean above which the worst iteration is named, absolute and relative.
_FAR, _FAR_TIMES = 0.02, 0.1
#: Colour of a restriction.
_WARNING = "bold yellow"


def headline_lines(report: Report) -> tuple[str, str, str, str]:
    """Return the primary ratio, its uncertainty, the run, and why this ratio is the primary one."""
    marked = "".join(f" ! ({mark})" for mark in _restriction_marks(report))
    bounds = "".join(f"{joint}{text}" for joint, text in _bounds(report))
    mean = report.summary.bubble_ratio[report.headline].mean
    why = f"primary ratio: {report.headline} ({to_one_line(report.headline_reason, 400)})"
    value = f"{name_measure(report).name}: {format_percent(mean)}"
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
    """Return the confidence interval of the primary ratio, its two values, or "" for one value."""
    spread = report.summary.bubble_ratio[report.headline]
    if spread.pair is not None:
        return " ({} and {} in two iterations)".format(*map(format_percent, spread.pair))
    if spread.ci95 is None or spread.mean is None:
        return ""
    return f" ± {format_percent(spread.ci95)} (95 % CI of the mean, n = {spread.n})"


def _worst(report: Report) -> str:
    """Return the worst iteration and its ratio if that is far above the mean, or else ""."""
    spread = report.summary.bubble_ratio[report.headline]
    if spread.pair is not None or spread.max is None or spread.mean is None:
        return ""
    if spread.max - spread.mean < max(_FAR, _FAR_TIMES * spread.mean):
        return ""
    averaged = (iteration for iteration in report.iterations if iteration.averaged)
    worst = next(i for i in averaged if i.ratios[report.headline].value == spread.max)
    return f", {format_percent(spread.max)} in iteration {to_one_line(worst.name, 30)}"


def _restriction_marks(report: Report) -> tuple[str, ...]:
    """Return what restricts the primary ratio, the most severe restriction first."""
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
        yield "; ", f"{format_percent(low)} with compute outside every operation counted as work"
    kernels = report.kernel_time.sentence
    if report.summary.iterations and kernels is not None and not _kernel_share(report):
        yield "; ", kernels


def _run(report: Report) -> str:
    """Return the ranks, hosts and iterations from which the primary ratio was measured."""
    ranks, hosts = len(report.ranks), len({rank.host for rank in report.ranks})
    # Those that have the primary ratio: the last one has no period.
    averaged = report.summary.bubble_ratio[report.headline].n
    schedule = _exact_schedule(report)
    return (
        f"{f'{schedule} on ' if schedule else ''}"
        f"{format_count(ranks, 'rank')} of {format_count(hosts, 'host')}, {averaged} of "
        f"{format_count(len(report.iterations), 'iteration')} averaged, "
        f"convention: {to_one_line(report.convention, 60)}"
    )


def _exact_schedule(report: Report) -> str:
    """Return the schedule if the order of the operations matches it alone, or else ""."""
    ran = report.schedule
    if ran is None or not ran.exact or ran.name is None or ran.also:
        return ""
    return to_one_line(ran.name, 30)


def describe_utilization(report: Report) -> str:
    """Return the model FLOPs utilization, or "" if no FLOPs are given."""
    if (use := flops_use(report)) is None:
        return ""
    doubt = "; give FLOPs of one iteration, and the peak of one GPU" if use > 1 else ""
    return f"model FLOPs utilization (MFU): {format_percent(use)}{doubt}"


def first_sentence(report: Report, first: str | None) -> str | None:
    """Return the first advice, and what it would save; None where there is none."""
    if first is not None:
        return to_one_line(first, 600)
    if report.summary.iterations > 0:
        return None
    if lacking := list_missing_passes(find_distinct(report.operations.phase).tolist()):
        return f"no range names {' or '.join(lacking)}; name it in ranges, or with --convention"
    skipped = any(i.complete and i.kind != EVALUATION for i in report.iterations)
    remedy = "leave out fewer with --skip, or record more" if skipped else "record whole ones"
    if not skipped and any(i.began_unrecorded for i in report.iterations):
        remedy = "start all profilers before the first iteration, or record more iterations"
    return f"no advice, since no iteration is averaged; {remedy}"


def first_screen(report: Report, view: View, display: Display) -> list[doc.Line]:
    """Return the lines of the first screen.

    Args:
        report: Any report.
        view: The iteration and the ranks to draw.
        display: The display to fit.
    """
    iteration, marked = shown_iteration(report, view.iterations), advise(report).marked_ranks
    selection = None
    if iteration is not None:
        selection = timeline.timeline_selection(report, view, iteration, marked)
    headline = list(_headline(report, display))
    below = [_bubble(report, display), _advice(report, display), _last_lines(report, display)]
    drawn: list[doc.Line] = []
    if selection is not None:
        n_other_lines = len(headline) + sum(map(len, below))
        room = max(display.height, _MOST_LINES_OF_MANY) - n_other_lines
        has_chosen_rows = bool(view.ranks or view.rows)
        drawn = timeline.terminal_timeline(
            report, selection, display, marked, room=None if has_chosen_rows else room
        )
    blocks = [block for block in (headline, drawn, *below) if block]
    rows = 0 if selection is None else len(selection.rows)
    max_lines = min(MOST_LINES + max(rows - _ROWS, 0) // 2, _MOST_LINES_OF_MANY)
    return _join_blocks(blocks, max(max_lines, display.height))


def _advice(report: Report, display: Display) -> list[doc.Line]:
    """Return what stands out if no rank is marked, and what to do first and then."""
    sentence = first_sentence(report, describe_first_steps(report))
    lines = [] if advise(report).marked_ranks else ranks.first_lines(report, display)
    if sentence:
        lines += paragraph(sentence, display, lead="First:", most=4)
    for text in describe_further_steps(report):
        lines += paragraph(to_one_line(text, 200), display, lead="Then:", most=2)
    return lines


def _last_lines(report: Report, display: Display) -> list[doc.Line]:
    """Return what limits the ratio, and options that show more."""
    coverage = ""
    if report.limitations:
        coverage = f", -v coverage ({format_count(len(report.limitations), 'note')})"
    more = f"-v (all tables), -v ranks{coverage}, -o bubbles.svg, --help"
    return [*_limits(report, display), *paragraph(more, display, lead="More:", style="dim")]


def _join_blocks(blocks: Sequence[Sequence[doc.Line]], max_lines: int) -> list[doc.Line]:
    """Return the lines of all blocks, with empty lines between blocks while there is space."""
    n_empty = max_lines - sum(map(len, blocks))
    lines: list[doc.Line] = []
    for index, block in enumerate(blocks):
        if 0 < index <= n_empty:
            lines.append(())
        lines += block
    return lines


def _headline(report: Report, display: Display) -> Iterator[doc.Line]:
    """Yield the primary ratio, the run, and what restricts or bounds the ratio."""
    mean = report.summary.bubble_ratio[report.headline].mean
    value = "unknown" if mean is None else format_percent(mean)
    lead = f"{capitalize(name_measure(report).name)}: {value}"
    spread = f"{_spread(report)}{_worst(report)}{_kernel_share(report)}"
    joint = ";" if spread.startswith(";") else ""
    yield from paragraph(spread.removeprefix(joint).strip(), display, lead=f"{lead}{joint}")
    yield from paragraph(_run(report), display, most=2)
    yield from paragraph(describe_utilization(report), display, most=2)
    ran = None if _exact_schedule(report) else report.schedule
    for title, order in (("schedule", ran), ("plan", report.plan)):
        if order is not None and order.reason not in NO_PIPELINE:
            yield from paragraph(orders.recognised(order), display, lead=f"{title}:", most=2)
    for mark in _restriction_marks(report):
        yield from paragraph(to_one_line(mark, 160), display, lead="!", lead_style=_WARNING, most=2)


def _bubble(report: Report, display: Display) -> list[doc.Line]:
    """Return a bar with the parts of the bubble, which add up to the primary ratio."""
    parts = bubble_parts(report)
    if not parts:
        return []
    shares = [part.share for part in parts]
    window = report.explanation.listed_ratio
    of = "window" if window == report.headline else f"{window} window"
    idle = name_measure(report).idle
    title = f"What the {idle} is made of, % of the {of}; sum {100 * sum(shares):.2f}"
    bar = [
        (part.name, part.share, shown, BUBBLE_PARTS[part.name])
        for part, shown in zip(parts, rounded_shares(shares), strict=True)
    ]
    return [*paragraph(title, display, style="bold"), *stacked_bar(bar, display)]


def _limits(report: Report, display: Display) -> list[doc.Line]:
    """Return lines on what limits the ratio: coverage, clocks, and what is unknown."""
    limits = [text for _, text in _bounds(report, narrow=False)]
    gpu_ns = sum(profile.gpu_ns for profile in report.profiles)
    attributed_ns = sum(profile.attributed_gpu_ns for profile in report.profiles)
    if gpu_ns and attributed_ns < _COVERED * gpu_ns:
        limits.append(f"{format_percent(attributed_ns / gpu_ns)} of kernel time attributed")
    clocks = {report.clock(number) for number in range(len(report.profiles))}
    if any(uncertainty is None for _, _, uncertainty in clocks) and len(clocks) > 1:
        limits.append(f"offsets of {len(clocks)} clocks unknown")
    weighty = [each for each in report.limitations if each.kind is not LimitationKind.OTHER]
    limits += dict.fromkeys(to_one_line(each.what, 60) for each in weighty)
    if not limits:
        return []
    text = f"{'; '.join(limits)} (-v coverage)"
    return paragraph(text, display, lead="Limits:", lead_style=_WARNING, most=3)
