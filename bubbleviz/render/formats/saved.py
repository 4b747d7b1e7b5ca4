"""Renders reports that were saved as JSON, in the formats whose data a saved report contains."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.render.formats import get_renderer, import_function
from bubbleviz.render.json_document import write_json
from bubbleviz.report.restored import restore
from bubbleviz.report.summary import RunSummary
from bubbleviz.report.view import View

#: Formats that can be rendered from a saved report.
SAVED_FORMATS = frozenset({"json", "latex", "html", "svg", "pdf", "png"})


def check_saved_format(file: str, name: str, remedy: str) -> None:
    """Check that a format can be rendered from a saved report.

    Args:
        file: Path of the output file, for the message.
        name: Name of the format.
        remedy: What to do to get any other format, for the message.

    Raises:
        UsageError: A saved report does not contain the data of this format.
    """
    if name not in SAVED_FORMATS:
        raise UsageError(
            f"-o {file}: a saved report can only be written as .svg, .pdf, .png, .html, .tex or "
            f".json; {remedy}"
        )


def render_saved(path: str, summary: RunSummary, name: str, view: View, file: str) -> str | bytes:
    """Return the content of an output file for a saved report.

    Args:
        path: Path of the saved report, for messages.
        summary: The saved report.
        name: Name of the format, which is one of ``SAVED_FORMATS``.
        view: Iterations and ranks to draw if the format is a picture.
        file: Path of the output file.

    Raises:
        UsageError: The report has no timeline to draw a picture from.
        InputError: The timeline in the report is inconsistent.
        OutputError: A package for the format is not installed.
    """
    renderer = get_renderer(name)
    renderer.check(file)
    if name == "json":
        return write_json(summary.to_dict())
    if name == "html":
        page: str = import_function("web.page.render_saved")(path, summary)
        return page
    return renderer.content(restore(path, summary), view, file)
