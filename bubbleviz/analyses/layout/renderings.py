"""The outputs of layouts, by the names of their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bubbleviz.analyses.layout.documents import as_csv, as_json
from bubbleviz.analyses.layout.report import LayoutReport
from bubbleviz.render.picture.typesetting import as_pdf, as_png


def _as_svg(report: LayoutReport) -> str:
    # drawsvg is loaded for pictures alone.
    from bubbleviz.analyses.layout.picture import draw_layouts

    return draw_layouts(report)


RENDERINGS: Mapping[str, Callable[[LayoutReport], str | bytes]] = {
    "json": as_json,
    "csv": as_csv,
    "svg": _as_svg,
    "pdf": lambda report: as_pdf(_as_svg(report)),
    "png": lambda report: as_png(_as_svg(report)),
}
