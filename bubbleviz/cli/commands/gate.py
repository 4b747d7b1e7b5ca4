"""``bubbleviz gate``: fail a job where a bubble, or an iteration, is too large."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import typer

from bubbleviz.cli import options
from bubbleviz.cli.help import flag, option
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import show
from bubbleviz.errors import UsageError
from bubbleviz.render.document import Sentence
from bubbleviz.report.gate import (
    INCREASES,
    check_limits,
    check_promises,
    describe_verdict,
    make_baseline_limits,
    parse_limits,
)
from bubbleviz.report.saved import read_saved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubbleviz.report.gate import Check
    from bubbleviz.report.ratio_summary import ReportSummary

    #: A report, its checks, and a line on each promise with whether it was kept.
    _Verdict: TypeAlias = tuple[ReportSummary, tuple[Check, ...], tuple[tuple[str, bool], ...]]

#: Exit code if a ratio is, or may be, above its limit; 1 and 2 are bad input and wrong usage.
TOO_LARGE = 3


@options.command({**options.MARKDOWN, **options.JSON})
def gate(
    reports: list[str] = options.REPORT_OR_PROFILES,
    *,
    max_bubble: list[str] | None = option(
        *("[RATIO=]LIMIT", "Highest bubble allowed: 12%, step=12%, 9ms of a rank.", "Limits"),
        complete=options.limit_beginnings,
    ),
    max_time: list[str] | None = option(
        "[RATIO=]MS",
        "Longest iteration allowed: 120ms.",
        "Limits",
        complete=options.limit_beginnings,
    ),
    baseline: str | None = option("MAIN", "Earlier run or report to compare with.", "Limits"),
    max_increase: list[str] | None = option(
        "1pt|2%", "Points of the ratio, % of the time, above --baseline.", "Limits"
    ),
    promised_by: str | None = option(
        "BEFORE", "Advice that was followed kept its promise.", "Limits"
    ),
    allow_incomplete: bool = flag(
        "Check the ranks here though some are missing.", "Limits", "--allow-incomplete"
    ),
    outputs: Outputs,
    measurement: options.MeasurementOptions,
) -> None:
    """Fail where a bubble ratio, or an iteration, is or may be above its limit.

    It may be where the bounds of the clocks reach above it, and where the report restricts its
    ratios: ranks, stages, kernels or operations are, or may be, missing, or nothing tells
    iterations apart. Limits of bubbles and times may be several; with --allow-incomplete, lost
    kernels and any other doubt of the profiled ranks still fail. --baseline alone allows 1pt and
    2%. --promised-by names an earlier report: where advice of it was followed, iterations are to be
    as much shorter as it promised. Exit codes: 0 all within limits, 3 one above, 1 a value or the
    pipeline is missing, 2 wrong usage.
    """
    limits = [*parse_limits(max_bubble or ()), *parse_limits(max_time or (), "--max-time")]
    if max_increase and baseline is None:
        raise UsageError("--max-increase needs --baseline, the report to compare with")
    if not limits and promised_by is None and baseline is None:
        raise UsageError(
            "nothing to check; give a limit with --max-bubble 12% or --max-time 120ms, or an "
            "earlier report with --baseline or --promised-by"
        )
    is_saved = measurement.is_saved(reports, "gate", "checks")
    given = (path for path in (promised_by, baseline, *reports) if path is not None)
    outputs.check(options.files_of(given))
    promising = None if promised_by is None else measurement.read(promised_by)[0]
    earlier = None if baseline is None else measurement.read(baseline)[0]
    saved = read_saved(reports[0]) if is_saved else measurement.summarize(reports)[0]
    if earlier is not None:
        limits += make_baseline_limits(
            earlier,
            max_increase or INCREASES,
            baseline or "",
            saved,
            allow_incomplete=allow_incomplete,
        )
    outputs.names.note(promising, earlier)
    checks = check_limits(saved, limits, reports[0], allow_incomplete=allow_incomplete)
    promises: tuple[tuple[str, bool], ...] = ()
    if promising is not None:
        promises = check_promises(
            promising, saved, promised_by or "", allow_incomplete=allow_incomplete
        )

    def content(shown: _Verdict, name: str, _: str) -> str:
        from bubbleviz.render.gate import format_json, format_markdown

        render = format_json if name == "json" else format_markdown
        return render(*shown)

    verdict: _Verdict = saved, checks, promises
    with suppress(BrokenPipeError):  # the exit code needs no reader
        outputs.deliver(verdict, content, lambda shown: _print(_lines(shown)))
    if not all(passed for _, passed in _lines(verdict)):
        raise typer.Exit(TOO_LARGE)


def _lines(verdict: _Verdict) -> list[tuple[str, bool]]:
    """Return a line for each check and promise, and whether it passed."""
    _, checks, promises = verdict
    return [*((check.line, check.passed) for check in checks), *promises]


def _print(lines: Sequence[tuple[str, bool]]) -> None:
    blocks = []
    for line, passed in lines:
        verdict = describe_verdict(passed)
        text, style = line.removeprefix(verdict), "green" if passed else "bold red"
        blocks.append(Sentence(text, lead=verdict, lead_style=style, is_preformatted=True))
    show(blocks)
