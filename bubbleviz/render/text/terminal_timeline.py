"""Draws the timeline of one iteration in a terminal, to scale, with one row of cells per stage.

On a color terminal, each character shows two cells: its left and its right half. On a terminal
without colors, each character shows one cell, and phases differ by shade. On an ASCII terminal,
phases are letters::

    stage 0 ████████▒▒██▒▒██▒▒██·····▒▒······▒▒   27.3 %
    stage 1►··██████▒▒██▒▒██▒▒██▒▒···▒▒···▒▒···   27.3 %
            |0        |10       |20        33 ms
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import floor, log10
from statistics import median
from typing import TypeAlias

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import list_indices
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.operations import Rank
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.texts import format_count, format_percent, list_first, to_one_line
from bubbleviz.render import marks as pixels
from bubbleviz.render import palette
from bubbleviz.render.document import Line, Span
from bubbleviz.render.picture.numbers import round_step
from bubbleviz.render.rows import RankRow, draw_marked_pipeline, select_ranks
from bubbleviz.render.selection import Selection, measure_row_ratios, select
from bubbleviz.render.text.ranks import rank_labels
from bubbleviz.render.text.terminal import Display, flow_entries
from bubbleviz.render.wrapping import measure_cells, truncate_to_width, wrap_text
from bubbleviz.report.labels import MARK, name_rank_with_number
from bubbleviz.report.marked_ranks import choose_marked_ranks
from bubbleviz.report.measure import name_measure
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Kinds of cells that do not contain a mark. Their codes are greater than all mark codes.
_BUBBLE, _OUTSIDE = 20, 21
_BUSY = (*map(int, COMPUTE), pixels.OTHER_ITERATION, pixels.UNATTRIBUTED_KIND)
_KINDS = (*_BUSY, _BUBBLE, _OUTSIDE)
#: Two characters for each kind of cell: one for Unicode terminals, one for ASCII terminals.
_SIGNS: Mapping[int, str] = {
    Phase.F: "█F",
    Phase.B: "▓B",
    Phase.W: "░W",
    Phase.BW: "▒b",
    Phase.R: "▚R",
    Phase.FB: "▞X",
    Phase.OPTIMIZER: "▄O",
    pixels.OTHER_ITERATION: "--",
    pixels.UNATTRIBUTED_KIND: "??",
    _BUBBLE: "·.",
    _OUTSIDE: "  ",
}
#: Legend texts of cell kinds that are not phases.
_NAMES = {
    pixels.OTHER_ITERATION: "other iteration",
    pixels.UNATTRIBUTED_KIND: "unattributed",
    _BUBBLE: "bubble",
}
#: Maximum width of the label before a row, and minimum width of the ratio after it.
_LONGEST_LABEL, _RATIO = 18, 8
#: Maximum number of row groups. Rows are not grouped if there are at most this many.
_GROUPS = 16
#: Number of lines in a timeline that are not rows: title, axis and legend.
_AROUND = 3
#: Minimum distance between two time-axis labels, in columns.
_BETWEEN_TICKS = 9

#: A row, its label, and the bubble ratio of the drawn rank, or None if the ratio is unknown.
_Labeled: TypeAlias = "tuple[RankRow, str, float | None]"


class _Brush:
    """Draws cells as characters: one cell per character, or two on a color terminal.

    Args:
        display: The terminal.
        kinds: All kinds of cells that occur in the timeline.
    """

    def __init__(self, display: Display, kinds: Collection[int]) -> None:
        self.has_halves = _has_halves(display)
        self.glyphs = {kind: signs[not display.unicode] for kind, signs in _SIGNS.items()}
        if self.has_halves:
            self.glyphs |= dict.fromkeys(_BUSY, "█")
        elif not display.unicode and Phase.B not in kinds:
            # If BW is the only kind of backward pass, it gets B's letter.
            self.glyphs[Phase.BW] = "B"
        self.styles = {kind: _choose_style(kind) if display.color else "" for kind in _SIGNS}

    def draw(self, cells: Sequence[int]) -> list[Span]:
        """Draw a row of cells. Consecutive equal characters share a span.

        Args:
            cells: Kind of each cell. If characters show two cells, their number must be even.
        """
        if not self.has_halves:
            runs = ((kind, len(list(run))) for kind, run in groupby(cells))
            return [Span(self.glyphs[kind] * length, self.styles[kind]) for kind, length in runs]
        spans = []
        for (left, right), run in groupby(zip(cells[::2], cells[1::2], strict=True)):
            glyph, style = self._draw_halves(left, right)
            spans.append(Span(glyph * len(list(run)), style))
        return spans

    def _draw_halves(self, left: int, right: int) -> tuple[str, str]:
        """Return a character whose halves show two adjacent cells, along with its style.

        Args:
            left: Kind of the left cell.
            right: Kind of the right cell.
        """
        styles, blank = self.styles, (_BUBBLE, _OUTSIDE)
        if left == right:
            return self.glyphs[left], styles[left]
        if right in blank:
            glyph = self.glyphs[_OUTSIDE] if left in blank else "▌"
            return glyph, styles[left]
        if left in blank:
            return "▐", styles[right]
        return "▌", f"{styles[left]} on {styles[right]}"

    def explain(self, kind: int) -> Line:
        """Return the legend entry for a cell kind."""
        name = _NAMES.get(kind) or Phase(kind).label
        return Span(self.glyphs[kind], self.styles[kind]), Span(f" {name}")


def _has_halves(display: Display) -> bool:
    """Return whether each character shows two cells, which requires colors and Unicode."""
    return display.color and display.unicode


def select_timeline(
    report: Report, view: View, iteration: Iteration, marked: Collection[int] = ()
) -> Selection | None:
    """Select the rows to draw for an iteration, or return None if there are none.

    If the view does not specify the kind of rows, there is one row per stage, or one row per rank
    if no stage is known. Rows whose ranks are all inactive in the iteration are left out.

    Args:
        report: The report.
        view: The ranks to draw, and the kind of rows.
        iteration: The iteration to draw.
        marked: Indices of the marked ranks. Rows draw the replicas in the
            pipeline with the most marked ranks; see :func:`draw_marked_pipeline`.
    """
    has_stages = any(rank.stage is not None for rank in select_ranks(report, view))
    rows = view.rows or ("stage" if has_stages else "rank")
    at_work = set(list_indices(iteration.ranks))
    selection = select(report, replace(view, iterations=(iteration.index,), rows=rows))
    if selection is None:
        return None
    active_rows = [row for row in selection.rows if not at_work.isdisjoint(row.replicas)]
    rows_drawn = draw_marked_pipeline(report, active_rows, marked)
    return replace(selection, rows=rows_drawn) if rows_drawn else None


def draw_timeline(
    report: Report,
    selection: Selection,
    display: Display,
    marked: Collection[int] = (),
    *,
    max_lines: int | None = None,
) -> list[Line]:
    """Draw the timeline of one iteration, and return its lines: title, rows, axis and legend.

    If not all rows fit, several consecutive rows share a line; see :func:`_group_rows`.

    Args:
        report: The report.
        selection: The rows of one iteration.
        display: The terminal.
        marked: Indices of the ranks that the advice is about, or of outliers. Their rows are marked
            and bold.
        max_lines: Preferred maximum number of lines, or None to draw a line for every row.
    """
    group_size = _choose_group_size(len(selection.rows), max_lines)
    rows = _group_rows(report, selection, marked, group_size)
    selection = replace(selection, rows=tuple(row for row, *_ in rows))
    labels, ratios = _label_rows(rows, marked, display)
    gutter = measure_cells(labels[0])
    columns = max(display.width - gutter - len(ratios[0]), 10)
    cells = _choose_kinds(_measure_shares(report, selection, columns * (1 + _has_halves(display))))
    kinds = sorted({*cells.ravel().tolist()} - {_OUTSIDE})
    brush = _Brush(display, kinds)
    lines: list[Line] = _make_title(report, selection, group_size, display)
    styles = ["bold" if rank.index in marked else "" for rank in selection.ranks]
    lines += [
        (Span(label, style), *brush.draw(row_cells), Span(ratio, style))
        for label, row_cells, ratio, style in zip(
            labels, cells.tolist(), ratios, styles, strict=True
        )
    ]
    lines.append((Span(" " * gutter + _draw_axis(selection.span_ns, columns), "dim"),))
    legend = [*map(brush.explain, kinds), *_explain_marks(report, selection, marked, display)]
    return lines + flow_entries(legend, display)


def _choose_group_size(n_rows: int, max_lines: int | None) -> int:
    """Return the number of consecutive rows that share a line of the timeline.

    The number is 1 if all rows fit into ``max_lines`` lines, if there are at most ``_GROUPS`` rows,
    or if ``max_lines`` is None. Otherwise the number is ``ceil(n_rows / _GROUPS)``.
    """
    if max_lines is None or n_rows <= max(_GROUPS, max_lines - _AROUND):
        return 1
    return -(-n_rows // _GROUPS)


def _label_rows(
    rows: Sequence[_Labeled], marked: Collection[int], display: Display
) -> tuple[list[str], list[str]]:
    """Return the texts before and after each row: its label and its bubble ratio.

    All labels are padded to the same width, as are all ratios. If the drawn rank of a row is in
    ``marked``, the label ends with a mark.
    """
    names = [display.translate(label) for _, label, _ in rows]
    name_width = max(map(measure_cells, names))
    labels = []
    for (row, *_), name in zip(rows, names, strict=True):
        mark = display.translate(MARK) if row.rank.index in marked else " "
        labels.append(name + " " * (name_width - measure_cells(name)) + mark)
    ratios = [format_percent(ratio) for _, _, ratio in rows]
    ratio_width = max(_RATIO, 1 + max(map(len, ratios)))
    return labels, [ratio.rjust(ratio_width) for ratio in ratios]


def _explain_marks(
    report: Report, selection: Selection, marked: Collection[int], display: Display
) -> list[Line]:
    """Return a list with the legend entry for the marked rows. Empty if no drawn row is marked."""
    ranks = [rank for rank in selection.ranks if rank.index in marked]
    if not ranks:
        return []
    names = [_name_marked_rank(report, rank, marked) for rank in ranks]
    sign = Span(display.translate(MARK), "bold")
    meaning = choose_marked_ranks(report).meaning
    return [(sign, Span(f" {list_first(names, 3)}: {meaning}"))]


def _name_marked_rank(report: Report, rank: Rank, marked: Collection[int]) -> str:
    """Return the name of a marked rank, for the legend.

    If the rank's stage has several replicas and all of them are marked, the stage is named instead.
    """
    if rank.stage is not None:
        replicas = {other.index for other in report.ranks if other.stage == rank.stage}
        if len(replicas) > 1 and replicas <= {*marked}:
            return f"stage {rank.stage}"
    if rank.global_rank is None:
        return name_rank_with_number(report, rank.index)
    return f"rank {rank.number}"


def _group_rows(
    report: Report, selection: Selection, marked: Collection[int], size: int
) -> list[_Labeled]:
    """Return one row per group of ``size`` consecutive rows, with its label and its ratio.

    The last group may be smaller. A group is represented by the row whose ratio differs most from
    the median ratio of all rows, but marked rows take precedence. The first row wins a tie. The
    label names the chosen stage or rank and the range of the group, for example "stage 5 (4-7)".

    Args:
        report: The report.
        selection: The rows of one iteration.
        marked: Indices of the ranks that the advice is about.
        size: Number of rows per group. With a size of 1, all rows are returned.
    """
    rows, labels = selection.rows, _make_labels(report, selection.rows)
    ratios = [ratio for ratio, _ in measure_row_ratios(report, selection)]
    if size == 1:
        return list(zip(rows, labels, ratios, strict=True))

    numbers = [ratio for ratio in ratios if ratio is not None]
    middle = median(numbers) if numbers else 0.0

    def measure_priority(row: int) -> tuple[bool, float]:
        distance = abs((ratios[row] or middle) - middle)
        return rows[row].rank.index in marked, distance

    groups: list[_Labeled] = []
    for first in range(0, len(rows), size):
        last = min(first + size, len(rows)) - 1
        drawn_row = max(range(first, last + 1), key=measure_priority)
        kind = "rank" if rows[first].rank.stage is None else "stage"
        span = f"{_get_row_number(rows[first])}-{_get_row_number(rows[last])}"
        label = f"{kind} {_get_row_number(rows[drawn_row])} ({span})"
        groups.append((rows[drawn_row], label, ratios[drawn_row]))
    return groups


def _get_row_number(row: RankRow) -> int:
    """Return a row's stage, or its rank number if the stage is unknown."""
    return row.rank.number if row.rank.stage is None else row.rank.stage


