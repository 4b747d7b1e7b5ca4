"""Converts SVG pictures to PDF and PNG. Typst places the SVG on a page of the same size.

A PDF contains vector shapes and text, not pixels. Typst uses the fonts installed on this machine,
or its bundled fonts if none are installed. Typst is imported when it is first used, because it is
an optional dependency (extra ``paper``).
"""

from __future__ import annotations

import re
from html import unescape
from typing import Literal

from bubbleviz.errors import OutputError
from bubbleviz.render.extras import check_installed

#: Typst source of the page. The SVG is passed as bytes, so that none of its content is executed as
#: Typst code. No date is set, so that identical pictures produce identical files.
_DOCUMENT = b"""#set document(title: sys.inputs.title, date: none)
#set page(width: auto, height: auto, margin: 0pt, fill: white)
#image(bytes(sys.inputs.svg), format: "svg")
"""
#: Newest PDF version that LaTeX accepts without a warning in its default settings.
_PDF_VERSION: Literal["1.5"] = "1.5"
#: Resolution for screens in dots per inch. Each px of the picture becomes 2 x 2 dots.
_SCREEN_DPI = 192.0
#: Resolution in dots per inch for pictures with a physical width. Journals require it for line art.
_PRINT_DPI = 600.0
_MM_PER_INCH, _PX_PER_INCH = 25.4, 96.0
#: Maximum number of dots in a PNG. They take 0.6 GB of memory. Pictures with more dots get a lower
#: resolution.
_MAX_DOTS = 64_000_000

_SIZE = re.compile(r'<svg\b[^>]*?\swidth="([0-9.]+)(mm)?"[^>]*?\sheight="([0-9.]+)')
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)


def as_pdf(svg: str) -> bytes:
    """Convert an SVG document to a single-page PDF that contains vector shapes and text.

    Raises:
        OutputError: Typst is not installed, or cannot convert the picture.
    """
    return _run_typst(svg, "pdf", _SCREEN_DPI)


def as_png(svg: str) -> bytes:
    """Convert an SVG document to a PNG.

    The resolution is 2 dots per px, or 600 dots per inch if the size of the picture is in mm. If
    the PNG would have more than ``_MAX_DOTS`` dots, the resolution is reduced.

    Raises:
        OutputError: Typst is not installed, or cannot convert the picture.
    """
    size = _SIZE.search(svg)
    is_printed = size is not None and size[2] == "mm"
    ppi = _PRINT_DPI if is_printed else _SCREEN_DPI
    dots_per_unit = ppi / (_MM_PER_INCH if is_printed else _PX_PER_INCH)
    n_dots = float(size[1]) * float(size[3]) * dots_per_unit**2 if size else 0.0
    shrink_factor = (_MAX_DOTS / n_dots) ** 0.5 if n_dots > _MAX_DOTS else 1.0
    return _run_typst(svg, "png", ppi * shrink_factor)


def _run_typst(svg: str, kind: Literal["pdf", "png"], ppi: float) -> bytes:
    """Convert an SVG document to PDF or PNG. The title of the result is the title of the SVG.

    Args:
        svg: The SVG document.
        kind: Format of the result.
        ppi: Resolution in dots per inch. Affects only PNGs.

    Raises:
        OutputError: Typst is not installed, or cannot convert the picture.
    """
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
        # Either Typst rejects the picture, or the installed version lacks one of the arguments.
        raise OutputError(
            f"the picture cannot be converted to {kind.upper()} ({str(error)[:300]}); write "
            "-o FILE.svg, or upgrade typst"
        ) from error
