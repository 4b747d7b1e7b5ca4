"""``bubbleviz view``: the interactive report in a browser, without a file."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from bubbleviz.cli.options import Conventions, Jobs, Skip
from bubbleviz.cli.terminal import pass_on, progress_bars
from bubbleviz.errors import UsageError


def view(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="REPORT.json|PROFILES...",
            help="A report written by analyze --json, or the profiles of one run (files or a "
            "directory).",
        ),
    ],
    browser: Annotated[
        bool, typer.Option(help="Open the page in the browser, or only print its address.")
    ] = True,
    skip: Skip = 0,
    convention: Conventions = None,
    jobs: Jobs = None,
) -> None:
    """Show the interactive report in the browser, until Ctrl-C.

    The page is served on the loopback address only, under a new secret address each time.
    """
    from bubbleviz.cli.serving import serving
    from bubbleviz.render.web.page import check
    from bubbleviz.report.saved import looks_saved

    check()
    if len(inputs) > 1 and any(map(looks_saved, inputs)):
        raise UsageError("view shows one report; give one report, or the profiles of one run")
    if looks_saved(inputs[0]):
        if skip or convention or jobs:
            raise UsageError(
                "--skip, --convention and --jobs are for profiles; a report is shown as it is"
            )
        page = _page_of_saved(inputs[0])
    else:
        page = _page_of_profiles(inputs, skip, convention or [], jobs)
    with serving(page.encode("utf-8", "replace")) as served:
        pass_on(f"{served.url}\n")
        if browser:
            webbrowser.open(served.url)
        try:
            served.forever()
        except KeyboardInterrupt:
            return


def _page_of_saved(path: str) -> str:
    from bubbleviz.render.formats.html import page_of_saved
    from bubbleviz.report.saved import read_document

    return page_of_saved(path, read_document(path))


def _page_of_profiles(inputs: list[str], skip: int, convention: list[str], jobs: int | None) -> str:
    from bubbleviz.api import analyze
    from bubbleviz.interpret.fleet.process_pool import cores
    from bubbleviz.render.formats.html import render
    from bubbleviz.report.report import View

    with progress_bars() as bars:
        report = analyze(
            inputs, skip=skip, convention=convention, jobs=jobs or cores(), progress=bars
        )
    return render(report, View())
