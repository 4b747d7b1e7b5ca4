"""PNG: the picture of ``--svg`` as pixels, twice as many as the SVG has."""

from __future__ import annotations

from bubbleviz.render.formats import typeset

RENDERER = typeset("png", "the same picture as PNG, in pixels", order=32)