def _measure_shares(report: Report, selection: Selection, columns: int) -> Floats:
    """Return the share of each cell's time that each kind occupies, shape (rows, kinds, cells).

    The kinds are in the order of ``_KINDS``: compute phases, other iterations, unattributed
    compute, bubble, and time outside the window. If overlapping operations add up to more than the
    cell, their shares are scaled down, so the busy shares of a cell never exceed 1.

    Args:
        report: The report.
        selection: The rows of one iteration.
        columns: Number of cells per row.
    """
    n_rows = len(selection.rows)
    marks = pixels.join_marks(pixels.make_compute_marks(report, selection, columns))
    # Communication does not count as work. If nothing else runs, the time is bubble.
    by_kind = (marks.take(marks.kind == code) for code in _BUSY)
    busy = np.stack([pixels.measure_coverage(kind, n_rows, columns) for kind in by_kind], axis=1)
    occupied = np.maximum(busy.sum(axis=1), 1.0)
    busy /= occupied[:, np.newaxis]
    bubble = _measure_bubble_shares(selection, marks, columns)
    outside_window = 1.0 - busy.sum(axis=1) - bubble
    shares = np.concatenate((busy, np.stack((bubble, outside_window), axis=1)), axis=1)
    return np.asarray(np.maximum(np.round(shares, 9), 0.0))


