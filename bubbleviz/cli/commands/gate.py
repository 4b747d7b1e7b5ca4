"""``bubbleviz gate``: fail a job where a bubble ratio is too large."""

from __future__ import annotations

from typing import Annotated

import typer

from bubbleviz.cli.terminal import pass_on

#: Exit code where a ratio is above its limit; 1 and 2 are bad input and wrong usage.
TOO_LARGE = 3


def gate(
    report: Annotated[
        str, typer.Argument(metavar="REPORT.json", help="Report that analyze --json wrote.")
    ],
    max_bubble: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RATIO=FRACTION",
            help="Most that the mean of a ratio may be, as a fraction of 1; for several ratios "
            "give it several times.",
        ),
    ] = None,
) -> None:
    """Check the bubble ratios of a report against limits: exit code 3 where one is too large.

    Codes are 0 where all are kept, 1 where it cannot be told, and 2 for wrong usage.
    """
    from bubbleviz.report.compare.gate import checks, limits_of
    from bubbleviz.report.saved import read_saved

    limits = limits_of(max_bubble or ())
    found = checks(read_saved(report), limits, report)
    pass_on("".join(f"{check.line}\n" for check in found))
    if not all(check.passed for check in found):
        raise typer.Exit(TOO_LARGE)
