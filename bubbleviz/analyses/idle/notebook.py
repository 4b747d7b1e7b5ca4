"""Notebooks: the report on idle time that IPython shows as a fragment of HTML."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.analyses.idle.report import IdleReport

#: Devices and activities that are listed, at most.
_MOST_ROWS = 32


class NotebookIdleReport(IdleReport):
    """A report with the display methods of IPython; drawing code is loaded when they are called."""

    def __repr__(self) -> str:
        """Return the report in a line; ``print`` and the prompt show no table of a million gaps."""
        from bubbleviz.analyses.idle.advice import title_of

        return f"<IdleReport: {title_of(self)}>"

    def _repr_html_(self) -> str:
        """Return shares of devices, activities of hosts, picture and advice as HTML."""
        from bubbleviz.analyses.idle.picture import draw_idle
        from bubbleviz.render.documents.notebook import before_picture, picture_in_fragment

        head = "".join(_head(self))
        picture = picture_in_fragment(draw_idle(self))
        return f"{before_picture(head)}{picture}{''.join(_foot(self))}</div>"

    def _repr_svg_(self) -> str:
        """Return the picture as an SVG document."""
        from bubbleviz.analyses.idle.picture import draw_idle

        return draw_idle(self)


def _head(report: IdleReport) -> Iterator[str]:
    """Yield the elements above the picture."""
    from bubbleviz.analyses.idle.advice import advice, title_of
    from bubbleviz.analyses.idle.text import activity_table, device_table
    from bubbleviz.analyses.idle.waits_text import wait_table
    from bubbleviz.render.documents.notebook import paragraph, table

    yield paragraph(title_of(report))
    yield from map(paragraph, advice(report))
    for caption, shown in (
        ("Devices", device_table(report.ranks[:_MOST_ROWS])),
        ("What hosts did while devices were idle", activity_table(report, _MOST_ROWS)),
        ("What they waited for, as far as it is proved", wait_table(report, _MOST_ROWS)),
    ):
        cells = [dict(zip(shown.headers, row, strict=True)) for row in shown.rows if row]
        yield from table(caption, cells)


def _foot(report: IdleReport) -> Iterator[str]:
    """Yield the elements below it."""
    from bubbleviz.render.documents.notebook import paragraph

    yield from (paragraph(limitation.sentence) for limitation in report.limitations)
