"""Labels: what stands around the rows: title, brackets, hosts, stages, ranks, bubble ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bubbleviz.count.iterations import Iteration, Ratio
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.page import (
    UNKNOWN,
    Page,
    PictureStyle,
    duration,
    fitted,
    percent,
    px,
    text_width,
)
from bubbleviz.render.picture.rows import LANE_GAP
from bubbleviz.render.rows import RankRow, Selection, row_ratios
from bubbleviz.report.advice import advise
from bubbleviz.report.labels import MARK
from bubbleviz.report.rank_means import idle_of, measure_of
from bubbleviz.report.report import Report


@dataclass(frozen=True)
class Layout:
    """What is written left of the rows, and positions on the page, in its units.

    Attributes:
        stages: by row, its pipeline and stage; empty where unknown.
        names: by row, the label of its rank.
        ratios: by row, its bubble ratio.
        ratio_title: title of the column of ratios.
        name_x: left edge of the column of rank labels.
        left: left edge of the plot.
        right: right edge of the plot.
        brackets: top of the brackets.
        row: height of a row.
        lane: height of the communication lane below it, 0 for none.
        size: font size of the labels beside a row.
        step: one row in so many has labels; the rows between are lower than letters.
        tops: top of every row.
        start_ns: the time at the left edge of the plot.
        span_ns: the time from the left edge to the right edge.
        strip: height of the area below a row of many copies, 0 where there is none.
    """

    stages: Sequence[str]
    names: Sequence[str]
    ratios: Sequence[str]
    ratio_title: str
    name_x: float
    left: float
    right: float
    brackets: float
    row: float
    lane: float
    size: float
    step: int
    tops: tuple[float, ...]
    start_ns: int
    span_ns: int
    strip: float

    @property
    def width(self) -> float:
        """Width of the plot."""
        return self.right - self.left

    @property
    def bottom(self) -> float:
        """Lower edge of the last row."""
        below = (self.lane + LANE_GAP if self.lane else 0) + (self.strip + 2 if self.strip else 0)
        return self.tops[-1] + self.row + below

    def x(self, time_ns: int) -> float:
        """Return the x of a time; times outside the plot are at its edges."""
        share = (time_ns - self.start_ns) / self.span_ns
        return self.left + self.width * min(max(share, 0.0), 1.0)


# Bubble ratios as a picture prints them: of an iteration, and beside each row.


#: A ratio and its lower bound are both printed if they differ by more than this.
_RATIO_GRAIN = 0.01


def shows_lower_bound(ratio: Ratio | None) -> bool:
    """Return whether a ratio is printed as a range, from its lower bound."""
    if ratio is None or ratio.value is None or ratio.low is None:
        return False
    return ratio.value - ratio.low > _RATIO_GRAIN


def iteration_ratio(report: Report, iteration: Iteration) -> str:
    """Return the headline ratio, as a range where unattributed compute changes it."""
    ratio = iteration.ratios.get(report.headline)
    if ratio is None or ratio.value is None:
        return UNKNOWN
    mark = " !" if ratio.contradicted else ""
    low = f"{100 * ratio.low:.1f} to " if ratio.low is not None and shows_lower_bound(ratio) else ""
    return f"{low}{percent(ratio.value)}{mark}"


# Clock uncertainty: a note beside the first row of each clock, and error bars on the rows.


#: An error bar is drawn if it reaches so many px to each side.
_SMALLEST_ERROR_BAR = 1.5


def clock_notes(report: Report, selection: Selection) -> list[str]:
    """Return by row the uncertainty of its clock; empty texts where all rows are on one clock."""
    notes = []
    for rank in selection.ranks:
        uncertainty_ns = report.clock_uncertainty_ns(rank)
        known = f"clock ± {duration(uncertainty_ns)}" if uncertainty_ns else "clock ± 0"
        notes.append("clock ± ?" if uncertainty_ns is None else known)
    several = len({report.clock(rank.profile) for rank in selection.ranks}) > 1
    return notes if several else [""] * len(notes)


def draw_error_bars(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw the clock uncertainty of each row around its first start, where it is visible."""
    first_ns = {entry.rank: entry.first_ns for entry in selection.iterations[0].ranks}
    notes = clock_notes(report, selection)
    path = ""
    for rank, note, top in zip(selection.ranks, notes, layout.tops, strict=True):
        if not note or rank.index not in first_ns:
            continue
        reach = layout.width * (report.clock_uncertainty_ns(rank) or 0) / layout.span_ns
        if reach < _SMALLEST_ERROR_BAR:
            continue
        middle = layout.x(first_ns[rank.index])
        left, right = max(middle - reach, layout.left), min(middle + reach, layout.right)
        tick = layout.row / 10
        y = top + layout.row - tick - 1
        path += f"M{px(left)} {px(y)}H{px(right)}"
        path += "".join(f"M{px(x)} {px(y - tick)}V{px(y + tick)}" for x in (left, right))
    page.path(path, fill="none", stroke=LIGHT.text, stroke_width=1, class_="bv-mark")