def _measure_bubble_shares(selection: Selection, marks: pixels.Marks, columns: int) -> Floats:
    """Return the share of each cell that is bubble time, shape (rows, cells).

    Bubble is the time inside the rank's window during which no compute runs. The share is the part
    of the cell inside the window minus the part covered by marks, or 0 if the difference is
    negative.
    """
    (windows,) = selection.windows
    edges_ns = np.array([windows.get(rank.index, (0, 0)) for rank in selection.ranks])
    edges = np.clip((edges_ns - selection.start_ns) * (columns / selection.span_ns), 0, columns)
    before_start, before_end = np.clip(edges.T[:, :, np.newaxis] - np.arange(columns), 0.0, 1.0)
    low, high = edges[marks.row].T
    left, right = np.clip(marks.left, low, high), np.clip(marks.right, low, high)
    in_window = replace(marks, left=left, right=right)
    busy = pixels.measure_coverage(in_window, len(selection.rows), columns)
    bubble: Floats = np.maximum(before_end - before_start - busy, 0.0)
    return bubble


def _choose_kinds(shares: Floats) -> Ints:
    """Choose one kind for each cell, so that each kind gets its share of a row's cells.

    The algorithm is error diffusion from left to right. For each kind, a backlog accumulates the
    kind's shares of the cells so far, minus 1 for each cell that shows the kind. A cell shows the
    kind with the largest backlog among the kinds that occur in the cell. After each cell, the
    backlogs are clipped to the interval from -1 to 1. If each cell simply showed the kind with the
    largest share, frequent short operations of other kinds would be invisible.

    Args:
        shares: Share of each kind in each cell, shape (rows, kinds, cells).

    Returns:
        Code of the chosen kind (an element of ``_KINDS``), shape (rows, cells).
    """
    rows = np.arange(len(shares))
    backlog = np.zeros(shares.shape[:2])
    kinds = np.zeros((len(shares), shares.shape[2]), np.int64)
    for cell in range(shares.shape[2]):
        cell_shares = shares[:, :, cell]
        backlog += cell_shares
        chosen_kind = np.where(cell_shares > 0, np.round(backlog, 6), -np.inf).argmax(axis=1)
        backlog[rows, chosen_kind] -= 1
        np.clip(backlog, -1, 1, out=backlog)
        kinds[:, cell] = chosen_kind
    codes: Ints = np.array(_KINDS, np.int64)[kinds]
    return codes


