"""The gate checks bubble ratios and iteration times against limits in continuous integration."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING

from bubbleviz.errors import InputError, UsageError
from bubbleviz.explain.recognition.reasons import PIPELINE_UNPROVEN
from bubbleviz.model.texts import format_count, suggest_word, to_one_line
from bubbleviz.report.compared.followed import (
    KEPT,
    NOT_FOLLOWED,
    SAME_SAVING,
    AdviceResult,
    check_advice,
)
from bubbleviz.report.compared.pair import ReportPair, RunPair, check_same_kind, make_pair
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.ratio_summary import (
    RatioSummary,
    ReportSummary,
    describe_kernel_time,
    find_ratio,
    has_iterations,
)
from bubbleviz.report.restrictions import find_no_pipeline, read_restrictions

if TYPE_CHECKING:
    from bubbleviz.model.restrictions import Restriction

#: Matches the value of a limit: a number, an optional power of ten, and an optional unit.
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(e[-+]?\d+)?\s*(%|ms|pt)?", re.ASCII)
#: Increases over a baseline that are allowed by default. Most runs vary less than that.
INCREASES = ("1pt", "2%")


class LimitKind(Enum):
    """What a limit applies to."""

    #: A bubble ratio or a bubble time.
    BUBBLE = "bubble"
    #: The length of a window.
    WINDOW = "window"


@dataclass(frozen=True)
class InputNames:
    """How messages refer to the inputs of the gate. The defaults are the command-line options.

    Attributes:
        max_bubble: Limits of kind :attr:`LimitKind.BUBBLE`.
        max_time: Limits of kind :attr:`LimitKind.WINDOW`.
        baseline: The earlier run or report that increases are measured from.
        max_increase: The allowed increases.
        promised_by: The earlier report whose advice is checked.
        allow_incomplete: The input that accepts runs with missing ranks or stages.
    """

    max_bubble: str = "--max-bubble"
    max_time: str = "--max-time"
    baseline: str = "--baseline"
    max_increase: str = "--max-increase"
    promised_by: str = "--promised-by"
    allow_incomplete: str = "--allow-incomplete"

    def get_limit_name(self, kind: LimitKind) -> str:
        """Return the name of the input that contains limits of a kind."""
        return self.max_time if kind is LimitKind.WINDOW else self.max_bubble


#: Names of the inputs on the command line.
OPTIONS = InputNames()


@dataclass(frozen=True)
class Limit:
    """The maximum allowed value of a mean over iterations.

    Attributes:
        ratio: Name of the ratio whose bubble or window is limited, or "" for the primary ratio.
        maximum: The limit, either as a fraction or in milliseconds.
        written: The limit as text.
        unit: ``%``, ``ms``, or "" for a fraction.
        kind: What the limit applies to.
    """

    ratio: str
    maximum: float
    written: str
    unit: str = ""
    kind: LimitKind = LimitKind.BUBBLE


@dataclass(frozen=True)
class Check:
    """A limit, and the ratio in a report that is checked against it.

    Attributes:
        limit: The limit.
        ratio: The ratio, whose mean is known.
        saved: The saved report.
        allow_incomplete: Whether the check may pass even if ranks or stages may be missing.
        names: Names of the inputs, for the line.
    """

    limit: Limit
    ratio: RatioSummary
    saved: ReportSummary
    allow_incomplete: bool = False
    names: InputNames = OPTIONS

    @property
    def value(self) -> float:
        """The checked value, in the limit's unit: a fraction or milliseconds."""
        window_ms = (self.ratio.window_ns.mean or 0.0) / 1e6
        is_window = self.limit.kind is LimitKind.WINDOW
        return window_ms if is_window else self._convert(self.ratio.bubble.mean or 0.0)

    @property
    def high(self) -> float | None:
        """Upper bound of the value, given clock uncertainty. None if it is exact or unknown."""
        low, high = self.ratio.interval or (None, None)
        if low == high or high is None or self.limit.kind is LimitKind.WINDOW:
            return None
        return self._convert(high)

    def _convert(self, ratio: float) -> float:
        """Return a bubble ratio in the unit of the limit."""
        window_ms = (self.ratio.window_ns.mean or 0.0) / 1e6
        return ratio * window_ms if self.limit.unit == "ms" else ratio

    @property
    def within(self) -> bool:
        """Whether the mean does not exceed the limit."""
        return self.value <= self.limit.maximum

    @property
    def passed(self) -> bool:
        """Whether the value and its upper bound are within the limit, and no restriction applies.

        With ``allow_incomplete``, restrictions that say only that ranks or stages are missing are
        ignored.
        """
        is_uncertain = self.high is not None and self.high > self.limit.maximum
        doubts = _list_doubts(self.saved, allow_incomplete=self.allow_incomplete)
        return self.within and not is_uncertain and not doubts

    @property
    def name(self) -> str:
        """Name of the quantity that is limited."""
        if self.limit.kind is LimitKind.WINDOW:
            return f"window of {to_one_line(self.limit.ratio)}"
        in_ms = " bubble" if self.limit.unit == "ms" else ""
        return to_one_line(self.limit.ratio) + in_ms

    @property
    def line(self) -> str:
        """A line that gives the verdict, ratio, value, limit, sample size and reasons for doubt.

        Possible reasons for doubt are restrictions, an upper bound above the limit, contradictory
        clocks, and the sentence on kernel time. If all restrictions are about missing ranks or
        stages, the line says how to allow that.
        """
        limit = self.limit
        averaged = "iteration" if has_iterations(self.saved) else "device"
        value = _format_value(self.value, limit)
        samples = format_count(self.ratio.bubble.n, averaged)
        relation = f"{'at most' if self.within else 'above'} {limit.written}"
        verdict = f"{describe_verdict(self.passed)}: {self.name} {value} is {relation}"
        verdict += f" (mean of {samples})"
        restrictions = read_restrictions(self.saved.restrictions)
        if restrictions:
            reasons = "; ".join(restriction.text for restriction in restrictions)
            verdict += f", {'but' if self.within else 'and'} {reasons}"
        parts = [verdict]
        if self.within and self.high is not None and self.high > limit.maximum:
            high = _format_value(self.high, limit)
            parts.append(f"clock uncertainty allows up to {high}, above {limit.written}")
        if self.ratio.contradicted:
            parts.append("it relies on clocks that contradict each other")
        is_only_incomplete = bool(restrictions) and all(
            restriction.is_missing_part for restriction in restrictions
        )
        if self.within and is_only_incomplete and not self.allow_incomplete:
            parts.append(f"to check only the recorded ranks, pass {self.names.allow_incomplete}")
        kernel_time = describe_kernel_time(self.saved)
        if kernel_time is not None:
            parts.append(to_one_line(kernel_time, 200))
        return "; ".join(parts)


