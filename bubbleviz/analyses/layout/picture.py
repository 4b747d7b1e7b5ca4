"""Draws layouts: each device's layers as stacked bars, before and after the change.

::

    1f1b: 329.8 ms -> 245.9 ms
    device 0  before │E│0 1 2│          one bar per device: F, B and W of one microbatch
              after  │E│0 1 2│3│
"""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.model.texts import format_percent, to_one_line
from bubbleviz.render.palette import BACKWARD_BOTH, COMMUNICATION, LIGHT, OPTIMIZER, PAIR
from bubbleviz.render.picture.drawing import box, make_path, px
from bubbleviz.render.picture.lettering import text_width
from bubbleviz.render.picture.numbers import duration, ticks
from bubbleviz.render.picture.page import Page
from bubbleviz.schedules.layout.best_layouts import LayoutQuestion, ScheduleLayout
from bubbleviz.schedules.layout.layers import LayerKind, Layers, Layout

_COLORS = {
    LayerKind.EMBEDDING: OPTIMIZER,
    LayerKind.TRANSFORMER: BACKWARD_BOTH,
    LayerKind.MTP: PAIR,
    LayerKind.HEAD: COMMUNICATION,
}
_WORDS = {
    LayerKind.EMBEDDING: "embedding",
    LayerKind.TRANSFORMER: "transformer layer",
    LayerKind.MTP: "multi-token prediction",
    LayerKind.HEAD: "head",
}
#: Height of a bar, gap between the two bars of a device, and gap between devices, in px.
#: The last two numbers are the widths of the columns to the left and right of the bars.
_BAR, _PAIR_GAP, _DEVICE_GAP, _LEFT, _RIGHT = 15.0, 2.0, 9.0, 112.0, 74.0
#: Gap between the chunks of a device, in px.
_CHUNK_GAP = 3.0
#: Maximum number of devices drawn.
_MAX_DEVICES = 64


def draw_layouts(question: LayoutQuestion, rows: Sequence[ScheduleLayout], reasons: str) -> str:
    """Draw the layouts in ``rows`` as an SVG document, or ``reasons`` as text if there are none."""
    page = Page("bvl-")
    page.title = "Layers by device, before and after" if rows else "No layout fits"
    page.description = "Two bars per device show the time of its layers for one microbatch."
    page.heading(page.title)
    page.y += 4
    about = "Bars: F, B and W of one microbatch, layer by layer. Dashed line: mean of all devices."
    page.paragraph(about if rows else reasons, 10.5)
    for row in rows:
        _draw_schedule(page, question, row)
    if rows:
        _draw_legend(page, question.layers)
    return page.svg()


def _draw_schedule(page: Page, question: LayoutQuestion, row: ScheduleLayout) -> None:
    """Draw a schedule's layouts before and after the change, with two bars per device.

    If both layouts are the same, each device has a single bar. Only the first ``_MAX_DEVICES``
    devices are drawn. A dashed line marks the mean time over all devices.
    """
    assert row.best is not None
    assert row.baseline is not None
    assert row.baseline_ns is not None
    is_unchanged = row.baseline == row.best.layout
    _draw_caption(page, row, row.baseline_ns, row.best.makespan_ns, is_unchanged=is_unchanged)
    virtual_stages = [
        [stage for at, stage in row.list_holders() if at == device]
        for device in range(min(question.stages, _MAX_DEVICES))
    ]
    longest_ns = max(
        _sum_work_ns(question.layers, layout, stages)
        for layout in (row.baseline, row.best.layout)
        for stages in virtual_stages
    )
    chunks = len(row.list_holders()) // question.stages
    width = page.right - _RIGHT - page.left - _LEFT - _CHUNK_GAP * (chunks - 1)
    scale = width / max(longest_ns, 1)
    top = page.y
    bars = [(row.best.layout, "")]
    if not is_unchanged:
        bars = [(row.baseline, "before"), (row.best.layout, "after")]
    for device, stages in enumerate(virtual_stages):
        page.text(f"device {device}", page.left, page.y + _BAR - 3, 11)
        _draw_bars(page, question.layers, bars, stages, scale)
        page.y += _DEVICE_GAP
    all_stages = [stage for _, stage in row.list_holders()]
    mean_ns = _sum_work_ns(question.layers, row.best.layout, all_stages) / question.stages
    _draw_mean(page, page.left + _LEFT + mean_ns * scale + _CHUNK_GAP * (chunks - 1), top)
    _draw_axis(page, longest_ns, scale)