def _make_title(report: Report, selection: Selection, size: int, display: Display) -> list[Line]:
    """Return the lines of the title: the iteration, its length and the meaning of a row.

    The last line ends with the heading of the ratio column.

    Args:
        report: The report.
        selection: The rows of one iteration.
        size: Number of stages or ranks represented by a row.
        display: The terminal.
    """
    (iteration,) = selection.iterations
    name, length = to_one_line(iteration.name, 30), _describe_length(report, selection, iteration)
    title = f"Iteration {name}, {length}: {_describe_rows(report, selection, size)}"
    measure_name = name_measure(report).idle
    room = display.width - len(measure_name) - 1
    *above, last = wrap_text(display.translate(title), room, hanging_indent=2)
    blank = " " * (display.width - measure_cells(last) - len(measure_name))
    return [
        *((Span(line, "bold"),) for line in above),
        (Span(last, "bold"), Span(blank + measure_name, "dim")),
    ]


def _describe_length(report: Report, selection: Selection, iteration: Iteration) -> str:
    """Return an iteration's length as text.

    The text gives the length of the primary ratio's window, or of the drawn time span if there is
    no window.
    """
    ratio = iteration.ratios.get(report.headline)
    if ratio is None or ratio.window_ns is None:
        return f"{selection.span_ns / 1e6:,.3f} ms drawn"
    return f"{ratio.window_ns / 1e6:,.3f} ms ({report.headline})"


