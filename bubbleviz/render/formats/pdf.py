"""PDF: the picture of ``--svg`` as vectors and text, for a paper."""

from __future__ import annotations

from bubbleviz.render.formats import typeset

RENDERER = typeset("pdf", "the same picture as PDF, for a paper", order=31)
