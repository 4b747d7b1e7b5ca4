"""The boxes on the rows of a picture: operations, their numbers, and what has no device time.

A row from back to front: merged marks (dotted below), operations of other iterations (paler),
operations, and in its lower half what runs while another operation does; then the numbers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import drawsvg
import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phases import COMMUNICATION as COMMUNICATION_PHASES
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.model.texts import one_line
from bubbleviz.render.picture.merging import Merged, runs, silhouette, split
from bubbleviz.render.picture.page import Page, box, px
from bubbleviz.render.picture.palette import (
    COMMUNICATION,
    LIGHT,
    MAX_SHADES,
    UNATTRIBUTED,
    WHITE,
    Paint,
    number_colour,
    paint,
    shade_of,
)
from bubbleviz.render.picture.scene import UNATTRIBUTED as UNATTRIBUTED_KIND
from bubbleviz.render.picture.scene import (
    Marks,
    Selection,
    communication_marks,
    compute_marks,
    overlapping,
)
from bubbleviz.report.report import Report

#: Up to so many marks, each has a tooltip of its own.
MOST_TOOLTIPS = 4_000
#: Between a row and its communication lane, px.
LANE_GAP = 1.5
#: The dotted line below what is merged: its distance, width and pattern, px.
DOTS = {"stroke": LIGHT.quiet, "stroke_width": 0.7, "stroke_dasharray": "1 1", "class_": "bv-rule"}
DOTS_BELOW = 0.8
#: Gaps of so many px in it are bridged.
DOTS_BRIDGE = 3
#: So many operations without device time are named on each row.
NAMED = 8

# (typical width of a mark at least, width of its frame), px
_FRAMES = ((6.0, 0.7), (3.0, 0.4), (1.4, 0.2))


@dataclass(frozen=True)
class Numbers:
    """How microbatch numbers are written: alike for all operations of a phase."""

    size: float
    upright: bool

    def fits(self, text: str, width: float, height: float) -> bool:
        """Return whether ``text`` fits into a box."""
        along, across = 0.6 * self.size * len(text), 0.8 * self.size
        if self.upright:
            return along + 1.5 <= width and across <= 0.84 * height
        return across + 1.5 <= width and along <= 0.84 * height


def number_style(boxes: list[tuple[str, float]], height: float) -> Numbers | None:
    """Return the largest way to write that suits most boxes, upright before sideways.

    Args:
        boxes: text and width of each.
        height: of all of them.
    """
    if not boxes or height < 9:
        return None
    largest = min(11.0, 0.56 * height)
    best, best_share = None, 0.2
    for upright, least in ((True, 7.5), (False, 7.5), (True, 6.0), (False, 5.5)):
        for size in np.arange(largest, least - 0.1, -0.5).round(1).tolist():
            style = Numbers(size, upright)
            share = sum(style.fits(text, width, height) for text, width in boxes) / len(boxes)
            if share >= 0.9:
                return style
            if share > best_share:
                best, best_share = style, share
    return best


class Boxes:
    """The boxes of one selection of a report, on rows of one height.

    Attributes:
        chunks: the model chunks that have work on the rows, ascending.
        shades: number of shades that tell them apart.
        kinds: phases (and unattributed compute) that are drawn.
        merged: what is too narrow to be drawn alone.
        others: whether operations of other iterations are drawn.
        cut: whether one was cut by the end of the capture.
        spanless: by row, the number of the drawn iterations' operations without device time.
        communicates: whether communication is drawn.
    """

    def __init__(
        self, page: Page, report: Report, selection: Selection, width: float, height: float
    ) -> None:
        self._page = page
        self._operations = report.operations
        self._names = report.operations.names
        self._selection = selection
        self._width = width
        self._height = height
        rows = len(selection.ranks)
        marks, merged = split(compute_marks(report, selection, width), rows, width)
        self._marks, self.merged = marks, merged
        self.chunks = self._chunks()
        self.shades = min(len(self.chunks), MAX_SHADES)
        self.kinds = set(marks.kind.tolist()) | {kind for kind, _ in merged.kinds}
        self.others = bool(marks.other.any()) or any(other for _, other in merged.kinds)
        cut = np.flatnonzero(report.operations.cut == 1)
        self._cut = np.isin(marks.operation, cut)
        self.cut = bool(self._cut.any())
        self.spanless = self._spanless()
        self._inside, self._holds = overlapping(marks)
        self._labels = self._microbatches()
        lengths = marks.right - marks.left
        texts: dict[int, list[tuple[str, float]]] = defaultdict(list)
        for index, text in self._labels.items():
            texts[int(marks.kind[index])].append((text, float(lengths[index])))
        self._numbers = {kind: number_style(found, height) for kind, found in texts.items()}
        typical = float(np.percentile(lengths, 30)) if len(lengths) else 0.0
        self._frame = next((frame for least, frame in _FRAMES if typical >= least), 0.0)
        self._lane: tuple[Marks, Merged, float] | None = None
        self.communicates = False

    def add_lane(self, report: Report, width: float, height: float) -> None:
        """Draw communication as well, on a lane of this height below every row."""
        rows = len(self._selection.ranks)
        marks = communication_marks(report, self._selection, width)
        self._lane = (*split(marks, rows, width), height)
        self.communicates = any(len(found) for found in (self._lane[0], self._lane[1].kinds))

    @property
    def merged_words(self) -> str:
        """What is merged, those on the communication lane included; empty for nothing."""
        lane = self._lane[1].operations if self._lane else 0
        return _counted(self.merged.operations + lane, self.merged.unattributed)

    @property
    def merged_colours(self) -> list[str]:
        """Two colours that stand for what is merged."""
        kinds = list(dict.fromkeys(kind for kind, _ in self.merged.kinds)) or [Phase.COLLECTIVE]
        return [self._paint(kind, NONE).main for kind in (kinds[0], kinds[1 % len(kinds)])]

    @property
    def narrower(self) -> float:
        """What is merged is narrower than this, px."""
        return max(self.merged.narrower, self._lane[1].narrower if self._lane else 0.0)

    def draw(self, row: int, left: float, top: float) -> None:
        """Draw one row with its upper left corner there."""
        group = drawsvg.Group(transform=f"translate({px(left)} {px(top)})")
        self._draw_merged(group, row)
        first, last = np.searchsorted(self._marks.row, (row, row + 1)).tolist()
        self._draw_marks(group, range(first, last))
        self._draw_numbers(group, range(first, last))
        self._draw_spanless(group, row)
        self._draw_lane(group, row)
        if group.children:
            self._page.elements.append(group)

    # What is there

    def _chunks(self) -> list[int]:
        operations = self._operations
        ranks = [rank.index for rank in self._selection.ranks]
        shown = np.isin(operations.rank, ranks) & np.isin(operations.phase, WORK)
        found = np.union1d(operations.chunk[shown], operations.second_chunk[shown])
        return [chunk for chunk in found.tolist() if chunk != NONE]

    def _microbatches(self) -> dict[int, str]:
        """Return by mark the number of its operation, for the widest mark of each."""
        marks, operations = self._marks, self._operations
        length = marks.right - marks.left
        wide = np.flatnonzero((length >= 5) & np.isin(marks.kind, WORK))
        wide = wide[np.argsort(length[wide], kind="stable")]
        widest = dict(zip(marks.operation[wide].tolist(), wide.tolist(), strict=True))
        numbers = {}
        for operation, index in widest.items():
            first = int(operations.microbatch[operation])
            second = int(operations.second_microbatch[operation])
            if first != NONE:
                numbers[index] = f"{first};{second}" if second != NONE else str(first)
        return numbers

    def _spanless(self) -> dict[int, int]:
        """Return the number of operations without device time by row, and keep the first ones."""
        operations, rows = self._operations, self._selection.row_of_rank
        lacking = np.isin(operations.phase, COMPUTE) & (operations.has_span == 0)
        lacking &= self._selection.drawn(operations.iteration) & (operations.rank < len(rows))
        found = np.flatnonzero(lacking)
        row = rows[operations.rank[found]]
        found, row = found[row != NONE], row[row != NONE]
        counts = {n: count for n, count in enumerate(np.bincount(row).tolist()) if count}
        self._named = {n: found[row == n][:NAMED].tolist() for n in counts}
        return counts

    # Words and colours

    def _words(self, operation: int) -> str:
        """Return phase, microbatch and, of several, chunk."""
        operations = self._operations

        def pair(first: int, second: int) -> str:
            return f"{first};{second}" if second != NONE else str(first)

        words = [Phase(int(operations.phase[operation])).label]
        microbatch = int(operations.microbatch[operation])
        chunk = int(operations.chunk[operation])
        if microbatch != NONE:
            words.append(pair(microbatch, int(operations.second_microbatch[operation])))
        if chunk != NONE and self.shades > 1:
            words.append(f"chunk {pair(chunk, int(operations.second_chunk[operation]))}")
        return " ".join(words)

    def _tooltip(self, operation: int) -> str:
        operations = self._operations
        start, end = int(operations.start_ns[operation]), int(operations.end_ns[operation])
        name_id = int(operations.name_id[operation])
        name = one_line(self._names[name_id], 80) if name_id != NONE else ""
        named = f" ({name})" if name else ""
        cut = ", cut" if operations.cut[operation] else ""
        since, length = (start - self._selection.start_ns) / 1e6, (end - start) / 1e6
        return f"{self._words(operation)}{named}: at {since:.3f} ms for {length:.3f} ms{cut}"

    def _paint(self, kind: int, operation: int) -> Paint:
        """Return the paint of a mark; that of its phase alone where it has no operation."""
        if kind in COMMUNICATION_PHASES:
            return Paint("communication", ((1.0, COMMUNICATION),), number_colour(COMMUNICATION))
        if kind == UNATTRIBUTED_KIND:
            return Paint("unattributed", ((1.0, UNATTRIBUTED),), number_colour(UNATTRIBUTED))
        if operation == NONE:
            return paint(Phase(kind))
        operations = self._operations
        second = int(operations.second_chunk[operation]) if kind == Phase.FB else NONE
        shade = self._shade(int(operations.chunk[operation]))
        return paint(Phase(kind), shade, self._shade(second), self.shades)

    def _shade(self, chunk: int) -> int:
        if chunk == NONE or chunk not in self.chunks:
            return -1
        return shade_of(self.chunks.index(chunk), len(self.chunks))

    # Boxes

    def _box(self, index: int, top: float, bottom: float) -> str:
        return box(float(self._marks.left[index]), top, float(self._marks.right[index]), bottom)

    def _underlay(self, indices: list[int], top: float) -> str:
        """Return the path of what lies under marks; of many, those that touch are one."""
        if len(self._marks) <= MOST_TOOLTIPS:
            return "".join(self._box(index, top, self._height) for index in indices)
        joined: list[list[float]] = []
        for index in indices:
            left, right = float(self._marks.left[index]), float(self._marks.right[index])
            if joined and left - joined[-1][1] < 0.05:
                joined[-1][1] = max(joined[-1][1], right)
            else:
                joined.append([left, right])
        return "".join(box(left, top, right, self._height) for left, right in joined)

    def _draw_merged(self, group: Any, row: int) -> None:
        """Draw merged marks as layers, each as high as its share of time, one on the other."""
        merged, height = self.merged, self._height
        share = merged.share[row]
        steps = np.cumsum(np.round(share * height, 1), axis=0)
        for layer in reversed(range(len(merged.kinds))):
            kind, other = merged.kinds[layer]
            own = np.where(share[layer] > 0, steps[layer], 0.0)
            if not (path := silhouette(own, height, merged.column, self._width)):
                continue
            colour = self._paint(kind, NONE).main
            if other:
                group.append(drawsvg.Path(path, fill=LIGHT.paper, class_="bv-paper"))
            opacity = 0.3 if other else None
            group.append(drawsvg.Path(path, fill=colour, fill_opacity=opacity, class_="bv-merged"))
        self._mark_merged(group, merged, row, 0.0, height)

    def _mark_merged(self, group: Any, merged: Merged, row: int, top: float, bottom: float) -> None:
        """Dot the lower edge of what is merged, and tell by stretches what it was."""
        y = px(bottom + DOTS_BELOW)
        dots = "".join(
            f"M{first} {y}H{px(min(end, self._width))}"
            for first, end in runs(merged.there[row], DOTS_BRIDGE)
        )
        if not dots:
            return
        group.append(drawsvg.Path(dots, fill="none", **DOTS))
        told = drawsvg.Group(fill="none", pointer_events="all", class_="bv-merged")
        for stretch in np.flatnonzero(merged.counts[row].sum(axis=0)).tolist():
            left, counts = stretch * merged.stretch, merged.counts[row, :, stretch]
            places = np.flatnonzero(merged.there[row, left : left + merged.stretch])
            if not len(places):  # half a pixel before the stretch that holds its middle
                continue
            right = min(left + int(places[-1]) + 1, self._width)
            path = box(left + int(places[0]), top, right, bottom)
            element = drawsvg.Path(path, data_operations=_operations(merged, counts))
            element.append_title(_merged_words(merged, counts))
            told.append(element)
        group.append(told)

    def _draw_marks(self, group: Any, indices: range) -> None:
        """Draw the marks of one row in layers: inside others last, other iterations first."""
        layers: dict[tuple[bool, bool], list[int]] = defaultdict(list)
        # A box of half the height leaves no bubble above it.
        if busy := self._underlay([i for i in indices if self._inside[i]], 0.0):
            group.append(drawsvg.Path(busy, fill=LIGHT.paper, class_="bv-paper"))
        for index in indices:
            own = not self._marks.other[index]
            layers[bool(self._inside[index]), own].append(index)
        for (inside, own), members in sorted(layers.items()):
            top = self._height / 2 if inside else 0.0
            if not own:
                under = self._underlay(members, top)
                group.append(drawsvg.Path(under, fill=LIGHT.paper, class_="bv-paper"))
            self._draw_layer(group, members, top, own)
            self._draw_cuts(group, members, top)

    def _draw_layer(self, group: Any, members: list[int], top: float, own: bool) -> None:
        marks, height = self._marks, self._height
        look: dict[str, Any] = {}
        if self._frame:
            look = {"class_": "bv-frame", "stroke": LIGHT.frame, "stroke_width": self._frame}
        if not own:
            look |= {"fill_opacity": 0.3, "stroke_opacity": 0.45}
        layer = drawsvg.Group(**look)
        tooltips = len(marks) <= MOST_TOOLTIPS
        boxes: dict[tuple[int, Paint], list[int]] = defaultdict(list)
        for index in members:
            operation, kind = int(marks.operation[index]), int(marks.kind[index])
            boxes[operation if tooltips else NONE, self._paint(kind, operation)].append(index)
        for (operation, fill), parts in boxes.items():
            if fill.main == UNATTRIBUTED:
                path = "".join(self._box(i, 0.2 * height, 0.8 * height) for i in parts)
                layer.append(drawsvg.Path(path, fill=UNATTRIBUTED, stroke="none"))
                continue
            path = "".join(self._box(index, top, height) for index in parts)
            element = drawsvg.Path(path, fill=self._page.fill(fill))
            layer.append(element)
            if operation == NONE:
                continue
            element.append_title(self._tooltip(operation))
            for before, after in pairwise(parts):
                # A receive spins in this hole: bubble, but of one operation.
                hole = f"M{px(marks.right[before])} {px((top + height) / 2)}"
                hole += f"H{px(marks.left[after])}"
                layer.append(drawsvg.Path(hole, stroke=fill.main, stroke_width=1.5))
        group.append(layer)

    def _draw_cuts(self, group: Any, members: list[int], top: float) -> None:
        """Tear the right edge of what the end of the capture cut."""
        marks = self._marks
        last = {int(marks.operation[index]): index for index in members if self._cut[index]}
        for index in last.values():
            left, right = float(marks.left[index]), float(marks.right[index])
            depth, height = min(4.0, (right - left) / 2), self._height - top
            teeth = "L".join(
                f"{px(right - depth * (tooth % 2))} {px(top + height * tooth / 6)}"
                for tooth in range(7)
            )
            group.append(
                drawsvg.Path(
                    f"M{teeth}V{px(top)}z",
                    fill=LIGHT.paper,
                    stroke=LIGHT.text,
                    stroke_width=0.9,
                    class_="bv-paper bv-mark",
                )
            )

    def _draw_numbers(self, group: Any, indices: range) -> None:
        marks = self._marks
        groups: dict[tuple[str, float], Any] = {}
        for index in indices:
            text, inside, holds = self._labels.get(index), self._inside[index], self._holds[index]
            style = self._numbers.get(int(marks.kind[index]))
            if text is None or style is None or (inside and holds):
                continue
            # What overlaps another shares the height with it.
            room = self._height / 2 if inside or holds else self._height
            size = min(style.size, 0.75 * room)
            left, right = float(marks.left[index]), float(marks.right[index])
            if not Numbers(size, style.upright).fits(text, right - left, room):
                continue
            colour = self._paint(int(marks.kind[index]), int(marks.operation[index])).number
            colour = LIGHT.text if marks.other[index] else colour
            if (colour, size) not in groups:
                groups[colour, size] = drawsvg.Group(
                    font_size=px(size),
                    font_weight="bold" if colour == WHITE else None,
                    text_anchor="middle",
                    pointer_events="none",
                    fill=colour,
                    class_="bv-text" if colour == LIGHT.text else None,
                )
            x, y = (left + right) / 2, room / 2 + (self._height / 2 if inside else 0)
            turn = None
            if style.upright:
                y += 0.36 * size
            else:
                x += 0.36 * size
                turn = f"rotate(-90 {px(x)} {px(y)})"
            into = groups[colour, size]
            self._page.text(text, x, y, None, into=into, ink=None, transform=turn)
        group.extend(members for _, members in sorted(groups.items()))

    def _draw_spanless(self, group: Any, row: int) -> None:
        """Draw one hollow mark before the row for all that has no device time on it."""
        if not (count := self.spanless.get(row)):
            return
        mark = drawsvg.Circle(
            -6,
            px(self._height / 2),
            2.6,
            fill="none",
            stroke=LIGHT.text,
            stroke_width=1,
            class_="bv-mark",
        )
        names = ", ".join(self._words(operation) for operation in self._named[row])
        more = f" and {count - NAMED} more" if count > NAMED else ""
        mark.append_title(f"without device time: {names}{more}")
        group.append(mark)

    def _draw_lane(self, group: Any, row: int) -> None:
        if self._lane is None:
            return
        marks, merged, height = self._lane
        top = self._height + LANE_GAP
        # A share of so thin a lane would not be seen: where, but not how much.
        there = np.where(merged.share[row].sum(axis=0) > 0, height, 0.0)
        if path := silhouette(there, top + height, merged.column, self._width):
            group.append(drawsvg.Path(path, fill=COMMUNICATION, class_="bv-merged"))
        self._mark_merged(group, merged, row, top, top + height)
        first, last = np.searchsorted(marks.row, (row, row + 1)).tolist()
        boxes = {
            index: box(float(marks.left[index]), top, float(marks.right[index]), top + height)
            for index in range(first, last)
        }
        lane = drawsvg.Group(
            fill=COMMUNICATION, stroke=LIGHT.frame, stroke_width=0.3, class_="bv-frame"
        )
        if len(marks) <= MOST_TOOLTIPS:
            for index, path in boxes.items():
                element = drawsvg.Path(path)
                element.append_title(self._tooltip(int(marks.operation[index])))
                lane.append(element)
        elif boxes:
            lane.append(drawsvg.Path("".join(boxes.values())))
        if lane.children:
            group.append(lane)


def _operations(merged: Merged, counts: Ints) -> int:
    own = (
        n for (kind, _), n in zip(merged.kinds, counts, strict=True) if kind != UNATTRIBUTED_KIND
    )
    return int(sum(own))


def _merged_words(merged: Merged, counts: Ints) -> str:
    """Return what was merged by its counts: ``137 operations (F 90, B 47), merged``."""
    by_kind: dict[int, int] = defaultdict(int)
    for (kind, _), count in zip(merged.kinds, counts.tolist(), strict=True):
        by_kind[kind] += count
    outside = by_kind.pop(UNATTRIBUTED_KIND, 0)
    phases = ", ".join(f"{Phase(kind).label} {n:,}" for kind, n in by_kind.items() if n)
    return f"{_counted(sum(by_kind.values()), outside, f' ({phases})')}, merged"


def _counted(operations: int, outside: int, phases: str = "") -> str:
    """Return how many operations, and how many intervals of unattributed compute."""
    parts = [f"{operations:,} operation{'s' if operations > 1 else ''}{phases}"] * bool(operations)
    if outside:
        parts.append(f"{outside:,} time{'s' if outside > 1 else ''} unattributed compute")
    return " and ".join(parts)
