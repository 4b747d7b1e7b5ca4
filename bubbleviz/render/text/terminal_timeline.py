"""The timeline of one iteration in a terminal: one row per stage, drawn to scale with characters.

With colours a cell holds two halves; without, a shade a phase, and in ASCII a letter::

    stage 0 ████████▒▒██▒▒██▒▒██·····▒▒······▒▒   27.3 %
    stage 1►··██████▒▒██▒▒██▒▒██▒▒···▒▒···▒▒···   27.3 %
            |0        |10       |20        33 ms
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import floor, log10
from statistics import median
from typing import TypeAlias

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import indices_of
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.operations import Rank
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.texts import counted, listed, one_line, percent
from bubbleviz.render import marks as pixels
from bubbleviz.render import palette
from bubbleviz.render.document import Line, Span, cell_width, fitting, round_step, wrapped
from bubbleviz.render.rows import (
    RankRow,
    Selection,
    advised_pipeline,
    chosen_ranks,
    row_ratios,
    select,
)
from bubbleviz.render.text.ranks import rank_labels
from bubbleviz.render.text.terminal import Display, flowing
from bubbleviz.report.labels import MARK, numbered_rank
from bubbleviz.report.measure import name_measure
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: What a cell holds beside the kinds of marks, whose codes are smaller.
_BUBBLE, _OUTSIDE = 20, 21
_BUSY = (*map(int, COMPUTE), pixels.OTHER_ITERATION, pixels.UNATTRIBUTED_KIND)
_KINDS = (*_BUSY, _BUBBLE, _OUTSIDE)
#: A shade of each kind, and where there is ASCII alone a letter.
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
#: What a legend calls what is no phase.
_CALLED = {
    pixels.OTHER_ITERATION: "other iteration",
    pixels.UNATTRIBUTED_KIND: "unattributed",
    _BUBBLE: "bubble",
}
#: Characters of a row's label, and of the ratio behind it.
_LONGEST_LABEL, _RATIO = 18, 8
#: Up to so many rows are all drawn; more are grouped into at most so many, where they do not fit.
_GROUPS = 16
#: Lines of a timeline beside its rows: title, axis and legend.
_AROUND = 3
#: Columns between two labels of the axis, at least.
_BETWEEN_TICKS = 9

#: A row that is drawn, its label, and the ratio of the rank that is drawn, or None if unknown.
_Labelled: TypeAlias = "tuple[RankRow, str, float | None]"


def timeline_selection(
    report: Report, view: View, iteration: Iteration, marked: Collection[int] = ()
) -> Selection | None:
    """Return the rows of an iteration, one per stage where stages are known; None without any.

    Args:
        report: any report.
        view: the ranks, and what a row is.
        iteration: which is drawn.
        marked: ranks whose pipeline is drawn; see :func:`advised_pipeline`.
    """
    staged = any(rank.stage is not None for rank in chosen_ranks(report, view))
    rows = view.rows or ("stage" if staged else "rank")
    at_work = set(indices_of(iteration.ranks))
    selection = select(report, replace(view, iterations=(iteration.index,), rows=rows))
    if selection is None:
        return None
    shown = [row for row in selection.rows if {*row.replicas} & at_work]
    rows_drawn = advised_pipeline(report, shown, marked)
    return replace(selection, rows=rows_drawn) if rows_drawn else None


def terminal_timeline(
    report: Report,
    selection: Selection,
    display: Display,
    marked: Collection[int] = (),
    *,
    room: int | None = None,
) -> list[Line]:
    """Return the timeline of one iteration, its axis and its legend.

    Args:
        report: any report.
        selection: the rows of one iteration.
        display: where it is shown.
        marked: ranks whose rows are marked, as those that advice is about.
        room: lines that it may take; None where each row has its own, however many they are.
    """
    number = len(selection.rows)
    fits = room is None or number <= max(_GROUPS, room - _AROUND)
    size = 1 if fits else -(-number // _GROUPS)
    rows = _grouped(report, selection, marked, size)
    selection = replace(selection, rows=tuple(row for row, *_ in rows))
    halves = display.colour and display.unicode
    labels = [display.shown(label) for _, label, _ in rows]
    gutter = max(map(cell_width, labels)) + 1
    ratios = [percent(ratio) for _, _, ratio in rows]
    ratio_width = max(_RATIO, 1 + max(map(len, ratios), default=0))
    columns = max(display.width - gutter - ratio_width, 10)
    cells = _diffused(_shares(report, selection, columns * (1 + halves)))
    kinds = sorted({*cells.ravel().tolist()} - {_OUTSIDE})
    glyphs = {kind: signs[not display.unicode] for kind, signs in _SIGNS.items()}
    if halves:
        glyphs |= {kind: "█" for kind in glyphs if kind not in {_BUBBLE, _OUTSIDE}}
    elif not display.unicode and Phase.B not in kinds:
        # Where no B is shown, BW is the backward.
        glyphs[Phase.BW] = "B"
    styles = {kind: _colour(kind) if display.colour else "" for kind in _SIGNS}
    lines: list[Line] = _title(report, selection, size, display)
    for (row, *_), label, ratio, drawn in zip(rows, labels, ratios, cells.tolist(), strict=True):
        if halves:
            spans = _halves(zip(drawn[::2], drawn[1::2], strict=True), glyphs, styles)
        else:
            spans = _characters(drawn, glyphs, styles)
        is_marked = row.rank.index in marked
        head = label + " " * (gutter - 1 - cell_width(label))
        head += display.shown(MARK) if is_marked else " "
        style = "bold" if is_marked else ""
        lines.append((Span(head, style), *spans, Span(f"{ratio:>{ratio_width}}", style)))
    lines.append((Span(" " * gutter + _axis(selection.span_ns, columns), "dim"),))
    legend: list[Line] = [
        (Span(glyphs[kind], styles[kind]), Span(f" {_CALLED.get(kind) or Phase(kind).label}"))
        for kind in kinds
    ]
    of_marked = [
        _marked_name(report, row.rank, marked) for row, *_ in rows if row.rank.index in marked
    ]
    if of_marked:
        sign = display.shown(MARK)
        legend.append((Span(sign, "bold"), Span(f" {listed(of_marked, 3)}: see the advice")))
    return lines + flowing(legend, display)


def _marked_name(report: Report, rank: Rank, marked: Collection[int]) -> str:
    """Return what the advice calls a marked row: its stage, if that is marked with all copies."""
    copies = {own.index for own in report.ranks if own.stage == rank.stage is not None}
    whole = len(copies) > 1 and copies <= {*marked}
    if whole:
        return f"stage {rank.stage}"
    known = rank.global_rank is not None
    return f"rank {rank.number}" if known else numbered_rank(report, rank.index)


# What each cell shows, row by row.


def _grouped(
    report: Report, selection: Selection, marked: Collection[int], size: int
) -> list[_Labelled]:
    """Return the rows that are drawn, with their labels and ratios.

    A row that stands for several stages, or ranks, draws the marked one, or else the one whose
    ratio is furthest from the median of all rows. Its label names the one that is drawn.
    """
    rows, labels = selection.rows, _labels(report, selection.rows)
    ratios = [ratio for ratio, _ in row_ratios(report, selection)]
    if size == 1:
        return list(zip(rows, labels, ratios, strict=True))

    known = [ratio for ratio in ratios if ratio is not None]
    middle = median(known) if known else 0.0
    groups: list[_Labelled] = []
    for first in range(0, len(rows), size):
        group = range(first, min(first + size, len(rows)))
        drawn = max(
            group,
            key=lambda row: (rows[row].rank.index in marked, abs((ratios[row] or middle) - middle)),
        )
        numbers = [
            rank.number if rank.stage is None else rank.stage
            for rank in (rows[row].rank for row in (drawn, group[0], group[-1]))
        ]
        kind = "rank" if rows[first].rank.stage is None else "stage"
        label = f"{kind} {numbers[0]} ({numbers[1]}-{numbers[2]})"
        groups.append((rows[drawn], label, ratios[drawn]))
    return groups


def _shares(report: Report, selection: Selection, columns: int) -> Floats:
    """Return how much of each cell each of the kinds takes, shape (rows, kinds, cells)."""
    marks, rows = (
        pixels.marks_in(pixels.compute_marks(report, selection, columns)),
        len(selection.rows),
    )
    # Communication is no work: where nothing else runs, it is bubble.
    by_kind = (marks.take(marks.kind == code) for code in _BUSY)
    busy = np.stack([pixels.coverage(own, rows, columns) for own in by_kind], axis=1)
    occupied = np.maximum(busy.sum(axis=1), 1.0)
    busy /= occupied[:, np.newaxis]
    (windows,) = selection.windows
    edges_ns = np.array([windows.get(rank.index, (0, 0)) for rank in selection.ranks])
    edges = np.clip((edges_ns - selection.start_ns) * (columns / selection.span_ns), 0, columns)
    cells = np.clip(edges[:, :, np.newaxis] - np.arange(columns), 0.0, 1.0)
    low, high = edges[marks.row].T
    own = replace(marks, left=np.clip(marks.left, low, high), right=np.clip(marks.right, low, high))
    bubble = np.maximum(cells[:, 1] - cells[:, 0] - pixels.coverage(own, rows, columns), 0.0)
    outside = 1.0 - busy.sum(axis=1) - bubble
    shares = np.concatenate((busy, np.stack((bubble, outside), axis=1)), axis=1)
    return np.asarray(np.maximum(np.round(shares, 9), 0.0))


def _diffused(shares: Floats) -> Ints:
    """Return one kind for each cell, so that each row shows all kinds as long as they took.

    A cell that holds one kind shows it. Of several it shows the one that is most behind what it
    took so far in this row: where operations are shorter than cells, the largest one would hide the
    others all along.

    Args:
        shares: shape (rows, kinds, cells).
    """
    rows = np.arange(len(shares))
    behind = np.zeros(shares.shape[:2])
    kinds = np.zeros((len(shares), shares.shape[2]), np.int64)
    for cell in range(shares.shape[2]):
        share = shares[:, :, cell]
        behind += share
        most = np.where(share > 0, np.round(behind, 6), -np.inf).argmax(axis=1)
        behind[rows, most] -= 1
        np.clip(behind, -1, 1, out=behind)
        kinds[:, cell] = most
    codes: Ints = np.array(_KINDS, np.int64)[kinds]
    return codes


def _title(report: Report, selection: Selection, size: int, display: Display) -> list[Line]:
    """Return which iteration is drawn, its length, what a row is, and the title of the ratios.

    A narrow display has several lines, and the title of the ratios in the last one.

    Args:
        report: Any report.
        selection: The rows of one iteration.
        size: Number of stages, or ranks, that a row stands for.
        display: Where the title is shown.
    """
    (iteration,) = selection.iterations
    name, length = one_line(iteration.name, 30), _length(report, selection, iteration)
    title = f"Iteration {name}, {length}: {_row_words(selection, size)}"
    share = name_measure(report).idle
    room = display.width - len(share) - 1
    *above, last = wrapped(display.shown(title), room, hanging=2)
    blank = " " * (display.width - cell_width(last) - len(share))
    return [
        *((Span(line, "bold"),) for line in above),
        (Span(last, "bold"), Span(blank + share, "dim")),
    ]


def _length(report: Report, selection: Selection, iteration: Iteration) -> str:
    """Return the length of the window of the primary ratio, or else of what is drawn."""
    ratio = iteration.ratios.get(report.headline)
    if ratio is None or ratio.window_ns is None:
        return f"{selection.span_ns / 1e6:,.3f} ms drawn"
    return f"{ratio.window_ns / 1e6:,.3f} ms ({report.headline})"


def _row_words(selection: Selection, size: int) -> str:
    """Return what a row stands for, and which of its replicas is drawn."""
    rows = selection.rows
    replicas = max(len(row.replicas) for row in rows)
    kind = "rank" if rows[0].rank.stage is None else "stage"
    if size > 1:
        return f"{size} {kind}s per row, the most unusual"
    if replicas == 1:
        return f"one row per {kind}"
    (pipeline, *others) = dict.fromkeys(row.rank.pipeline for row in rows)
    if pipeline and not others:
        return f"one row per {kind} (pipeline p{pipeline})"
    which = "median" if any(row.spread for row in rows) else "first"
    if which == "first" and any(row.rank.index != row.replicas[0] for row in rows):
        which = "one"
    return f"one row per {kind} ({which} of {counted(replicas, 'rank')})"


def _labels(report: Report, rows: Sequence[RankRow]) -> list[str]:
    """Return the label of each row: its stage, or its rank where that is unknown."""
    names = rank_labels(report, [row.rank.index for row in rows], _LONGEST_LABEL)
    twins = Counter(rank.stage for rank in report.ranks)
    labels = []
    for row, name in zip(rows, names, strict=True):
        rank = row.rank
        alone = len(row.replicas) > 1 or twins[rank.stage] == 1
        known = f"stage {rank.stage}" if alone else f"rank {rank.number} (stage {rank.stage})"
        label = name.lstrip(": ") if rank.stage is None else known
        labels.append(fitting(label, _LONGEST_LABEL))
    return labels


def _colour(kind: int) -> str:
    """Return the colour of a kind in words of rich; empty where it has none."""
    others = {
        _OUTSIDE: "",
        _BUBBLE: "dim",
        pixels.OTHER_ITERATION: palette.mix(palette.UNATTRIBUTED, palette.BLACK, 0.4),
        pixels.UNATTRIBUTED_KIND: palette.mix(palette.UNATTRIBUTED, "#ff0000", 0.4),
    }
    return others[kind] if kind in others else palette.TERMINAL[Phase(kind)]


def _characters(
    kinds: Sequence[int], glyphs: Mapping[int, str], styles: Mapping[int, str]
) -> list[Span]:
    """Return a row with a character a cell."""
    return [Span(glyphs[kind] * sum(1 for _ in run), styles[kind]) for kind, run in groupby(kinds)]


def _halves(
    pairs: Iterable[tuple[int, int]],
    glyphs: Mapping[int, str],
    styles: Mapping[int, str],
) -> list[Span]:
    """Return a row with a character for two cells, its left and its right half."""
    blank, spans = (_BUBBLE, _OUTSIDE), []
    for (first, second), run in groupby(pairs):
        if first == second:
            glyph, style = glyphs[first], styles[first]
        elif second in blank:
            glyph, style = glyphs[_OUTSIDE] if first in blank else "▌", styles[first]
        elif first in blank:
            glyph, style = "▐", styles[second]
        else:
            glyph, style = "▌", f"{styles[first]} on {styles[second]}"
        spans.append(Span(glyph * sum(1 for _ in run), style))
    return spans


def _axis(span_ns: int, columns: int) -> str:
    """Return the labels of an axis in ms, each behind its tick; the last one is its end."""
    span_ms = span_ns / 1e6
    step_ms = round_step(max(span_ms * _BETWEEN_TICKS / columns, 1e-9))
    digits = max(0, -floor(log10(step_ms) + 1e-9))
    end = f"{span_ms:,.{max(digits, 1)}f} ms|"
    cells = [" "] * columns
    cells[columns - len(end) :] = end
    for number in range(int(span_ms / step_ms) + 1):
        at = int(number * step_ms / span_ms * columns)
        label = f"|{number * step_ms:,.{digits}f}"
        if at + len(label) < columns - len(end):
            cells[at : at + len(label)] = label
    return "".join(cells)


# A stacked bar in a terminal: the parts of a whole beside each other, and their legend.


#: Luminance of colours that are too near to white, or to black.
_PALE, _DARK = 0.75, 0.07
#: Of parts in order: neighbours differ without colours, too, and where these are few.
_BAR_SHADES = "█▒░▓▚▄▞▀▐▌"


def stacked_bar(parts: Sequence[tuple[str, float, str, str]], display: Display) -> list[Line]:
    """Return the bar and its legend, without parts that the legend would print as nothing.

    A part is its name, its share, how the legend prints that, and a colour as ``#397af2``.
    """
    parts = [part for part in parts if any(digit in part[2] for digit in "123456789")]
    if not parts:
        return []
    glyphs: list[str] = []
    for number, (name, *_) in enumerate(parts):
        letters = (letter for letter in name.upper() if letter.isascii() and letter.isalpha())
        if not display.unicode:
            glyphs.append(next((letter for letter in letters if letter not in glyphs), "#"))
        else:
            glyphs.append(_BAR_SHADES[number % len(_BAR_SHADES)])
    colours = [legible(colour) if display.colour else "" for *_, colour in parts]
    upto = np.cumsum([0.0, *(share for _, share, *_ in parts)])
    lengths = np.diff(np.round(upto / upto[-1] * display.text_width)).astype(np.int64)
    # Each part has a cell at least.
    lengths[lengths.argmax()] -= np.count_nonzero(lengths == 0)
    drawn = zip(glyphs, colours, np.maximum(lengths, 1).tolist(), strict=True)
    bar = tuple(Span(glyph * length, colour) for glyph, colour, length in drawn)
    legend = [
        (Span(glyph, colour), Span(f" {name} {shown}"))
        for (name, _, shown, _), glyph, colour in zip(parts, glyphs, colours, strict=True)
    ]
    return [bar, *flowing(legend, display)]


def legible(colour: str) -> str:
    """Return a colour that is seen on a light terminal and on a dark one."""
    if palette.luminance(colour) > _PALE:
        return palette.mix(colour, palette.BLACK, 0.14)
    return palette.mix(colour, palette.WHITE, 0.2) if palette.luminance(colour) < _DARK else colour