def describe_verdict(has_passed: bool) -> str:
    """Return the verdict at the start of the line for a check or promise: ``ok`` or ``FAILED``."""
    return "ok" if has_passed else "FAILED"


def _format_value(value: float, limit: Limit) -> str:
    """Format a value in the unit of a limit.

    The text has enough digits to show whether the value is above the limit.
    """
    is_above = value > limit.maximum
    exponent, unit, min_digits = {"%": (2, " %", 2), "ms": (0, " ms", 3), "": (0, "", 4)}[
        limit.unit
    ]
    for digits in range(min_digits, 17 - exponent):
        text = f"{value * 10**exponent:.{digits}f}"
        if (float(f"{text}e-{exponent}") > limit.maximum) == is_above:
            return text + unit
    return repr(value)


def check_promises(
    earlier: ReportSummary,
    later: ReportSummary,
    path: str,
    *,
    allow_incomplete: bool = False,
    names: InputNames = OPTIONS,
) -> tuple[tuple[str, bool], ...]:
    """Check whether following the advice saved as much time as promised.

    If no advice was followed, a single line says so and compares the iteration times. This line
    passes, because there was no promise to keep. If restrictions make the changed run's times
    unreliable, all lines fail.

    Args:
        earlier: Report that contains the advice.
        later: Report on the changed run.
        path: Path of the earlier report, used in messages.
        allow_incomplete: Whether ranks or stages may be missing; see :func:`check_limits`.
        names: Names of the inputs, for messages.

    Returns:
        (line, passed) pairs, one for each piece of advice that was followed. A line passes if the
        promise was kept.

    Raises:
        UsageError: One report is on bubbles and the other report is on idle time.
        InputError: The reports are on different jobs, or restrictions make the times of the earlier
            report unreliable.
    """
    check_same_kind({path: earlier, "the report to check": later})
    pair = make_pair(earlier, later)
    if pair.job_difference is not None:
        raise InputError(
            f"{path}: {pair.job_difference}, so its advice cannot be checked against the later "
            f"run: pass a report on the same job with {names.promised_by}"
        )
    doubts, doubts_after = (
        _list_doubts_of_times(run, allow_incomplete=allow_incomplete) for run in (earlier, later)
    )
    if doubts:
        raise InputError(
            f"{path}: {doubts[0]}, so its predictions cannot be checked: pass another report with "
            f"{names.promised_by}"
        )
    results = check_advice(pair)
    lines = [
        (result.line, result.verdict == KEPT)
        for result in results
        if result.verdict != NOT_FOLLOWED
    ]
    if not lines:
        lines = [(_explain_no_promise(path, earlier, results, names), True)]
    if doubts_after:
        lines = [
            (f"{line}; but the report to check is {doubts_after[0]}", False) for line, _ in lines
        ]
    return tuple(
        (f"{describe_verdict(is_kept)}: {to_one_line(line, 600)}", is_kept)
        for line, is_kept in lines
    )


