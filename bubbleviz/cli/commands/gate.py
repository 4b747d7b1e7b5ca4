"""``bubbleviz gate``: limits of bubble ratios and iteration times for CI jobs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import typer

from bubbleviz.cli import options
from bubbleviz.cli.help import flag, option
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import show
from bubbleviz.errors import UsageError
from bubbleviz.model.texts import quote_for_shell
from bubbleviz.render.document import Sentence
from bubbleviz.report.gate import (
    INCREASES,
    LimitKind,
    check_limits,
    check_promises,
    describe_verdict,
    make_baseline_limits,
    parse_limits,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubbleviz.report.gate import Check
    from bubbleviz.report.ratio_summary import ReportSummary

    #: (report, checks, promises). A promise is a (line, whether the promise was kept) pair.
    _Verdict: TypeAlias = tuple[ReportSummary, tuple[Check, ...], tuple[tuple[str, bool], ...]]

#: Exit code used if a value exceeds, or may exceed, its limit. Codes 1 and 2 mean bad input and
#: wrong usage.
TOO_LARGE = 3


@options.command({**options.MARKDOWN, "json": "Print JSON instead of lines."}, switches=("json",))
def gate(
    reports: list[str] = options.REPORT_OR_PROFILES,
    *,
    max_bubble: list[str] | None = option(
        "[RATIO=]LIMIT",
        "Maximum bubble, e.g. 12%, step=12%, or 9ms (per rank).",
        "Limits",
        complete=options.list_limit_prefixes,
    ),
    max_time: list[str] | None = option(
        "[RATIO=]MS",
        "Maximum iteration time, e.g. 120ms.",
        "Limits",
        complete=options.list_limit_prefixes,
    ),
    baseline: str | None = option("MAIN", "Earlier run or report to compare with.", "Limits"),
    max_increase: list[str] | None = option(
        "1pt|2%", "Allowed increase over --baseline, e.g. 1pt for ratios or 2% for times.", "Limits"
    ),
    promised_by: str | None = option(
        "BEFORE", "Fail if following the advice in BEFORE saved less than predicted.", "Limits"
    ),
    allow_incomplete: bool = flag(
        "Check the recorded ranks even if others are missing.", "Limits", "--allow-incomplete"
    ),
    outputs: Outputs,
    measurement: options.MeasurementOptions,
) -> None:
    """Exit with code 3 if a bubble ratio or iteration time may exceed its limit.

    The check also fails if clock uncertainty reaches the limit, or if the report is incomplete
    because ranks, stages, kernels or operations are missing or iterations cannot be told apart.
    With --allow-incomplete, missing ranks are accepted, but problems with the recorded ranks still
    fail the check. --max-bubble, --max-time and --max-increase can be repeated. With --baseline
    alone, ratios may increase by 1pt and times by 2%. --promised-by compares the run with an
    earlier report. If the advice in that report was followed, iterations must be shorter by the
    predicted time. Exit codes: 0 all values are within their limits, 1 a value or the pipeline is
    missing, 2 wrong usage, 3 a value is above its limit.
    """
    limits = [
        *parse_limits(max_bubble or (), LimitKind.BUBBLE),
        *parse_limits(max_time or (), LimitKind.WINDOW),
    ]
    if max_increase and baseline is None:
        raise UsageError("--max-increase needs a report to compare with; add --baseline")
    if not limits and promised_by is None and baseline is None:
        raise UsageError(
            "nothing to check; pass a limit with --max-bubble 12% or --max-time 120ms, or an "
            "earlier report with --baseline or --promised-by"
        )
    if outputs.formats.get("-") == "json" and len(reports) > 1:
        _check_no_json_file(reports)
    checked = measurement.recognize_run(reports, "gate", "checks")
    promising_run, earlier_run = (
        None if path is None else options.recognize_run(path) for path in (promised_by, baseline)
    )
    runs = [run for run in (promising_run, earlier_run, checked) if run is not None]
    outputs.check([file for run in runs for file in run.find_files()])
    promising = None if promising_run is None else measurement.read(promising_run)[0]
    earlier = None if earlier_run is None else measurement.read(earlier_run)[0]
    saved = measurement.read(checked)[0]
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

    def content(public: _Verdict, name: str, _: str) -> str:
        from bubbleviz.render.gate import format_json, format_markdown

        render = format_json if name == "json" else format_markdown
        return render(*public)

    verdict: _Verdict = saved, checks, promises
    with suppress(BrokenPipeError):  # the exit code is still valid even if nobody reads the output
        outputs.deliver(verdict, content, lambda public: _print(_list_lines(public)))
    if not all(is_passed for _, is_passed in _list_lines(verdict)):
        raise typer.Exit(TOO_LARGE)


def _check_no_json_file(paths: Sequence[str]) -> None:
    """Check that no path was meant as the output file of the switch ``--json``.

    Args:
        paths: Two or more paths of the report and the profiles to check.

    Raises:
        UsageError: A path ends with ``.json`` and does not exist.
    """
    for path in paths:
        if path.lower().endswith(".json") and not Path(path).exists():
            quoted = quote_for_shell(path)
            raise UsageError(
                f"{path}: no such file; to write JSON to this file, pass -o {quoted}, or --json > "
                f"{quoted}"
            )


def _list_lines(verdict: _Verdict) -> list[tuple[str, bool]]:
    """Return a (line, whether it passed) pair for each check and each promise."""
    _, checks, promises = verdict
    return [*((check.line, check.passed) for check in checks), *promises]


def _print(lines: Sequence[tuple[str, bool]]) -> None:
    """Print lines that start with a verdict. The verdict is green for a pass and red for a failure.

    Args:
        lines: (line, whether it passed) pairs.
    """
    blocks = []
    for line, is_passed in lines:
        verdict = describe_verdict(is_passed)
        text, style = line.removeprefix(verdict), "green" if is_passed else "bold red"
        blocks.append(Sentence(text, lead=verdict, lead_style=style, is_preformatted=True))
    show(blocks)