#: Names take so much of the width of the page at most.
WIDEST_NAME = 0.175


def ratio_title(report: Report, selection: Selection) -> str:
    """Return the title of the column of ratios: of one iteration, or of the mean of several."""
    idle = idle_of(report)
    return f"mean {idle}" if len(selection.iterations) > 1 else idle


def labels_of(
    report: Report, selection: Selection, style: PictureStyle
) -> tuple[list[str], list[str], list[str]]:
    """Return stages, names and ratios of the rows, as a layout has them."""
    ranks = selection.ranks
    marked = advise(report).marked_ranks if style.notes else ()
    clocks = clock_notes(report, selection) if style.notes else [""] * len(ranks)
    # Rows of many copies have no pipeline.
    single = {own.rank.pipeline for own in selection.rows if not own.spread}
    several = len(single) > 1 or len(single) < len({rank.pipeline for rank in ranks})
    ratios = row_ratios(report, selection)
    stages, names = [], []
    for row, (own, (_, ends)) in enumerate(zip(selection.rows, ratios, strict=True)):
        rank = own.rank
        stage = "" if rank.stage is None else f"stage {rank.stage}"
        if rank.pipeline is not None and several and not own.spread:
            stage = f"p{rank.pipeline} {stage}".strip()
        stages.append(f"{MARK} {stage}".strip() if {*own.replicas} & {*marked} else stage)
        if own.spread:
            between = "" if ends is None else f": {100 * ends[0]:.1f} to {percent(ends[1])}"
            names.append(f"{len(own.replicas):,} ranks{between}")
            continue
        changed = row == 0 or report.clock(ranks[row - 1].profile) != report.clock(rank.profile)
        names.append(_name(own, clocks[row] if changed else ""))
    widest = max(text_width(name, style.letters.label) for name in names)
    # A screen has room for most of each name.
    if not style.names or (style.millimetres and widest > WIDEST_NAME * style.width):
        # Names by number, and none where stages tell the rows apart.
        apart = "" not in stages and len(set(stages)) == len(stages)
        numbers = (
            str(r.number) if own else f"rank {r.number}"
            for r, own in zip(ranks, stages, strict=True)
        )
        names = ["" if apart else number for number in numbers]
    mark = " !" if report.contradicted(report.headline) else ""
    return stages, names, [percent(ratio) + mark for ratio, _ in ratios]


def _name(row: RankRow, clock: str) -> str:
    """Return the label of a row's rank, behind it its clock where that is another one."""
    if row.why:
        return one_line(row.why, 80)
    copies = f"1 of {len(row.replicas)}: " if len(row.replicas) > 1 else ""
    behind = f", {clock}" if clock else ""
    return one_line(f"{copies}{one_line(row.rank.label, 60)}{behind}", 80)


def draw_labels(page: Page, layout: Layout) -> None:
    """Draw stage, name and bubble ratio of every row."""
    size, quiet = layout.size, page.style.letters.axis
    small = page.style.name_size(size)
    rows = list(zip(layout.stages, layout.names, layout.ratios, layout.tops, strict=True))
    for stage, full_name, ratio, top in rows[:: layout.step]:
        y = top + layout.row / 2 + size * 0.36
        if stage:
            page.text(stage, page.left, y, size)
        if name := fitted(full_name, small, layout.left - 0.6 * size - layout.name_x):
            page.text(name, layout.name_x, y, small, ink="quiet")
        page.text(ratio, page.right, y, size, text_anchor="end")
    # Above the first ratio, and clear of it where letters are higher than the row.
    y = layout.tops[0] - max(8.0 if page.style.titled else 4.0, (size - layout.row) / 2 + 3)
    page.text(layout.ratio_title, page.right, y, quiet, ink="quiet", text_anchor="end")


# Brackets: name, ratio and length above every iteration, and dashes where the next one begins.


#: Up to so many iterations have a bracket and a boundary.
MOST_BRACKETS = 60
#: Brackets that overlap are on so many lines.
_LINES = 3
_LINE_HEIGHT = 15


def brackets_height(selection: Selection, style: PictureStyle) -> int:
    """Return the height of the brackets' lines and of the title of the ratios beside them."""
    lines = max((line for *_, line in _brackets(selection, style)), default=0)
    return _LINE_HEIGHT * (lines + 1) - (0 if style.titled else 3)


