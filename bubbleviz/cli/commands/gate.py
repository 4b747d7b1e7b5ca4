"""``bubbleviz gate``: fail a job where a bubble ratio is too large."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from bubbleviz.cli.help import argument, flag, option
from bubbleviz.cli.options import MARKDOWN, command, limit_beginnings
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import show
from bubbleviz.errors import UsageError
from bubbleviz.model.private_names import anonymous
from bubbleviz.render.document import Sentence
from bubbleviz.report.gate import checks, limits_of, promises
from bubbleviz.report.saved import read_saved

if TYPE_CHECKING:
    from collections.abc import Sequence


#: Exit code where a ratio is, or may be, above its limit; 1 and 2 are bad input and wrong usage.
TOO_LARGE = 3


@command(MARKDOWN)
def gate(
    report: str = argument("REPORT.json", "Report written by analyze --json."),
    max_bubble: list[str] | None = option(
        *(
            "RATIO=LIMIT",
            "Most a mean may be: schedule=12%, or 12% of the primary ratio.",
            "Limits",
        ),
        complete=limit_beginnings,
    ),
    *,
    promised_by: str | None = option(
        "BEFORE.json", "Advice that was followed kept its promise.", "Limits"
    ),
    allow_incomplete: bool = flag(
        "Check the ranks here though some are missing.", "Limits", "--allow-incomplete"
    ),
    outputs: Outputs,
) -> None:
    """Fail where a bubble ratio is, or may be, above its limit.

    It may be where the bounds of the clocks reach above it, and where the report restricts its
    ratios: ranks, stages, kernels or operations are, or may be, missing, or nothing tells
    iterations apart. --max-bubble is given for each ratio; with --allow-incomplete, lost kernels
    and any other doubt of the profiled ranks still fail. --promised-by names an earlier report:
    where advice of it was followed, iterations are to be as much shorter as it promised. Exit
    codes: 0 all within limits, 3 one above, 1 a value or the pipeline is missing, 2 wrong usage.
    """
    limits = limits_of(max_bubble or ())
    if not limits and promised_by is None:
        raise UsageError(
            "nothing to check; give a limit with --max-bubble schedule=12%, or an earlier "
            "report with --promised-by"
        )
    inputs = [report, *([] if promised_by is None else [promised_by])]
    outputs.check(inputs)
    saved = read_saved(report)
    results = checks(saved, limits, report, allow_incomplete=allow_incomplete)
    kept = () if promised_by is None else promises(read_saved(promised_by), saved, promised_by)
    lines = [*((check.line, check.passed) for check in results), *kept]

    def markdown(*_: str) -> str:
        from bubbleviz.render.comparison import gate_markdown

        return anonymous(gate_markdown(saved, results, kept))

    with suppress(BrokenPipeError):  # the exit code needs no reader
        outputs.deliver(markdown, lambda: _print(lines), inputs=inputs)
    if not all(passed for _, passed in lines):
        raise typer.Exit(TOO_LARGE)


def _print(lines: Sequence[tuple[str, bool]]) -> None:
    blocks = []
    for line, passed in lines:
        lead, colon, rest = anonymous(line).partition(":")
        style = "green" if passed else "bold red"
        blocks.append(Sentence(colon + rest, lead=lead, lead_style=style, whole=True))
    show(blocks)
