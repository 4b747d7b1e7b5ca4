"""Renders a comparison of runs as text or a file, or as panels on a common time axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bubbleviz.errors import UsageError
from bubbleviz.model.texts import (
    format_count,
    format_csv,
    format_document,
    format_percent,
    quote_formula,
    to_one_line,
)
from bubbleviz.render import comparison_latex
from bubbleviz.render import document as doc
from bubbleviz.render.latex import list_figure_comments
from bubbleviz.render.markdown import render_markdown
from bubbleviz.render.picture.panels import draw_panel_page, select_typical
from bubbleviz.render.picture.style import choose_style
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.report.compared.comparison import Cell, ComparedRun, Comparison
from bubbleviz.report.compared.followed import NOT_FOLLOWED
from bubbleviz.report.compared.pair import count_microbatches
from bubbleviz.report.compared.significance import ASSUMPTIONS, MeanDifference
from bubbleviz.report.compared.spent_time import (
    find_first_cause,
    split_primary_window,
    split_window,
)
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.ratio_summary import ReportSummary, has_iterations
from bubbleviz.report.restored import check_timeline, restore
from bubbleviz.report.restrictions import find_no_pipeline, list_entries, read_restrictions

if TYPE_CHECKING:
    from bubbleviz.render.picture.page import Page
    from bubbleviz.report.report import Report
    from bubbleviz.report.summary import Average
    from bubbleviz.report.view import View

SCHEMA = "bubbleviz.comparison/1"
COLUMNS = (
    *("ratio", "run", "mean", "std", "n", "window_ns", "window_std_ns"),
    *("difference", "difference_low", "difference_high", "t", "df", "p", "window_difference_ns"),
)
#: Maximum length of a run title in tables, in characters.
_TITLE_LENGTH = 30
#: Maximum number of runs, of summary lines, of notes, and of rows of the time table on one screen.
_MAX_RUNS, _MAX_SUMMARIES, _MAX_NOTES, _MAX_PARTS = 6, 6, 3, 8
#: Name of the table row that sums up all parts without a separate row.
_REST = "everything else"
#: Parts of a window that are not idle time.
_WORK = ("work", "busy")
#: Minimum time for an idle part to be listed. The part must reach this time in at least one run.
_MIN_PART_NS = 500.0


def make_document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON values: runs, ratios, differences, advice, notes and test.

    Each ratio has one cell per run. All differences are relative to the first run. The entries of
    ``advice`` say whether the advice for the first run was followed in another run, and how much
    time was gained.
    """
    return {
        "headline": comparison.headline,
        # Name of the ratio whose windows represent the iterations.
        "longest": comparison.longest,
        "runs": [_make_run_document(run) for run in comparison.runs],
        "ratios": [
            {"ratio": name, "runs": [_make_cell_document(cell) for cell in cells]}
            for name, cells in comparison.ratios.items()
        ],
        # A rank's mean time by activity, and the differences from the first run in sentences.
        "differences": [
            {
                "run": run.title,
                "time_ns": split_primary_window(run.saved),
                "text": list(differences),
            }
            for run, differences in zip(comparison.runs, comparison.differences, strict=True)
        ],
        # For each later run, whether the advice for the first run was followed, and how much was
        # gained.
        "advice": [
            {"run": run.title, **asdict(result), "text": result.line}
            for run, results in zip(comparison.runs, comparison.followed, strict=True)
            for result in results
        ],
        "notes": list(comparison.notes),
        "test": ASSUMPTIONS,
    }


def _make_run_document(run: ComparedRun) -> dict[str, Any]:
    """Return a run's title, path, version, primary ratio, sizes and restrictions as JSON."""
    saved = run.saved
    return {
        "title": run.title,
        "path": run.path,
        "version": saved.version,
        "headline": saved.headline,
        "ranks": len(saved.ranks),
        "iterations": saved.summary.iterations,
        "restrictions": list_entries(saved.restrictions),
    }


def _make_cell_document(cell: Cell) -> dict[str, Any]:
    """Return one run's bubble ratio, and the length of its window, as JSON values.

    The differences from the first run are included. A value is None if the run does not have the
    ratio, or if the difference is unknown.
    """
    return {
        "bubble_ratio": cell.ratio and _make_average_document(cell.ratio.bubble),
        "window_ns": cell.ratio and _make_average_document(cell.ratio.window_ns),
        "difference": cell.bubble and asdict(cell.bubble),
        "window_difference_ns": cell.window_ns and asdict(cell.window_ns),
        # None if the iterations in both runs do the same work.
        "microbatch_difference_ns": cell.microbatch_ns and asdict(cell.microbatch_ns),
    }