def _describe_rows(report: Report, selection: Selection, size: int) -> str:
    """Return words that say what a row represents and which replica of a stage is drawn.

    Args:
        report: The report.
        selection: The rows of one iteration.
        size: Number of stages or ranks represented by a row.
    """
    rows = selection.rows
    replicas = max(len(row.replicas) for row in rows)
    stages = {row.rank.stage for row in rows}
    kind = "rank" if None in stages or len(stages) < len(rows) else "stage"
    if size > 1:
        return f"{size} {kind}s per row, the most unusual"
    if replicas == 1:
        return f"one row per {kind}"
    (drawn_pipeline, *others) = dict.fromkeys(row.rank.pipeline for row in rows)
    pipelines = {report.ranks[rank].pipeline for row in rows for rank in row.replicas}
    if drawn_pipeline is not None and not others and len(pipelines) > 1:
        return f"one row per {kind} (pipeline p{drawn_pipeline})"
    drawn_replica = "median" if any(row.spread for row in rows) else "first"
    if drawn_replica == "first" and any(row.rank.index != row.replicas[0] for row in rows):
        drawn_replica = "one"
    return f"one row per {kind} ({drawn_replica} of {format_count(replicas, 'rank')})"


def _make_labels(report: Report, rows: Sequence[RankRow]) -> list[str]:
    """Return each row's label: the stage, or the rank if the stage is unknown.

    If the row is a single rank and its stage has several ranks, the label contains the pipeline and
    the stage, as in pictures. If the pipeline is unknown or has several ranks of this stage, the
    label contains the rank and the stage.
    """
    names = rank_labels(report, [row.rank.index for row in rows], _LONGEST_LABEL)
    n_ranks = Counter(rank.stage for rank in report.ranks)
    n_replicas = Counter((rank.pipeline, rank.stage) for rank in report.ranks)
    labels = []
    for row, name in zip(rows, names, strict=True):
        rank = row.rank
        is_stage = len(row.replicas) > 1 or n_ranks[rank.stage] == 1
        if rank.stage is None:
            label = name.lstrip(": ")
        elif is_stage:
            label = f"stage {rank.stage}"
        elif rank.pipeline is not None and n_replicas[rank.pipeline, rank.stage] == 1:
            label = f"p{rank.pipeline} stage {rank.stage}"
        else:
            label = f"rank {rank.number} (stage {rank.stage})"
        labels.append(truncate_to_width(label, _LONGEST_LABEL))
    return labels


def _choose_style(kind: int) -> str:
    """Return the style of a cell kind in rich syntax, or "" for no style.

    Bubbles are dim. Compute phases have the colors of ``palette.TERMINAL``. Other iterations are
    dark gray, and unattributed compute is a reddish gray.
    """
    special_styles = {
        _OUTSIDE: "",
        _BUBBLE: "dim",
        pixels.OTHER_ITERATION: palette.mix(palette.UNATTRIBUTED, palette.BLACK, 0.4),
        pixels.UNATTRIBUTED_KIND: palette.mix(palette.UNATTRIBUTED, "#ff0000", 0.4),
    }
    return special_styles[kind] if kind in special_styles else palette.TERMINAL[Phase(kind)]


def _draw_axis(span_ns: int, columns: int) -> str:
    """Return a time axis as text, with a tick ``|`` before each label in ms.

    The last label shows the end of the axis, with its tick after the label. Labels that would
    overlap the last label are left out.

    Args:
        span_ns: Length of the axis in ns.
        columns: Width of the axis in characters.
    """
    span_ms = span_ns / 1e6
    step_ms = round_step(max(span_ms * _BETWEEN_TICKS / columns, 1e-9))
    digits = max(0, -floor(log10(step_ms) + 1e-9))
    end = f"{span_ms:,.{max(digits, 1)}f} ms|"
    cells = [" "] * columns
    cells[columns - len(end) :] = end
    for number in range(int(span_ms / step_ms) + 1):
        column = int(number * step_ms / span_ms * columns)
        label = f"|{number * step_ms:,.{digits}f}"
        if column + len(label) < columns - len(end):
            cells[column : column + len(label)] = label
    return "".join(cells)
