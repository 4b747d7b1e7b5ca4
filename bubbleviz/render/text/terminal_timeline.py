"""The timeline of one iteration in a terminal: a row a stage, drawn to scale with characters.

With colours a cell holds two halves; without, a shade a phase, and in ASCII a letter::

    stage 0  ████████▒▒██▒▒██▒▒██·····▒▒······▒▒   27.3 %
    stage 1  ··██████▒▒██▒▒██▒▒██▒▒···▒▒···▒▒···   27.3 %
             |0        |10       |20        33 ms
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import counted, one_line, percent
from bubbleviz.render.palette import (
    BACKWARD_INPUT,
    FORWARD,
    mix,
    paint,
)
from bubbleviz.render.palette import (
    UNATTRIBUTED as UNATTRIBUTED_COLOUR,
)
from bubbleviz.render.rows import RankRow
from bubbleviz.render.selection import Selection
from bubbleviz.render.text.display import Display, Line, Span, cell_width, fitting, flowing
from bubbleviz.render.text.ranks import rank_labels
from bubbleviz.render.text.timeline_cells import (
    BUBBLE,
    OTHER_ITERATION,
    OUTSIDE,
    UNATTRIBUTED,
    CellRow,
    TimelineCells,
    cells_of,
    kind_label,
    phases_shown,
)
from bubbleviz.report.measure import idle_of
from bubbleviz.report.report import Report

#: Characters of a row's label, and of the ratio behind it.
_LONGEST_LABEL, _RATIO = 18, 8
#: Columns between two labels of the axis, at least.
_BETWEEN_TICKS = 9
_SHADES = {
    Phase.F: "█",
    Phase.B: "▓",
    Phase.W: "░",
    Phase.BW: "▒",
    Phase.R: "▚",
    Phase.FB: "▞",
    Phase.OPTIMIZER: "▄",
    OTHER_ITERATION: "-",
    UNATTRIBUTED: "?",
    BUBBLE: "·",
    OUTSIDE: " ",
}
_LETTERS = {
    Phase.F: "F",
    Phase.B: "B",
    Phase.W: "W",
    Phase.BW: "b",
    Phase.R: "R",
    Phase.FB: "X",
    Phase.OPTIMIZER: "O",
    OTHER_ITERATION: "-",
    UNATTRIBUTED: "?",
    BUBBLE: ".",
    OUTSIDE: " ",
}


def terminal_timeline(
    report: Report, selection: Selection, display: Display, most_rows: int
) -> list[Line]:
    """Return the timeline of one iteration, its legend and its axis.

    Args:
        report: any report.
        selection: the rows of one iteration.
        display: where it is shown.
        most_rows: rows, at most; two at least.
    """
    named = map(display.shown, _labels(report, selection.rows))
    labels = dict(zip((row.rank.index for row in selection.rows), named, strict=True))
    gutter = max(map(cell_width, labels.values())) + 1
    columns = max(display.width - gutter - _RATIO, 10)
    halves = display.colour and display.unicode
    cells = cells_of(report, selection, max(most_rows, 2), columns * (1 + halves))
    kinds = phases_shown(cells)
    glyphs = _glyphs(kinds, display)
    lines: list[Line] = [_title(cells, idle_of(report), display)]
    for row in cells.rows:
        label = labels[row.row.rank.index]
        drawn = _halves(row, glyphs) if halves else _characters(row, glyphs, display)
        lines.append((Span(label + " " * (gutter - cell_width(label))), *drawn, _share(row)))
    lines.append((Span(" " * gutter + _axis(cells.span_ns, columns), "dim"),))
    legend: list[Line] = [
        (Span(glyphs[kind], _style(kind, display)), Span(f" {kind_label(kind)}")) for kind in kinds
    ]
    if cells.row_count > len(cells.rows):
        omitted = cells.row_count - len(cells.rows)
        legend.append((Span(f"({omitted:,} of {cells.row_count:,} rows left out)", "dim"),))
    return lines + flowing(legend, display)


def _title(cells: TimelineCells, share: str, display: Display) -> Line:
    """Return which iteration is drawn, what a row is, and what the numbers behind rows are of."""
    most = max(len(row.row.replicas) for row in cells.rows)
    what = "rank" if cells.rows[0].row.rank.stage is None else "stage"
    which = "median" if any(row.row.spread for row in cells.rows) else "first"
    of = f", the {which} of its {counted(most, 'rank')}" if most > 1 else ""
    title = (
        f"Iteration {one_line(cells.iteration.name, 30)}, {cells.span_ns / 1e6:,.3f} ms: a row a "
        f"{what}{of}"
    )
    room = display.width - len(share) - 1
    title = display.shown(fitting(display.shown(title), room))
    blank = " " * (display.width - cell_width(title) - len(share))
    return Span(title, "bold"), Span(blank + share, "dim")


def _labels(report: Report, rows: Sequence[RankRow]) -> list[str]:
    """Return the label of each row: its stage, or its rank where that is unknown."""
    names = rank_labels(report, [row.rank.index for row in rows], _LONGEST_LABEL)
    twins = Counter(rank.stage for rank in report.ranks)
    labels = []
    for row, name in zip(rows, names, strict=True):
        rank = row.rank
        alone = len(row.replicas) > 1 or twins[rank.stage] == 1
        known = f"stage {rank.stage}" if alone else f"rank {rank.index} (stage {rank.stage})"
        label = name.lstrip(": ") if rank.stage is None else known
        labels.append(fitting(label, _LONGEST_LABEL))
    return labels


def _share(row: CellRow) -> Span:
    text = "-" if row.ratio is None else percent(row.ratio)
    return Span(f"{text:>{_RATIO}}")


def _glyphs(kinds: Sequence[int], display: Display) -> Mapping[int, str]:
    """Return the character of each kind; where no B is shown, BW is the backward."""
    if display.unicode:
        if not display.colour:
            return _SHADES
        return dict.fromkeys(_SHADES, "█") | {BUBBLE: "·", OUTSIDE: " "}
    return _LETTERS if Phase.B in kinds else _LETTERS | {Phase.BW: "B"}


def _style(kind: int, display: Display) -> str:
    return _colour(kind) if display.colour else ""


def _colour(kind: int) -> str:
    """Return the colour of a kind in words of rich; empty where it has none."""
    if kind == OUTSIDE:
        return ""
    if kind == BUBBLE:
        return "dim"
    if kind == OTHER_ITERATION:
        return UNATTRIBUTED_COLOUR
    if kind == UNATTRIBUTED:
        return mix(UNATTRIBUTED_COLOUR, "#ff0000", 0.4)
    if kind == Phase.FB:
        return mix(FORWARD, BACKWARD_INPUT, 0.5)
    return paint(Phase(kind)).main


def _characters(row: CellRow, glyphs: Mapping[int, str], display: Display) -> list[Span]:
    """Return a row with a character a cell."""
    return [
        Span(glyphs[kind] * sum(1 for _ in run), _style(kind, display))
        for kind, run in groupby(row.kinds.tolist())
    ]


def _halves(row: CellRow, glyphs: Mapping[int, str]) -> list[Span]:
    """Return a row with a character for two cells, the left and the right half."""
    kinds = row.kinds.tolist()
    pairs = zip(kinds[::2], kinds[1::2], strict=True)
    return [
        Span(_half(*pair, glyphs) * sum(1 for _ in run), _half_style(*pair))
        for pair, run in groupby(pairs)
    ]


def _half(left: int, right: int, glyphs: Mapping[int, str]) -> str:
    blank = (BUBBLE, OUTSIDE)
    if left == right:
        return glyphs[left]
    if left in blank and right in blank:
        return glyphs[OUTSIDE]
    return "▐" if left in blank else "▌"


def _half_style(left: int, right: int) -> str:
    blank = (BUBBLE, OUTSIDE)
    if left == right or right in blank:
        return _colour(left)
    if left in blank:
        return _colour(right)
    return f"{_colour(left)} on {_colour(right)}"


def _axis(span_ns: int, columns: int) -> str:
    """Return the labels of an axis in ms, each behind its tick; the last one is its end."""
    span_ms = span_ns / 1e6
    step_ms = _step(span_ms * _BETWEEN_TICKS / columns)
    digits = max(0, -_exponent(step_ms))
    end = f"{span_ms:,.{max(digits, 1)}f} ms|"
    cells = [" "] * columns
    cells[columns - len(end) :] = end
    for number in range(int(span_ms / step_ms) + 1):
        at = int(number * step_ms / span_ms * columns)
        label = f"|{number * step_ms:,.{digits}f}"
        if at + len(label) < columns - len(end):
            cells[at : at + len(label)] = label
    return "".join(cells)


def _exponent(step_ms: float) -> int:
    """Return the power of ten of a step, which is 1, 2 or 5 of them."""
    exponent = 0
    while step_ms >= 10:
        step_ms, exponent = step_ms / 10, exponent + 1
    while step_ms < 1 - 1e-9:
        step_ms, exponent = step_ms * 10, exponent - 1
    return exponent


def _step(least_ms: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20 … (or 0.5, 0.2 …) that is no less."""
    exponent = _exponent(max(least_ms, 1e-9))
    power = 10.0**exponent
    return next(times * power for times in (1, 2, 5, 10) if times * power >= least_ms * (1 - 1e-9))