def _draw_caption(
    page: Page, row: ScheduleLayout, before_ns: float, after_ns: float, *, is_unchanged: bool
) -> None:
    """Draw a schedule's name and its iteration times before and after the change, then move down.

    Args:
        page: The page.
        row: The schedule and its layouts.
        before_ns: Iteration time with the old layout.
        after_ns: Iteration time with the best layout.
        is_unchanged: Whether both layouts are the same.
    """
    saving = "" if row.saving is None else f"  ({format_percent(row.saving)} shorter)"
    text = f"{row.schedule}: {duration(before_ns)} before, {duration(after_ns)} after{saving}"
    if is_unchanged:
        text = f"{row.schedule}: {duration(before_ns)}; no layer moves"
    page.y += 20
    page.text(text, page.left, page.y, 12, font_weight="bold")
    page.y += 12


def _draw_bars(
    page: Page,
    layers: Layers,
    bars: Sequence[tuple[Layout, str]],
    virtual_stages: Sequence[int],
    scale: float,
) -> None:
    """Draw the bars of a device from top to bottom, each with its total time, then move down.

    Args:
        page: The page. The first bar starts at the current position.
        layers: The model's layers.
        bars: (layout, label) pairs, one per bar. The label may be "". The bar labeled ``before`` is
            pale.
        virtual_stages: Virtual stages of the device.
        scale: Pixels per nanosecond.
    """
    for layout, label in bars:
        _draw_bar(page, layers, layout, virtual_stages, scale, pale=label == "before")
        base = page.y + _BAR - 3.5
        if label:
            page.text(label, page.left + _LEFT - 8, base, 9.5, ink="quiet", text_anchor="end")
        work = duration(_sum_work_ns(layers, layout, virtual_stages))
        page.text(work, page.right, base, 9.5, text_anchor="end")
        page.y += _BAR + _PAIR_GAP


def _draw_mean(page: Page, x: float, top: float) -> None:
    """Draw a dashed vertical line at ``x``, from above ``top`` to below the last bar."""
    mark = {"stroke": LIGHT.text, "stroke_width": 1, "fill": "none", "class_": "bv-mark"}
    path = f"M{px(x)} {px(top - 3)}V{px(page.y - _DEVICE_GAP + 1)}"
    page.path(path, stroke_dasharray="3 2", **mark)


def _draw_bar(
    page: Page,
    layers: Layers,
    layout: Layout,
    virtual_stages: Sequence[int],
    scale: float,
    *,
    pale: bool,
) -> None:
    """Draw one box per layer of a device, with gaps between chunks.

    Each chunk is labeled with its number of layers if the label fits.
    """
    x, opacity = page.left + _LEFT, 0.45 if pale else 1.0
    work_ns = layers.forward_ns + layers.backward_ns + layers.weight_ns
    for stage in virtual_stages:
        chunk_x, numbers = x, list(layout.stages[stage])
        for layer in numbers:
            end = x + int(work_ns[layer]) * scale
            path = box(x, page.y, max(end - 0.6, x + 0.4), page.y + _BAR)
            fill = {"fill": _COLORS[layers.kinds[layer]], "fill_opacity": opacity}
            element = make_path(path, **fill)
            element.append_title(
                f"{to_one_line(layers.names[layer], 60)}: {int(work_ns[layer]) / 1e6:,.3f} ms"
            )
            page.elements.append(element)
            x = end
        word = str(len(numbers))
        if text_width(word, 9) < x - chunk_x - 4:
            page.text(word, chunk_x + 4, page.y + _BAR - 4, 9)
        x += _CHUNK_GAP


def _sum_work_ns(layers: Layers, layout: Layout, virtual_stages: Sequence[int]) -> int:
    """Return the total time, in ns, of one microbatch's F, B and W on the given virtual stages."""
    return sum(
        int(each[at])
        for stage in virtual_stages
        for at in layout.stages[stage]
        for each in layers.times[:3]
    )


def _draw_axis(page: Page, longest_ns: int, scale: float) -> None:
    """Draw the time axis below the bars.

    The axis is exact only for the first chunk of a device, because gaps shift the later chunks.
    """
    marks, unit = ticks(longest_ns, 8)
    for time_ns, text in marks:
        x = page.left + _LEFT + time_ns * scale
        page.text(text, x, page.y + 4, 9.5, ink="quiet", text_anchor="middle")
    page.y += 16
    title = f"time for one microbatch, {unit}"
    page.text(title, page.right - _RIGHT, page.y, 9.5, ink="quiet", text_anchor="end")
    page.y += 8


def _draw_legend(page: Page, layers: Layers) -> None:
    """Draw a legend for the layer kinds that occur in the model, then move down."""
    x = page.left
    page.y += 8
    for kind, color in _COLORS.items():
        if kind in layers.kinds:
            page.path(box(x, page.y, x + 12, page.y + 12), fill=color)
            page.text(_WORDS[kind], x + 17, page.y + 10, 10.5)
            x += text_width(_WORDS[kind], 10.5) + 36
    text = "numbers: layers per virtual stage"
    page.text(text, x, page.y + 10, 10.5, ink="quiet")
    page.y += 18
