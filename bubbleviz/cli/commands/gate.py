"""``bubbleviz gate``: fail a job where a bubble ratio is too large."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from bubbleviz.cli.option_groups import with_anonymity
from bubbleviz.cli.terminal import pass_on
from bubbleviz.model.private_names import anonymous

#: Exit code where a ratio is, or may be, above its limit; 1 and 2 are bad input and wrong usage.
TOO_LARGE = 3


@with_anonymity
def gate(
    report: Annotated[
        str, typer.Argument(metavar="REPORT.json", help="Report written by analyze --json.")
    ],
    max_bubble: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RATIO=FRACTION",
            help="Upper limit of a ratio's mean, as a fraction of 1; repeat for several ratios.",
        ),
    ] = None,
    *,
    allow_incomplete: Annotated[
        bool,
        typer.Option(
            "--allow-incomplete",
            help="Check the ratio of the profiled ranks where others are, or may be, missing; "
            "lost kernels, and any other doubt of these ranks, still fail.",
        ),
    ] = False,
) -> None:
    """Fail with exit code 3 if a bubble ratio of a report is, or may be, above its limit.

    It may be where the bounds of the clocks reach above it, and where the report restricts its
    ratios: ranks, stages, kernels or operations are, or may be, missing, or nothing tells
    iterations apart. Other exit codes: 0 all within limits, 1 a value or the pipeline is missing,
    2 wrong usage.
    """
    from bubbleviz.report.compare.gate import checks, limits_of
    from bubbleviz.report.saved import read_saved

    limits = limits_of(max_bubble or ())
    results = checks(read_saved(report), limits, report, allow_incomplete=allow_incomplete)
    with suppress(BrokenPipeError):  # the exit code needs no reader
        pass_on("".join(f"{anonymous(check.line)}\n" for check in results))
    if not all(check.passed for check in results):
        raise typer.Exit(TOO_LARGE)