def _list_doubts(saved: ReportSummary, *, allow_incomplete: bool) -> list[Restriction]:
    """Return the restrictions that make the values in a report unreliable.

    Args:
        saved: A report from ``analyze`` or ``idle``.
        allow_incomplete: Whether to leave out restrictions that say only that ranks or stages are
            missing.
    """
    restrictions = read_restrictions(saved.restrictions)
    return [
        restriction
        for restriction in restrictions
        if not (restriction.is_missing_part and allow_incomplete)
    ]


def _list_doubts_of_times(saved: ReportSummary, *, allow_incomplete: bool) -> list[str]:
    """Return the texts of the restrictions that make the times in a report unreliable.

    Restrictions that say only that the ranks do not form a pipeline are left out, because time can
    be saved even without a pipeline.
    """
    doubts = _list_doubts(saved, allow_incomplete=allow_incomplete)
    return [restriction.text for restriction in doubts if restriction.no_pipeline_reason is None]


def _explain_no_promise(
    path: str, earlier: ReportSummary, results: Sequence[AdviceResult], names: InputNames
) -> str:
    """Return a sentence that explains why no promise is checked.

    Args:
        path: Path of the earlier report.
        earlier: The earlier report.
        results: Results of the earlier report's advice, none of which was followed.
        names: Names of the inputs, for the sentence.
    """
    # If the bubble is caused by the schedule, there is no saving to check. In that case, the text
    # below quotes ``what_to_do_first``.
    advice = [] if isinstance(earlier, IdleSummary) else earlier.advice
    if results and advice:
        first = results[0]
        is_longer = (first.saved_ratio or 0.0) < -SAME_SAVING
        limited = f". To limit the length of iterations, pass {names.baseline}" if is_longer else ""
        return (
            f"no advice in {path} was followed, so no promise is checked. {first.action}: "
            f"{first.change}; {first.outcome}{limited}"
        )
    if advice:
        return (
            f"{path} promises no saving of at least {100 * SAME_SAVING:g} % of an iteration, so "
            "there is nothing to check"
        )
    if earlier.what_to_do_first is None:
        return f"{path} contains no advice"
    return (
        f"{path} promises no saving, so there is nothing to check. What it recommends first: "
        f"{earlier.what_to_do_first}"
    )


def parse_limits(
    texts: Sequence[str], kind: LimitKind = LimitKind.BUBBLE, names: InputNames = OPTIONS
) -> tuple[Limit, ...]:
    """Parse limits such as ``schedule=12%``, ``schedule=0.12`` or ``schedule=9ms``.

    A limit without a ratio's name applies to the report's primary ratio.

    Args:
        texts: The limits. Limits of windows are in milliseconds.
        kind: What the limits apply to.
        names: Names of the inputs, for messages.

    Raises:
        UsageError: A limit is malformed, or a ratio has two limits of the same kind (times in ms,
            or ratios).
    """
    option = names.get_limit_name(kind)
    limits = tuple(_parse_limit(text, kind, option) for text in texts)
    keys = [(limit.ratio, limit.unit == "ms") for limit in limits]
    duplicate = next((name for name, in_ms in keys if keys.count((name, in_ms)) > 1), None)
    if duplicate is not None:
        raise UsageError(f"{option}: {duplicate!r} has two limits: pass only one per ratio")
    return limits


