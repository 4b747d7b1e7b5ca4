"""Pictures as PDF and PNG: the SVG document set on a page of its own size by Typst.

Typst keeps shapes as shapes and text as text in the fonts of this machine, or in its own where
there are none. It is imported when used, for it is an extra: ``pip install 'bubbleviz[paper]'``.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Literal

from bubbleviz.errors import OutputError
from bubbleviz.render.formats import check_installed

#: What stands between a picture and its file. The SVG is bytes, so nothing in it is code; there is
#: no date, so that the same picture has the same bytes.
_DOCUMENT = b"""#set document(title: sys.inputs.title, date: none)
#set page(width: auto, height: auto, margin: 0pt, fill: white)
#image(bytes(sys.inputs.svg), format: "svg")
"""
#: The newest that LaTeX takes into a document without a warning, by its default settings.
_PDF_VERSION: Literal["1.5"] = "1.5"
#: Dots per inch at which a pixel of the picture is two by two dots.
_TWICE = 192.0
#: Dots per inch of a picture with a width on paper: what journals ask of drawings with lines.
_PRINTED = 600.0
_MM_PER_INCH, _PX_PER_INCH = 25.4, 96.0
#: Dots of a PNG at most; of a larger picture a pixel is fewer dots. 64 million take 0.6 GB.
_MOST_DOTS = 64_000_000

_SIZE = re.compile(r'<svg\b[^>]*?\swidth="([0-9.]+)(mm)?"[^>]*?\sheight="([0-9.]+)')
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)


def as_pdf(svg: str) -> bytes:
    """Return an SVG document as a PDF of one page: vectors and text, no pixels.

    Raises:
        OutputError: Typst is not installed, or does not take the picture.
    """
    return _typeset(svg, "pdf", _TWICE)


def as_png(svg: str) -> bytes:
    """Return an SVG document as a PNG: two dots a pixel, or 600 an inch of paper.

    Raises:
        OutputError: Typst is not installed, or does not take the picture.
    """
    size = _SIZE.search(svg)
    printed = size is not None and size[2] == "mm"
    ppi = _PRINTED if printed else _TWICE
    per_unit = ppi / (_MM_PER_INCH if printed else _PX_PER_INCH)
    dots = float(size[1]) * float(size[3]) * per_unit**2 if size else 0.0
    shrunk = (_MOST_DOTS / dots) ** 0.5 if dots > _MOST_DOTS else 1.0
    return _typeset(svg, "png", ppi * shrunk)


def _typeset(svg: str, kind: Literal["pdf", "png"], ppi: float) -> bytes:
    check_installed("typst")

    import typst

    title = _TITLE.search(svg)
    try:
        return typst.compile(
            _DOCUMENT,
            format=kind,
            ppi=ppi,
            sys_inputs={"svg": svg, "title": unescape(title[1]) if title else "bubbleviz"},
            pdf_standards=_PDF_VERSION,
        )
    except (RuntimeError, TypeError, ValueError) as error:
        # Typst refuses the picture, or is too old for what it is asked.
        raise OutputError(
            f"the picture cannot be converted to {kind.upper()} ({str(error)[:300]}); write "
            "-o FILE.svg, or upgrade typst"
        ) from error