def _make_average_document(average: Average) -> dict[str, float | None]:
    """Return an average's mean, standard deviation and number of values as JSON values."""
    return {"mean": average.mean, "std": average.std, "n": average.n}


def format_json(comparison: Comparison) -> str:
    """Return a comparison as JSON text."""
    return format_document(SCHEMA, make_document(comparison))


def write_csv(comparison: Comparison) -> str:
    """Return the ratios of a comparison as CSV text with the columns ``COLUMNS``.

    There is one row per ratio and run. The cell of an unknown value is empty.
    """
    rows = []
    for name, cells in comparison.ratios.items():
        for run, cell in zip(comparison.runs, cells, strict=True):
            ratio = cell.ratio
            bubble = None if ratio is None else ratio.bubble
            window_ns = None if ratio is None else ratio.window_ns
            row: list[object] = [quote_formula(name), quote_formula(run.title)]
            row += [None] * 3 if bubble is None else [bubble.mean, bubble.std, bubble.n]
            row += [None] * 2 if window_ns is None else [window_ns.mean, window_ns.std]
            row += _list_difference_values(cell.bubble)
            row.append(cell.window_ns and cell.window_ns.mean)
            rows.append(row)
    return format_csv(COLUMNS, rows)


def _list_difference_values(difference: MeanDifference | None) -> list[object]:
    """Return the CSV values of a difference: mean, lower and upper bound, t, df and p.

    All six values are None if there is no difference.
    """
    if difference is None:
        return [None] * 6
    low, high = difference.ci95 or (None, None)
    return [difference.mean, low, high, difference.t, difference.df, difference.p]


def check_drawable(path: str, summary: ReportSummary) -> None:
    """Check that a run from a saved report can be drawn.

    Args:
        path: Path of the report, used in the message.
        summary: The saved report.

    Raises:
        UsageError: The report is about idle time, or has no timeline.
    """
    if isinstance(summary, IdleSummary):
        raise _make_idle_error(path)
    check_timeline(path, summary)


def _make_idle_error(path: str) -> UsageError:
    return UsageError(
        f"{path}: a comparison of idle time has no operations to draw; leave out the picture, or "
        "draw each run with: bubbleviz idle RUN -o idle.svg"
    )


def draw_svg(comparison: Comparison, view: View) -> str:
    """Draw the typical iteration of each run as a panel, with a shared time axis.

    Raises:
        UsageError: A run cannot be drawn; see :func:`check_drawable`.
    """
    return _draw_page(comparison, view).svg()


def _draw_page(comparison: Comparison, view: View) -> Page:
    """Draw the panels of all runs, and return the page.

    Raises:
        UsageError: A run cannot be drawn; see :func:`check_drawable`.
    """
    titles = _make_panel_titles(comparison, view)
    reports = [_get_report(run) for run in comparison.runs]
    panels = [
        (title, report, select_typical(report, view))
        for title, report in zip(titles, reports, strict=True)
    ]
    return draw_panel_page(panels, f"{len(panels)} runs on a common time axis")


def _get_report(run: ComparedRun) -> Report:
    """Return a run's measured report, or restore its report if it was saved.

    Raises:
        UsageError: The run cannot be drawn; see :func:`check_drawable`.
    """
    if run.report is not None:
        return run.report
    if isinstance(run.saved, IdleSummary):
        raise _make_idle_error(run.path)
    return restore(run.path, run.saved)


def format_latex(comparison: Comparison, view: View) -> str:
    """Return a comparison as a LaTeX table, with the figure as a comment if it can be drawn."""
    figure = list_figure_comments(
        view, "comparison.pdf", lambda drawn: _draw_page(comparison, drawn)
    )
    return comparison_latex.render(comparison, figure)


def _make_panel_titles(comparison: Comparison, view: View) -> list[str]:
    """Return the title of each run's panel.

    If all runs have different schedules, a title is the name of the schedule, followed by the title
    of the run unless the style has no titles. Otherwise, a title is the title of the run, followed
    by the schedule if it is known.
    """
    runs = comparison.runs
    schedules = [run.schedule_name for run in runs]
    is_schedule_distinct = None not in schedules and len(set(schedules)) == len(runs)
    titles = []
    for schedule, run in zip(schedules, runs, strict=True):
        if schedule is None:
            titles.append(run.title)
        elif is_schedule_distinct and (schedule == run.title or not choose_style(view).titled):
            titles.append(schedule)
        elif is_schedule_distinct:
            titles.append(f"{schedule} ({run.title})")
        else:
            titles.append(f"{run.title} ({schedule})")
    return titles