def _parse_limit(text: str, kind: LimitKind, option: str) -> Limit:
    """Parse one limit; see :func:`parse_limits`.

    Args:
        text: The limit.
        kind: What the limit applies to.
        option: Name of the input that contains the limit, for messages.

    Raises:
        UsageError: The limit is malformed.
    """
    name, equals, limit_text = (part.strip() for part in text.rpartition("="))
    amount, unit = _parse_number(limit_text)
    largest = math.inf if unit == "ms" else 1
    has_wrong_unit = unit == "pt" or (kind is LimitKind.WINDOW and unit != "ms")
    is_malformed = has_wrong_unit or (equals and not name)
    if not is_malformed and unit == "%" and 1 < amount < math.inf:
        raise UsageError(f"{option} {text[:60]!r}: a ratio cannot exceed 100 %: pass a lower limit")
    if is_malformed or not 0 <= amount <= largest:
        raise _make_limit_error(text, kind, option)
    number = limit_text.removesuffix(unit).rstrip()
    return Limit(name, amount, f"{number} {unit}".rstrip(), unit, kind)


def _make_limit_error(text: str, kind: LimitKind, option: str) -> UsageError:
    """Return the error for a malformed limit. If only the unit is missing, it suggests a fix.

    Args:
        text: The limit.
        kind: What the limit applies to. The error message shows the valid forms of this kind.
        option: Name of the input that contains the limit.
    """
    name, _, limit_text = (part.strip() for part in text.rpartition("="))
    amount, unit = _parse_number(limit_text)
    if kind is LimitKind.WINDOW:
        form = "120ms for the window of the primary ratio, or step=120ms for another window"
        missing_unit = "ms"
        is_unit_missing = not math.isnan(_parse_number(f"{limit_text}ms")[0])
    else:
        form = "30% or 9ms for the primary ratio, or schedule=30% for another ratio"
        missing_unit = "%"
        is_unit_missing = not unit and 1 < amount <= 100
    prefix = f"{name[:40]}=" if name else ""
    hint = f"; did you mean {prefix}{limit_text}{missing_unit}?" if is_unit_missing else ""
    return UsageError(f"{option} {text[:60]!r}: must have the form {form}{hint}")


def _parse_number(text: str) -> tuple[float, str]:
    """Parse a number and its unit: ``%``, ``ms``, ``pt`` or "".

    Percentages and percentage points are returned as fractions of 1. The number is NaN if the text
    is malformed.
    """
    match = _NUMBER.fullmatch(text)
    if match is None or (match[2] and match[3]):
        return math.nan, ""
    unit = match[3] or ""
    # Move the decimal point within the text so that 7 % becomes the double nearest to 0.07.
    exponent = "e-2" if unit in ("%", "pt") else match[2] or ""
    return float(match[1] + exponent), unit


def make_baseline_limits(
    baseline: ReportSummary,
    increases: Sequence[str],
    path: str,
    saved: ReportSummary,
    *,
    allow_incomplete: bool = False,
    names: InputNames = OPTIONS,
) -> tuple[Limit, ...]:
    """Return the limits that allow the given increases over a baseline, one for each increase.

    - An increase in percentage points (``1pt``) limits the primary ratio.
    - An increase in percent (``2%``) limits the longest window that both reports have. If
      iterations do unequal amounts of work, windows per microbatch are compared.

    Args:
        baseline: Report of an earlier run.
        increases: Allowed increases, such as ``1pt`` or ``2%``.
        path: Path of the baseline, for messages.
        saved: Report to check.
        allow_incomplete: Whether ranks or stages of the baseline may be missing; see
            :func:`check_limits`.
        names: Names of the inputs, for messages.

    Raises:
        InputError: The primary ratio of the baseline is unknown or restricted.
        UsageError: An increase is malformed, or one report is on bubbles and the other report is on
            idle time.
    """
    check_same_kind({path: baseline, "the report to check": saved})
    ratio = find_ratio(baseline, baseline.headline)
    doubts = [
        restriction.text
        for restriction in _list_doubts(baseline, allow_incomplete=allow_incomplete)
    ]
    if doubts or ratio is None or ratio.bubble.mean is None or ratio.window_ns.mean is None:
        reason = doubts[0] if doubts else f"its {baseline.headline} ratio is unknown"
        raise InputError(
            f"{path}: {reason}, so nothing can be compared with it: pass another report with "
            f"{names.baseline}"
        )
    pair = make_pair(baseline, saved)
    parsed = [_parse_increase(text, names.max_increase) for text in increases]
    return tuple(_make_baseline_limit(increase, pair, ratio, path) for increase in parsed)


@dataclass(frozen=True)
class _Increase:
    """An allowed increase over a baseline.

    Attributes:
        amount: The increase as a fraction of 1.
        unit: ``pt`` for percentage points of a ratio, or ``%`` for a percentage of a time.
        written: The increase as text.
    """

    amount: float
    unit: str
    written: str


