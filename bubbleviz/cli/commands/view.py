"""``bubbleviz view``: the interactive report in a browser, without a file."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from typing import Annotated

import typer

from bubbleviz.cli.options import MeasurementOptions, with_anonymity, with_groups
from bubbleviz.cli.terminal import pass_on
from bubbleviz.errors import UsageError
from bubbleviz.model.private_names import anonymous, note_host, note_paths


@with_anonymity
@with_groups
def view(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="REPORT.json|PROFILES...",
            help="A report written by analyze --json, or the profiles of one run (files or a "
            "directory).",
        ),
    ],
    *,
    browser: Annotated[
        bool, typer.Option(help="Print the address alone, and open no browser.")
    ] = True,
    measurement: MeasurementOptions,
) -> None:
    """Open the interactive report in a browser, till Ctrl-C.

    The page is served on the loopback address only, under a new secret address each time.
    """
    from bubbleviz.cli.serving import serving
    from bubbleviz.render.web.page import check
    from bubbleviz.report.saved import looks_saved

    check()
    if len(inputs) > 1 and any(map(looks_saved, inputs)):
        raise UsageError("view shows one report; give a single report, or the profiles of one run")
    if looks_saved(inputs[0]):
        if measurement.given():
            raise UsageError(
                "--skip, --convention and --jobs apply to profiles; leave them out for a report"
            )
        page = _page_of_saved(inputs[0])
    else:
        page = _page_of_profiles(inputs, measurement)
    with (
        serving(page.encode("utf-8", "replace")) as served,
        suppress(KeyboardInterrupt, SystemExit),
    ):
        pass_on(f"{served.url}\n")
        if browser:
            webbrowser.open(served.url)
        # A signal is how it ends, and nothing is incomplete.
        served.forever()


def _page_of_saved(path: str) -> str:
    from bubbleviz.render.formats.html import page_of_saved
    from bubbleviz.report.saved import read_document

    saved = read_document(path)
    for profile in saved.document["profiles"]:
        note_paths([str(profile.get("path", ""))])
        note_host(str(profile.get("host", "")))
    return page_of_saved(anonymous(path), anonymous(saved, keys=False))


def _page_of_profiles(paths: list[str], measurement: MeasurementOptions) -> str:
    from bubbleviz.render.formats.html import render
    from bubbleviz.report.view import View

    return render(measurement.measure(paths), View())