def format_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown text.

    The text contains everything that :func:`list_sections` yields, followed by the largest cause
    of idle time and the first advice of each run.
    """
    causes = [
        line for run in comparison.runs for line in describe_cause(run.saved, f"{run.title}: ")
    ]
    blocks = [*list_sections(comparison), doc.make_bullets(causes)]
    return render_markdown(blocks, "Pipeline bubbles: comparison")


def describe_cause(saved: ReportSummary, prefix: str = "") -> list[str]:
    """Return a line that names the largest cause of a run's idle time and the first thing to do.

    The result is an empty list if both are unknown.

    Args:
        saved: Report of the run.
        prefix: Text at the start of the line, for example the title of the run.
    """
    clauses = []
    first_cause = find_first_cause(saved)
    if first_cause is not None:
        label, fraction = first_cause
        idle = "bubble" if find_no_pipeline(saved.restrictions) is None else "idle time"
        clauses.append(f"largest cause: {label}, {format_percent(fraction)} of the {idle}")
    if saved.what_to_do_first is not None:
        clauses.append(f"what to do first: {saved.what_to_do_first}")
    return [prefix + "; ".join(clauses)] if clauses else []


#: Functions that render a comparison, keyed by format name.
RENDERINGS: Mapping[str, Callable[[Comparison, View], str | bytes]] = {
    "json": lambda comparison, _: format_json(comparison),
    "csv": lambda comparison, _: write_csv(comparison),
    "markdown": lambda comparison, _: format_markdown(comparison),
    "latex": format_latex,
    "svg": draw_svg,
    "pdf": lambda comparison, view: as_pdf(draw_svg(comparison, view)),
    "png": lambda comparison, view: as_png(draw_svg(comparison, view)),
}
#: Formats in which operations are drawn.
PICTURES = frozenset({"svg", "pdf", "png"})


def list_sections(comparison: Comparison, *, screen: bool = False) -> Iterator[doc.Block]:
    """Yield the blocks of a comparison: summary, differences, times, advice, ratios and notes.

    Args:
        comparison: The comparison.
        screen: Whether to limit the blocks to what fits on one screen. The table of ratios and
            significance tests is then left out.
    """
    titles, notes = _make_titles(comparison), comparison.notes
    max_lines = _MAX_NOTES if screen else None
    summary = list(_summarize(comparison, titles))[: _MAX_SUMMARIES if screen else None]
    summary += _list_restrictions(comparison, titles)
    yield doc.Sentence("\n".join(summary), style="bold")
    yield _list_differences(comparison, titles, max_lines)
    shown_titles = titles[: _MAX_RUNS if screen else None]
    yield from _make_time_table(comparison, shown_titles, _MAX_PARTS if screen else None)
    yield _list_advice_results(comparison, titles, max_lines)
    if not screen:
        yield from _make_ratio_table(comparison.ratios, titles)
    yield doc.make_bullets([to_one_line(note, 600) for note in notes[:max_lines]])
    last = ASSUMPTIONS
    if screen:
        sizes = (
            f"{format_count(len(titles), 'run')}, {format_count(len(comparison.ratios), 'ratio')}"
        )
        n_left_out = max(len(notes) - _MAX_NOTES, 0)
        more_notes = f", {format_count(n_left_out, 'more note')}" if n_left_out else ""
        last = f"More: -v ({sizes} with their spread and tests{more_notes})"
    yield doc.Sentence(f"\n{last}", style="dim")


def _make_time_table(
    comparison: Comparison, titles: Sequence[str], max_parts: int | None
) -> Iterator[doc.Block]:
    """Yield a table of how ranks spend their time, with one column per run.

    The first row is work. The other parts are sorted by their largest change from the first run,
    largest first. The last row is the total. Idle parts shorter than ``_MIN_PART_NS`` in all runs
    are left out. If there are more than ``max_parts`` parts, the last row before the total combines
    the remaining parts.

    There is no table if the times of the first run, or of all other runs, are unknown.

    Args:
        comparison: The comparison.
        titles: Titles of the runs to show. They are the first runs in the comparison.
        max_parts: Maximum number of rows, not counting the total, or None for no limit.
    """
    unit, times = _split_times(comparison, len(titles))
    first, *later_times = times
    if not first or not any(later_times):
        return
    names = dict.fromkeys(name for parts in times for name in parts)

    def measure_change(name: str) -> float:
        return max(abs(parts.get(name, 0.0) - first.get(name, 0.0)) for parts in later_times)

    ordered = sorted(names, key=lambda name: (name not in _WORK, -measure_change(name)))
    part_names = [
        name
        for name in ordered
        if name in _WORK or any(parts.get(name, 0.0) >= _MIN_PART_NS for parts in times)
    ]
    total_ns = [sum(parts.values()) if parts else None for parts in times]
    if max_parts is not None and len(part_names) > max_parts:
        part_names, rest = part_names[: max_parts - 1], part_names[max_parts - 1 :]
        times = [parts | {_REST: sum(parts.get(name, 0.0) for name in rest)} for parts in times]
        part_names.append(_REST)
    rows = [
        _make_time_row(name, [parts.get(name, 0.0) if parts else None for parts in times], titles)
        for name in part_names
    ]
    rows += [{}, _make_time_row("total", total_ns, titles)]
    yield doc.Table(unit, rows, left=("spent on",))


def _split_times(comparison: Comparison, n_runs: int) -> tuple[str, list[dict[str, float]]]:
    """For each run, split the mean window of a rank into work and causes of idle time.

    The window of the primary ratio is used. If the primary ratios of the runs differ, the window of
    ``comparison.headline`` is split instead, and only into work and bubble. If the runs process
    different numbers of microbatches per iteration, times are per microbatch.

    Args:
        comparison: The comparison.
        n_runs: Number of runs to return, starting with the first run.

    Returns:
        unit: Time unit for the table title, along with the window's name unless the window is the
            entire iteration.
        times: One mapping per run, from the name of a part to its time in ns.
    """
    runs = [run.saved for run in comparison.runs]
    compared, headline = runs[:n_runs], comparison.headline
    unit = "ms per rank and iteration"
    if isinstance(runs[0], IdleSummary):
        unit = f"ms per device and {'step' if runs[0].has_steps else 'capture'}"
    has_mixed_headlines = len({run.headline for run in runs}) > 1
    if has_mixed_headlines or headline != comparison.longest:
        unit += f", in the {headline} window"
    times = [
        split_window(run, headline) if has_mixed_headlines else split_primary_window(run)
        for run in compared
    ]
    pairs = comparison.pairs[: n_runs - 1]
    microbatches = [count_microbatches(run) for run in compared]
    expected = [microbatches[0] / number for number in microbatches[1:]]
    has_unequal_work = any(pair.is_per_microbatch for pair in pairs)
    if has_unequal_work and [pair.equal_work for pair in pairs] == expected:
        unit = unit.replace("iteration", "microbatch", 1)
        times = [
            {name: ns / number for name, ns in parts.items()}
            for parts, number in zip(times, microbatches, strict=True)
        ]
    return unit, times


def _make_time_row(
    name: str, times_ns: Sequence[float | None], titles: Sequence[str]
) -> dict[str, str]:
    """Return the table row for one part of the window, with its time in each run in ms.

    If there are exactly two runs and both times are known, the row also contains the change. The
    column ``change`` is in ms, and the column ``%`` is relative to the first time.

    Args:
        name: Name of the part.
        times_ns: Time spent in the part in each run in ns, or None if unknown.
        titles: Title of each run, used as the column header.

    Returns:
        The text of each cell, keyed by column header.
    """
    row = {"spent on": to_one_line(name, 40)}
    row |= {title: doc.format_ms(ns) for title, ns in zip(titles, times_ns, strict=True)}
    first, other = times_ns[0], times_ns[-1]
    if len(times_ns) == 2 and first is not None and other is not None:
        row["change"] = f"{(other - first) / 1e6:+,.3f}"
        row["%"] = f"{100 * (other / first - 1):+.1f}" if first else ""
    return row


def _list_differences(
    comparison: Comparison, titles: Sequence[str], max_lines: int | None
) -> doc.Block:
    """Return a bulleted list of sentences that say how each run differs from the first run.

    Args:
        comparison: The comparison.
        titles: Title of each run. With more than two runs, each sentence starts with the title.
        max_lines: Maximum number of lines per run, or None for no limit. If a maximum is given, all
            runs together have at most ``2 * max_lines`` lines.
    """
    lines = [
        to_one_line(text if len(titles) == 2 else f"{title}: {text}", 300)
        for title, differences in zip(titles, comparison.differences, strict=True)
        for text in differences[:max_lines]
    ]
    return doc.make_bullets(lines if max_lines is None else lines[: 2 * max_lines])


def _list_advice_results(
    comparison: Comparison, titles: Sequence[str], max_lines: int | None
) -> doc.Block:
    """Return a bulleted list that says how the first run's advice turned out in other runs.

    Args:
        comparison: The comparison.
        titles: Title of each run.
        max_lines: Maximum number of lines, or None for no limit. If a maximum is given, advice that
            was not followed is left out.
    """
    lines = [
        to_one_line(f"{title}: {result.line}", 600)
        for title, results in zip(titles, comparison.followed, strict=True)
        for result in results
        if max_lines is None or result.verdict != NOT_FOLLOWED
    ]
    return doc.make_bullets(lines[:max_lines])


def _make_titles(comparison: Comparison) -> list[str]:
    """Return a short title for each run, on one line and with at most ``_TITLE_LENGTH`` characters.

    If two runs have the same title, each title is preceded by its one-based run number.
    """
    titles = [
        doc.truncate_middle(to_one_line(run.title, 200), _TITLE_LENGTH) for run in comparison.runs
    ]
    if len(set(titles)) == len(titles):
        return titles
    return [f"{number}: {title}" for number, title in enumerate(titles, 1)]


def _make_ratio_table(
    ratios: Mapping[str, tuple[Cell, ...]], titles: Sequence[str]
) -> Iterator[doc.Block]:
    """Yield a heading and a table of ratios, windows and significance tests.

    The table has one row per ratio and run. Each ratio's name appears only in its first row.
    """
    yield doc.Sentence("\nBubble ratios in %; differences from the first run in percentage points")
    rows = []
    for ratio, cells in ratios.items():
        for title, cell in zip(titles, cells, strict=True):
            name = to_one_line(ratio, 40) if cell is cells[0] else ""
            rows.append({"ratio": name, "run": title, **_format_cell(cells[0], cell)})
    drop_order = ("change %", "n", "SD", "window ms", "95 % CI", "p")
    yield doc.Table("", rows, left=("ratio", "run"), drop_order=drop_order)


def _summarize(comparison: Comparison, titles: Sequence[str]) -> Iterator[str]:
    """Yield one line per run that compares the run with the first run.

    The first run has no line. Each line contains the run's primary ratio, and the changes in the
    ratio and in the iteration time. The first line also contains the title and the ratio of the
    first run.
    """
    headline = comparison.headline
    first_cell, *cells = comparison.ratios[headline]
    ratio_kind = "" if isinstance(comparison.runs[0].saved, IdleSummary) else " bubble ratio"
    first_ratio = format_percent(_get_mean(first_cell))
    lead = f"{to_one_line(headline, 40)}{ratio_kind} {first_ratio} ({titles[0]})"
    for index, (title, cell) in enumerate(zip(titles[1:], cells, strict=True), 1):
        line = f"{lead} -> {format_percent(_get_mean(cell))} ({title})"
        lead = " "
        if cell.bubble is not None:
            line += f": {_describe_difference(cell.bubble)}"
        yield line + _describe_window_changes(comparison, index)


def _describe_window_changes(comparison: Comparison, index: int) -> str:
    """Return clauses that say how much a run's windows have changed in length, or "".

    The main clause is about the windows of ``comparison.longest``, which represent the iterations.
    The windows of the primary ratio get a separate clause only if they changed by a different
    amount.

    Args:
        comparison: The comparison.
        index: Index of the run to compare with the first run.
    """
    headline, longest = comparison.headline, comparison.longest
    of_headline = _describe_window_change(comparison, headline, index)
    of_longest = _describe_window_change(comparison, longest, index)
    clauses = ""
    if of_headline != of_longest:
        clauses = f"; {to_one_line(headline, 40)} windows {of_headline}"
        of_longest += f" ({longest})"
    return f"{clauses}; {_name_windows(comparison)} {of_longest}" if of_longest else clauses


def _get_mean(cell: Cell) -> float | None:
    """Return the mean bubble ratio of a cell, or None if it is unknown."""
    return None if cell.ratio is None else cell.ratio.bubble.mean


def _describe_window_change(comparison: Comparison, name: str, index: int) -> str:
    """Return how much a window length changed, such as "3.20 % longer", or "" if unknown.

    The change is relative to the first run. If runs are compared per microbatch, the change per
    microbatch is added.

    Args:
        comparison: The comparison.
        name: Name of the ratio.
        index: Index of the run.
    """
    first, cell = comparison.ratios[name][0].ratio, comparison.ratios[name][index]
    if cell.window_ns is None or first is None or not first.window_ns.mean:
        return ""
    change = _describe_relative_change(cell.window_ns.mean / first.window_ns.mean)
    if cell.microbatch_ns is not None:
        microbatch_ns = first.window_ns.mean / count_microbatches(comparison.runs[0].saved)
        per_microbatch = _describe_relative_change(cell.microbatch_ns.mean / microbatch_ns)
        change += f", {per_microbatch} per microbatch"
    return change


def _describe_relative_change(change: float) -> str:
    if not change:
        return "equally long"
    return f"{abs(100 * change):.2f} % {'shorter' if change < 0 else 'longer'}"


def _name_windows(comparison: Comparison) -> str:
    """Return the subject of the clause about window lengths: iterations or entire captures."""
    return "iterations" if has_iterations(comparison.runs[0].saved) else "whole captures are"


def _list_restrictions(comparison: Comparison, titles: Sequence[str]) -> list[str]:
    """Return a single-entry list whose line names the restrictions of all runs.

    Each restriction is preceded by the title of its run. The result is an empty list if none of the
    runs have restrictions.
    """
    restrictions = [
        f"{title}: {to_one_line(restriction.text, 120)}"
        for title, run in zip(titles, comparison.runs, strict=True)
        for restriction in read_restrictions(run.saved.restrictions)
    ]
    return [f"! ({'; '.join(restrictions)})"] if restrictions else []


def _describe_difference(difference: MeanDifference) -> str:
    """Describe the difference between two ratios, for example "2.10 points lower (p = 0.0012)".

    A difference that is not statistically significant is followed by "may be due to chance".
    """
    if not difference.mean:
        return "the same"
    direction = "lower" if difference.mean < 0 else "higher"
    points = f"{100 * abs(difference.mean):.2f} points {direction}"
    if difference.p is None:
        return f"{points} (no significance test possible)"
    chance = "" if difference.significant_sign else ", may be due to chance"
    return f"{points} (p {_format_probability(difference.p, ' = ')}{chance})"


def _format_cell(first: Cell, cell: Cell) -> dict[str, str]:
    """Return the table cells for one run's ratio, including its differences from the first run.

    Ratios are in percent, differences between them in percentage points, and windows in ms.

    Args:
        first: Values of the first run.
        cell: Values of the run to describe.

    Returns:
        The text of each table cell, keyed by column header.
    """
    ratio, difference, longer_ns = cell.ratio, cell.bubble, cell.window_ns
    relative = ""
    if first.ratio is not None and longer_ns is not None and first.ratio.window_ns.mean:
        relative = _format_signed(100 * longer_ns.mean / first.ratio.window_ns.mean)
    return {
        "mean": "-" if ratio is None else doc.format_percent_cell(ratio.bubble.mean),
        "SD": "-" if ratio is None else doc.format_percent_cell(ratio.bubble.std),
        "n": "0" if ratio is None else str(ratio.bubble.n),
        "difference": "" if difference is None else _format_signed(100 * difference.mean),
        "95 % CI": "" if difference is None else _format_interval(difference),
        "p": "" if difference is None else _format_probability(difference.p, ""),
        "window ms": doc.format_ms(None if ratio is None else ratio.window_ns.mean),
        # Change in window length, as a percentage of the first run's window length.
        "change %": relative,
    }


def _format_signed(value: float) -> str:
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(value, 2) + 0.0:+.2f}"


def _format_interval(difference: MeanDifference) -> str:
    if difference.ci95 is None:
        return "-"
    return " to ".join(_format_signed(100 * bound) for bound in difference.ci95)


def _format_probability(p: float | None, equals: str) -> str:
    """Format a p-value with four decimals, preceded by ``equals`` without its leading blanks.

    A value below 0.0001 is shown as "< 0.0001" without the prefix, and None as "-".
    """
    if p is None:
        return "-"
    return "< 0.0001" if p < 0.0001 else f"{equals.lstrip()}{p:.4f}"
