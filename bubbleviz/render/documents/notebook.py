"""Notebooks: the report that shows itself in Jupyter.

A report knows nothing of how it is drawn: drawing stands above it. What :func:`bubbleviz.analyze`
returns is a report that knows, for it comes from above both. Nothing that draws is loaded before a
notebook asks.
"""

from __future__ import annotations

from bubbleviz.report.report import Report


class NotebookReport(Report):
    """A report with the methods by which IPython asks values how they look."""

    def _repr_html_(self) -> str:
        """Return ratios, causes, picture and limitations as a fragment of HTML."""
        from bubbleviz.render.documents.fragment import fragment

        return fragment(self)

    def _repr_svg_(self) -> str:
        """Return the picture of the typical iteration as an SVG document."""
        from bubbleviz.render.documents.fragment import bounded_picture

        return bounded_picture(self).svg
