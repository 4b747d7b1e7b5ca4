"""The headline of a report, and the first screen printed by ``analyze``.

The headline contains the primary bubble ratio, its uncertainty, and the run in which it was
measured. The screen shows, from top to bottom: the ratio and the run, restrictions on the ratio,
the timeline of one iteration, the parts of the bubble, advice, and limits on the ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bubbleviz.explain.recognition.reasons import NO_PIPELINE
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.phases import list_missing_passes
from bubbleviz.model.run_kinds import EVALUATION
from bubbleviz.model.texts import capitalize, format_count, format_percent, to_one_line
from bubbleviz.render import document as doc
from bubbleviz.render.palette import BUBBLE_PARTS
from bubbleviz.render.text import ranks
from bubbleviz.render.text import terminal_timeline as timeline
from bubbleviz.render.text.stacked_bar import draw_stacked_bar
from bubbleviz.render.text.terminal import Display, wrap_paragraph
from bubbleviz.render.wrapping import measure_cells
from bubbleviz.report.advice import advise, choose_shown_iteration
from bubbleviz.report.bubble_parts import (
    compute_bubble_parts,
    compute_flops_use,
    round_shares,
)
from bubbleviz.report.marked_ranks import choose_marked_ranks
from bubbleviz.report.measure import is_idle_elsewhere, name_measure
from bubbleviz.report.profiled_run import list_profiling_sentences
from bubbleviz.report.report import Report
from bubbleviz.report.run_lateness import describe_late_rank
from bubbleviz.report.sentences import describe_first_steps, describe_further_steps
from bubbleviz.report.view import View
from bubbleviz.report.warm_up import describe_warm_up

#: Maximum number of lines on the first screen if the timeline has at most ``_ROWS`` rows. Every two
#: additional rows add one line. On a taller terminal, the first screen may fill the terminal.
MAX_LINES, _ROWS = 24, 8
#: Maximum number of lines on the first screen, regardless of how many rows the timeline has.
_MAX_LINES_OF_MANY = 36
#: The fraction of GPU time that is attributed to operations is shown only if it is below this
#: value.
_COVERED = 0.95
#: Clock bounds are shown only if their width exceeds both this value and the confidence interval.
_CLOCK_BOUNDS = 0.005
#: The worst iteration is named only if it exceeds the mean by these absolute and relative amounts.
_FAR, _FAR_TIMES = 0.02, 0.1
#: Kinds of limitations that the first screen only counts.
_MINOR = (
    LimitationKind.OTHER,
    LimitationKind.DETAILS,
    LimitationKind.ITERATIONS_MATCHED,
    LimitationKind.CHUNKS_ASSUMED,
)
#: Style of the mark before restrictions and limits.
_WARNING = "bold yellow"


def describe_headline(report: Report) -> tuple[str, str, str, str]:
    """Return the headline texts, which describe the primary ratio and the run.

    Returns:
        value: Name and mean of the primary ratio, for example "bubble ratio: 27.27 %".
        uncertainty: Confidence interval of the ratio, and restrictions and bounds on it.
        run: Schedule (if recognized), rank, host and iteration counts, and convention.
        reason: Name of the primary ratio, and why it was chosen.
    """
    marks = "".join(f" ! ({mark})" for mark in _list_restrictions(report))
    bounds = "".join(f"{joint}{text}" for joint, text in _describe_bounds(report))
    mean = report.summary.bubble_ratio[report.headline].mean
    reason = f"primary ratio: {report.headline} ({to_one_line(report.headline_reason, 400)})"
    value = f"{name_measure(report).name}: {format_percent(mean)}"
    spread = f"{_describe_spread(report)}{_describe_kernel_share(report)}"
    return value, f"{spread}{marks}{bounds}", _describe_run(report), reason


def _describe_kernel_share(report: Report) -> str:
    """Return a clause with the share of time during which any kernel was running, or "".

    The clause is needed only if the ranks do not form a pipeline and the primary ratio covers only
    part of the idle time; see :func:`.is_idle_elsewhere`. For all other runs,
    :func:`_describe_bounds` includes the share in its texts.
    """
    if not is_idle_elsewhere(report) or not report.summary.iterations:
        return ""
    return f"; {report.kernel_time.sentence}"


def _describe_spread(report: Report) -> str:
    """Return the uncertainty of the primary ratio, such as ``" ± 1.2 % (95 % CI ...)"``.

    The text is a suffix for the ratio, and contains half the width of the confidence interval. If
    the ratio is known for only two iterations, the text contains the two values instead. If no
    interval is known, the text is "".
    """
    spread = report.summary.bubble_ratio[report.headline]
    if spread.pair is not None:
        return " ({} and {} in two iterations)".format(*map(format_percent, spread.pair))
    if spread.ci95 is None or spread.mean is None:
        return ""
    return f" ± {format_percent(spread.ci95)} (95 % CI of the mean, n = {spread.n})"


def _describe_worst_iteration(report: Report) -> str:
    """Return a clause about the averaged iteration with the largest ratio, if it is unusual.

    A ratio is unusual if it exceeds the mean by at least 2 percentage points and by at least 10 %
    of the mean. Otherwise, or if only two iterations are averaged, the result is "".
    """
    spread = report.summary.bubble_ratio[report.headline]
    if spread.pair is not None or spread.max is None or spread.mean is None:
        return ""
    if spread.max - spread.mean < max(_FAR, _FAR_TIMES * spread.mean):
        return ""
    averaged = (iteration for iteration in report.iterations if iteration.averaged)
    worst = next(i for i in averaged if i.ratios[report.headline].value == spread.max)
    return f", {format_percent(spread.max)} in iteration {to_one_line(worst.name, 30)}"


def _list_restrictions(report: Report) -> tuple[str, ...]:
    """Return the report's restrictions as texts, most severe first.

    If the primary ratio depends on clocks that contradict each other, this is the last restriction.
    """
    marks = tuple(restriction.text for restriction in report.restrictions)
    contradicted = report.contradicted(report.headline)
    return (*marks, "clocks contradict each other") if contradicted else marks


def _describe_bounds(report: Report, *, narrow: bool = True) -> Iterator[tuple[str, str]]:
    """Yield texts about the primary ratio's profiler, clock bounds, lower bound and kernel time.

    Yields nothing for unknown bounds.

    Args:
        report: The report.
        narrow: Whether to include clock bounds no wider than the confidence interval or
            ``_CLOCK_BOUNDS``, and the comparison with an unprofiled step.

    Yields:
        (separator, text) pairs. The separator belongs before the text.
    """
    interval = report.summary.bubble_interval.get(report.headline)
    ci95 = report.summary.bubble_ratio[report.headline].ci95
    min_width = 0.0 if narrow else max(2 * (ci95 or 0.0), _CLOCK_BOUNDS)
    for sentence in list_profiling_sentences(report) if narrow else ():
        yield "; ", sentence
    if interval is not None and interval[1] - interval[0] > min_width:
        yield ", ", f"clock bounds {doc.format_interval(interval)} %"
    low = report.lower_bound(report.headline)
    if low is not None:
        yield "; ", f"{format_percent(low)} with compute outside every operation counted as work"
    kernels = report.kernel_time.sentence
    if report.summary.iterations and kernels is not None and not _describe_kernel_share(report):
        yield "; ", kernels


def _describe_run(report: Report) -> str:
    """Return a line about the run: schedule, ranks, hosts, averaged iterations and convention.

    The schedule is named only if the run's order matches it exactly. The number of averaged
    iterations counts only iterations in which the primary ratio is known.
    """
    ranks, hosts = len(report.ranks), len({rank.host for rank in report.ranks})
    # The last iteration has no ``period``, so this number can be smaller than that of averaged
    # iterations.
    averaged = report.summary.bubble_ratio[report.headline].n
    schedule = _name_exact_schedule(report)
    return (
        f"{f'{schedule} on ' if schedule else ''}"
        f"{format_count(ranks, 'rank')} of {format_count(hosts, 'host')}, {averaged} of "
        f"{format_count(len(report.iterations), 'iteration')} averaged, "
        f"convention: {to_one_line(report.convention, 60)}"
    )


def _name_exact_schedule(report: Report) -> str:
    """Return the name of the recognized schedule if the run matches it exactly.

    The result is "" if no schedule matches exactly, or if several schedules do.
    """
    ran = report.schedule
    if ran is None or not ran.exact or ran.name is None or ran.also:
        return ""
    return to_one_line(ran.name, 30)


def describe_utilization(report: Report) -> str:
    """Return a sentence with the model FLOPs utilization (MFU), or "" if no FLOPs are given."""
    if (use := compute_flops_use(report)) is None:
        return ""
    doubt = (
        ", which is impossible; pass the FLOPs of one iteration and the peak of one GPU"
        if use > 1
        else ""
    )
    return f"model FLOPs utilization (MFU): {format_percent(use)}{doubt}"


def choose_first_sentence(report: Report, first: str | None) -> str | None:
    """Return the first sentence of advice to show.

    If no iterations are averaged, there is no advice. Instead, the sentence says what to change so
    that an iteration can be averaged.

    Args:
        report: The report.
        first: The first piece of advice, as returned by :func:`.describe_first_steps`, or None.

    Returns:
        The sentence, or None if iterations are averaged but there is no advice.
    """
    if first is not None:
        return to_one_line(first, 600)
    if report.summary.iterations > 0:
        return None
    if missing_phases := list_missing_passes(find_distinct(report.operations.phase).tolist()):
        phases = " or ".join(missing_phases)
        return (
            f"no range was recognized as {phases}; record such ranges, or define their names with "
            "--convention"
        )
    skipped = any(i.complete and i.kind != EVALUATION for i in report.iterations)
    remedy = "lower --skip, or record more iterations" if skipped else "record complete iterations"
    if not skipped and any(i.began_unrecorded for i in report.iterations):
        remedy = "start all profilers before the first iteration, or record more iterations"
    return f"no iteration is averaged, so there is no advice; {remedy}"


def render_first_screen(report: Report, view: View, display: Display) -> list[doc.Line]:
    """Return the lines of the first screen printed by ``analyze``.

    Parts without content are left out. Parts are separated by empty lines as long as the screen
    does not exceed its maximum number of lines.

    Args:
        report: The report.
        view: The iteration and the ranks to draw.
        display: The terminal.
    """
    iteration = choose_shown_iteration(report, view.iterations)
    marked = choose_marked_ranks(report).ranks
    selection = None
    if iteration is not None:
        selection = timeline.select_timeline(report, view, iteration, marked)
    headline = list(_make_headline(report, display))
    below = [
        _draw_bubble(report, display),
        _list_advice(report, display),
        _make_last_lines(report, display),
    ]
    timeline_lines: list[doc.Line] = []
    if selection is not None:
        n_other_lines = len(headline) + sum(map(len, below))
        n_free_lines = max(display.height, _MAX_LINES_OF_MANY) - n_other_lines
        has_chosen_rows = bool(view.ranks or view.rows)
        timeline_lines = timeline.draw_timeline(
            report, selection, display, marked, max_lines=None if has_chosen_rows else n_free_lines
        )
    blocks = [block for block in (headline, timeline_lines, *below) if block]
    n_rows = 0 if selection is None else len(selection.rows)
    max_lines = min(MAX_LINES + max(n_rows - _ROWS, 0) // 2, _MAX_LINES_OF_MANY)
    return _join_blocks(blocks, max(max_lines, display.height))


def _list_advice(report: Report, display: Display) -> list[doc.Line]:
    """Return the lines that contain the first advice and any further advice.

    If the advice is not about specific ranks, lines about ranks that stand out precede it. If the
    first iteration takes much longer than later ones, a sentence about its warm-up follows.
    """
    sentence = choose_first_sentence(report, describe_first_steps(report))
    advised = advise(report)
    lines = [] if advised.marked_ranks else ranks.make_first_lines(report, display)
    if sentence:
        # Steps such as recording launches are not in the table of advice.
        is_listed = all(step.advice is not None for step in advised.first)
        option = "-v advice" if advised.first and is_listed else "-v"
        lines += _wrap_advice(sentence, display, lead="First:", max_lines=4, option=option)
    for text in describe_further_steps(report):
        lines += _wrap_advice(text, display, lead="Then:", max_lines=2, option="-v advice")
    if warm_up := describe_warm_up(report):
        lines += _wrap_advice(
            warm_up, display, lead="First iteration:", max_lines=3, option="-v operations"
        )
    return lines


def _wrap_advice(
    text: str, display: Display, *, lead: str, max_lines: int, option: str
) -> list[doc.Line]:
    """Wrap advice for a terminal. If it does not fit, it ends with the option that shows it all.

    Args:
        text: The advice.
        display: The terminal.
        lead: Words before the text.
        max_lines: Maximum number of lines at 80 columns; see :func:`.wrap_paragraph`.
        option: The option that shows the complete text.
    """
    text = to_one_line(text)
    lines = wrap_paragraph(text, display, lead=lead, max_lines=max_lines)
    if len(wrap_paragraph(text, display, lead=lead)) == len(lines):
        return lines
    *start, last = lines[-1]
    words = last.text.rstrip().removesuffix(display.translate("…")).rstrip()
    ending = display.translate(f" … ({option})")
    while measure_cells(words + ending) > display.text_width and " " in words.strip():
        words = words.rpartition(" ")[0]
    return [*lines[:-1], (*start, last._replace(text=words + ending))]


def _make_last_lines(report: Report, display: Display) -> list[doc.Line]:
    """Return lines with the limits on the primary ratio, and with options that show more."""
    coverage = ""
    if report.limitations:
        coverage = f", -v coverage ({format_count(len(report.limitations), 'note')})"
    options = f"-v (all tables), -v ranks{coverage}, -o bubbles.svg, --help"
    return [
        *_list_limits(report, display),
        *wrap_paragraph(options, display, lead="More:", style="dim"),
    ]


def _join_blocks(blocks: Sequence[Sequence[doc.Line]], max_lines: int) -> list[doc.Line]:
    """Join the lines of several blocks, with an empty line between blocks.

    If the result would exceed ``max_lines`` lines, empty lines are left out, starting with the one
    before the last block. The blocks themselves are never shortened.
    """
    n_empty = max_lines - sum(map(len, blocks))
    lines: list[doc.Line] = []
    for index, block in enumerate(blocks):
        if 0 < index <= n_empty:
            lines.append(())
        lines += block
    return lines


def _make_headline(report: Report, display: Display) -> Iterator[doc.Line]:
    """Yield the lines with the primary ratio, the run, the schedule, and the restrictions.

    If the other ranks usually wait for one rank at barriers, this rank comes first. A schedule that
    the run matches exactly is named in the line about the run. Any other schedule, and a plan, has
    a separate line. If FLOPs are given, the utilization follows the run.
    """
    if late := describe_late_rank(report):
        yield from wrap_paragraph(to_one_line(late), display, lead="Late:", max_lines=4)
    mean = report.summary.bubble_ratio[report.headline].mean
    value = "unknown" if mean is None else format_percent(mean)
    lead = f"{capitalize(name_measure(report).name)}: {value}"
    spread = _describe_spread(report) + _describe_worst_iteration(report)
    spread += _describe_kernel_share(report)
    joint = ";" if spread.startswith(";") else ""
    yield from wrap_paragraph(spread.removeprefix(joint).strip(), display, lead=f"{lead}{joint}")
    yield from wrap_paragraph(_describe_run(report), display, max_lines=2)
    yield from wrap_paragraph(describe_utilization(report), display, max_lines=2)
    ran = None if _name_exact_schedule(report) else report.schedule
    for title, order in (("schedule", ran), ("plan", report.plan)):
        if order is not None and order.reason not in NO_PIPELINE:
            yield from wrap_paragraph(str(order), display, lead=f"{title}:", max_lines=2)
    for mark in _list_restrictions(report):
        yield from wrap_paragraph(
            to_one_line(mark, 160), display, lead="!", lead_style=_WARNING, max_lines=2
        )
    for sentence in list_profiling_sentences(report):
        yield from wrap_paragraph(sentence, display, lead="!", lead_style=_WARNING, max_lines=4)


def _draw_bubble(report: Report, display: Display) -> list[doc.Line]:
    """Return a title, a stacked bar of the bubble's parts, and its legend.

    The result is an empty list if the parts are unknown.
    """
    parts = compute_bubble_parts(report)
    if not parts:
        return []
    shares = [part.share for part in parts]
    ratio = report.explanation.listed_ratio
    window = "window" if ratio == report.headline else f"{ratio} window"
    idle = name_measure(report).idle
    title = f"What the {idle} is made of, in % of the {window} (sum: {100 * sum(shares):.2f})"
    bar = [
        (part.name, part.share, label, BUBBLE_PARTS[part.name])
        for part, label in zip(parts, round_shares(shares), strict=True)
    ]
    return [*wrap_paragraph(title, display, style="bold"), *draw_stacked_bar(bar, display)]


def _list_limits(report: Report, display: Display) -> list[doc.Line]:
    """Return the lines that list the limits on the primary ratio.

    The result is empty if there are none.

    The limits are, in this order:

    - the texts of :func:`_describe_bounds`, without narrow clock bounds;
    - the share of kernel time that is attributed to operations, if it is below ``_COVERED``;
    - the number of clocks, if there are several and the offset of any clock is unknown;
    - all limitations of the report except those of the kinds in ``_MINOR``.
    """
    limits = [text for _, text in _describe_bounds(report, narrow=False)]
    gpu_ns = sum(profile.gpu_ns for profile in report.profiles)
    attributed_ns = sum(profile.attributed_gpu_ns for profile in report.profiles)
    if gpu_ns and attributed_ns < _COVERED * gpu_ns:
        limits.append(f"{format_percent(attributed_ns / gpu_ns)} of kernel time attributed")
    clocks = {report.clock(number) for number in range(len(report.profiles))}
    if any(uncertainty is None for _, _, uncertainty in clocks) and len(clocks) > 1:
        limits.append(f"offsets of {len(clocks)} clocks unknown")
    important = [limit for limit in report.limitations if limit.kind not in _MINOR]
    limits += dict.fromkeys(map(_describe_limitation, important))
    if not limits:
        return []
    text = f"{'; '.join(limits)} (-v coverage)"
    return wrap_paragraph(text, display, lead="Limits:", lead_style=_WARNING, max_lines=3)


def _describe_limitation(limit: Limitation) -> str:
    """Return a limitation's subject, or the texts of a profiler's warning with the file count."""
    if limit.kind is not LimitationKind.PROFILER_WARNING:
        return to_one_line(limit.what, 60)
    files = f" ({limit.count:,} files)" if limit.count > 1 else ""
    return f"{to_one_line(limit.reason.rstrip('.'), 160)}{files}"
