"""``bubbleviz view``: the interactive report in a browser."""

from __future__ import annotations

import webbrowser
from contextlib import suppress

from bubbleviz.cli.help import flag
from bubbleviz.cli.options import REPORT_OR_PROFILES, MeasurementOptions, command
from bubbleviz.cli.private_names import Invocation
from bubbleviz.cli.terminal import write_content
from bubbleviz.render.extras import check_installed
from bubbleviz.report.saved import read_summary
from bubbleviz.report.view import View


@command()
def view(
    inputs: list[str] = REPORT_OR_PROFILES,
    *,
    invocation: Invocation,
    browser: bool = flag(
        "Print the address without opening a browser.",
        "Options",
        " /--no-browser",
        default=True,
    ),
    measurement: MeasurementOptions,
) -> None:
    """Open the interactive report in a browser.

    The page is served only on this machine (127.0.0.1), at a new secret address each time. Press
    Ctrl-C to stop the server.
    """
    from bubbleviz.cli.serving import open_server
    from bubbleviz.render.web.page import render, render_saved

    names = invocation.names
    check_installed("vl_convert")
    if measurement.recognize_run(inputs, "view", "shows").is_saved:
        page = render_saved(inputs[0], names.replaced(read_summary(inputs[0])))
    elif (idle := measurement.idle(inputs)) is not None:
        from bubbleviz.analyses.idle.page import render as page_of_idle

        page = page_of_idle(names.replaced(idle))
    else:
        page = render(names.replaced(measurement.measure(inputs)), View())
    with (
        open_server(page.encode("utf-8", "replace")) as (url, server),
        suppress(KeyboardInterrupt, SystemExit),
    ):
        write_content(f"{url}\n")
        if browser:
            webbrowser.open(url)
        # A signal is the normal way to end this command, so it is not reported as an interruption.
        server.serve_forever()