def _parse_increase(text: str, option: str) -> _Increase:
    """Parse an increase such as ``1pt`` or ``2%``.

    Args:
        text: The increase.
        option: Name of the input that contains the increase, for the message.

    Raises:
        UsageError: The increase is malformed.
    """
    amount, unit = _parse_number(text.strip())
    if unit not in ("pt", "%"):
        raise UsageError(
            f"{option} {text[:60]!r}: must be percentage points of the ratio, such as 1pt, or a "
            "percentage of the iteration time, such as 2%"
        )
    number = text.strip().removesuffix(unit).rstrip()
    return _Increase(amount, unit, f"{number} {unit}")


def _make_baseline_limit(
    increase: _Increase, pair: ReportPair, primary: RatioSummary, path: str
) -> Limit:
    """Return the limit that allows one increase over a baseline.

    - Percentage points are added to the primary ratio of the baseline.
    - A percentage gives a limit in ms. The longest window that both reports have is taken from the
      baseline, scaled to equal work, and increased by the percentage.

    Args:
        increase: The allowed increase.
        pair: The baseline and the report to check.
        primary: Primary ratio of the baseline, whose mean is known.
        path: Path of the baseline, for the text of the limit.
    """
    baseline, saved = pair.earlier, pair.later
    reason = f"{increase.written} above {to_one_line(PurePath(path).name, 60)}"
    n_ranks, n_baseline_ranks = len(saved.ranks), len(baseline.ranks)
    if n_ranks != n_baseline_ranks:
        reason += f" ({n_ranks:,} ranks here, {n_baseline_ranks:,} in the baseline)"
    if increase.unit == "pt":
        maximum = (primary.bubble.mean or 0.0) + increase.amount
        return Limit(primary.name, maximum, f"{100 * maximum:.2f} %, {reason}", "%")
    longest = find_ratio(baseline, pair.longest_ratio) or primary
    maximum = (longest.window_ns.mean or 0.0) / 1e6 * (1 + increase.amount) / pair.equal_work
    if isinstance(pair, RunPair) and pair.is_per_microbatch:
        numbers = f"{pair.later.microbatches} here, {pair.earlier.microbatches} in the baseline"
        reason += f" per microbatch ({numbers})"
    written = f"{maximum:.3f} ms, {reason}"
    return Limit(longest.name, maximum, written, "ms", LimitKind.WINDOW)


def check_limits(
    saved: ReportSummary,
    limits: Sequence[Limit],
    path: str,
    *,
    allow_incomplete: bool = False,
    names: InputNames = OPTIONS,
) -> tuple[Check, ...]:
    """Compare the ratios in a report with limits.

    A limit without the name of a ratio applies to the primary ratio.

    Args:
        saved: The saved report.
        limits: Limits on the ratios in the report.
        path: Path of the report, used in messages.
        allow_incomplete: Whether checks may pass even if ranks or stages may be missing. All other
            restrictions still make a check fail.
        names: Names of the inputs, for the lines of the checks.

    Returns:
        One check per limit, in the order of the limits.

    Raises:
        InputError: The report does not contain a limit's ratio, the mean of this ratio is unknown,
            or the ranks do not form a complete pipeline.
    """
    checks = []
    no_pipeline = find_no_pipeline(saved.restrictions)
    for unnamed in limits:
        limit = replace(unnamed, ratio=unnamed.ratio or saved.headline)
        ratio = find_ratio(saved, limit.ratio)
        if ratio is None:
            ratio_names = list(saved.summary.bubble_ratio)
            raise InputError(
                f"{path}: the report has no ratio {limit.ratio[:60]!r}, only "
                f"{', '.join(ratio_names)}{suggest_word(limit.ratio, ratio_names)}"
            )
        if no_pipeline is not None:
            remedy = "pass the profiles of all stages to bubbleviz analyze"
            if no_pipeline == PIPELINE_UNPROVEN:
                remedy = (
                    "analyze the run again with the order of its stages (--order) or its sizes "
                    "(--parallel)"
                )
            raise InputError(
                f"{path}: {no_pipeline}, so {limit.ratio} is not the bubble of a pipeline and "
                f"cannot be compared with {limit.written}: {remedy}"
            )
        if ratio.bubble.mean is None:
            raise InputError(
                f"{path}: the ratio {limit.ratio} is unknown in all iterations, so it cannot be "
                f"compared with {limit.written}: see the limitations in the report"
            )
        checks.append(Check(limit, ratio, saved, allow_incomplete, names))
    return tuple(checks)