def _brackets(selection: Selection, style: PictureStyle) -> list[tuple[Iteration, int, int, int]]:
    """Return iterations with the extent of their brackets, ns, and their lines.

    Very many have none, nor has one without a title. An extent is the window of the first row that
    has one; brackets that overlap take turns on the lines.
    """
    count = len(selection.iterations)
    if count > MOST_BRACKETS or (count == 1 and not style.titled):
        return []
    brackets: list[tuple[Iteration, int, int, int]] = []
    for it, by_rank in zip(selection.iterations, selection.windows, strict=True):
        windows = (by_rank[rank.index] for rank in selection.ranks if rank.index in by_rank)
        start, end = next(windows, (it.start_ns, it.end_ns))
        line = 0
        if brackets and start < brackets[-1][2]:
            line = (brackets[-1][3] + 1) % _LINES
        brackets.append((it, start, end, line))
    return brackets


def draw_brackets(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw the boundaries between iterations and the brackets above them, unless very many."""
    brackets = _brackets(selection, page.style)
    dashes = "".join(
        f"M{px(layout.x(it.start_ns))} {px(layout.tops[0] - 4)}V{px(layout.bottom + 4)}"
        for it, *_ in brackets[1:]
    )
    dashed = {"stroke_dasharray": "4 3", "class_": "bv-mark"}
    page.path(dashes, stroke=LIGHT.text, stroke_width=0.9, **dashed)
    size = page.style.letters.axis
    for it, start, end, place in brackets:
        # A line over the window, with what fits of name, ratio and length in its middle.
        left, right, y = layout.x(start), layout.x(end), layout.brackets + _LINE_HEIGHT * place + 9
        name, value = one_line(it.name, 40), iteration_ratio(report, it)
        ratio = it.ratios.get(report.headline)
        texts = [f"iteration {name}", name, ""]
        if value != UNKNOWN:
            texts = [f"iteration {name}: {value}", f"{name}: {value}", *texts]
            if ratio is not None and ratio.window_ns is not None:
                length = f"{duration(ratio.window_ns)} ({report.headline} window)"
                texts.insert(0, f"{texts[0]} of {length}")
        text = next(t for t in texts if not t or text_width(t, size) + 3 * size <= right - left)
        middle, line = (left + right) / 2, f"H{px(right)}"
        if text:
            half = (text_width(text, size) + size) / 2
            line = f"H{px(middle - half)}M{px(middle + half)} {px(y)}{line}"
            page.text(text, middle, y + 0.35 * size, size, text_anchor="middle")
        top = px(y - 4)
        page.rule(f"M{px(left)} {top}v8M{px(right)} {top}v8M{px(left)} {px(y)}{line}")


# The title: the headline bubble ratio, what it is of, and why it is the headline.


def headings(report: Report, selection: Selection) -> tuple[str, str]:
    """Return the ratio as a heading, and what it is of."""
    drawn = selection.iterations
    measure = f"{one_line(report.headline, 40)} bubble ratio"
    head = f"{measure if report.no_pipeline is None else measure_of(report)} "
    value, parts = percent(None), []
    spread = report.summary.bubble_ratio.get(report.headline)
    if spread is not None and spread.mean is not None and spread.n > 0:
        bounds = "" if spread.ci95 is None else f" ± {percent(spread.ci95)} (95 % CI)"
        if spread.pair is not None:
            bounds = " ({} and {})".format(*map(percent, spread.pair))
        value = percent(spread.mean) + bounds
        parts = [f"mean over {counted(spread.n, 'iteration')}"] if spread.n > 1 else []
    for iteration in drawn if len(drawn) == 1 else ():
        name, own = f"iteration {one_line(iteration.name, 40)}", iteration_ratio(report, iteration)
        if not parts:
            value = own if own != UNKNOWN else value
            parts = [name]
        elif own == UNKNOWN:
            parts.append(f"drawn: {name}")
        else:
            parts.append(f"drawn: {name} with {own}")
    parts[:0] = [restriction.text for restriction in report.restrictions]
    kernels = report.kernel_time.sentence
    if kernels is not None:
        # Without a pipeline the ratio is misleading alone.
        parts.insert(len(parts) if report.no_pipeline is None else 0, kernels)
    head += "unknown" if value == UNKNOWN else value
    return head, " · ".join(parts)


def draw_title(page: Page, report: Report, selection: Selection) -> None:
    """Draw the title below the page's cursor."""
    head, rest = headings(report, selection)
    letters = page.style.letters
    page.heading(head)
    page.y += 4
    page.paragraph(rest, letters.beside, lines=3)
    page.paragraph(one_line(report.headline_reason, 300), letters.axis)
    page.y += 4
