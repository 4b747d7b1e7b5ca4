"""The gate: limits on bubbles and iterations of a report, for continuous integration."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from bubbleviz.errors import InputError, UsageError
from bubbleviz.explain.recognition.reasons import PIPELINE_UNPROVEN
from bubbleviz.model.texts import counted, one_line, suggestion
from bubbleviz.report.followed import (
    KEPT,
    NOT_FOLLOWED,
    SAME_SAVING,
    FollowedAdvice,
    followed_advice,
    same_work,
)
from bubbleviz.report.remedies import describe_job_difference
from bubbleviz.report.saved import SavedRatio, SavedReport, check_one_kind

if TYPE_CHECKING:
    from bubbleviz.model.limitations import Restriction

#: A number with its unit, as limits are written; one that is not 1 has an exponent of ten.
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(e[-+]?\d+)?\s*(%|ms|pt)?", re.ASCII)
#: What a baseline may be exceeded by where nothing else is said: noise of most runs.
INCREASES = ("1pt", "2%")


@dataclass(frozen=True)
class Limit:
    """The most that a mean over iterations may be.

    Attributes:
        ratio: whose bubble or window it is of; "" for the primary ratio.
        most: a fraction of 1, or milliseconds.
        written: the same for people.
        unit: ``%``, ``ms``, or "" for a fraction.
        window: whether it is of the length of the window rather than of the bubble in it.
    """

    ratio: str
    most: float
    written: str
    unit: str = ""
    window: bool = False


@dataclass(frozen=True)
class Check:
    """A limit, and the ratio of a saved report whose mean is compared with it.

    Attributes:
        limit: the limit.
        ratio: the ratio, which has a mean.
        saved: the report.
        allow_incomplete: whether it may pass though ranks or stages are, or may be, missing.
    """

    limit: Limit
    ratio: SavedRatio
    saved: SavedReport
    allow_incomplete: bool = False

    @property
    def value(self) -> float:
        """What is compared with the limit, in its unit: a fraction, or milliseconds."""
        window_ms = (self.ratio.window_ns.mean or 0.0) / 1e6
        return window_ms if self.limit.window else self._bubble(self.ratio.bubble.mean or 0.0)

    @property
    def high(self) -> float | None:
        """The most that it may be within the bounds of the clocks; None where it is exact."""
        low, high = self.ratio.interval or (None, None)
        return None if low == high or high is None or self.limit.window else self._bubble(high)

    def _bubble(self, ratio: float) -> float:
        """Return a bubble in the unit of the limit."""
        window_ms = (self.ratio.window_ns.mean or 0.0) / 1e6
        return ratio * window_ms if self.limit.unit == "ms" else ratio

    @property
    def within(self) -> bool:
        """Whether the mean is at most the limit."""
        return self.value <= self.limit.most

    @property
    def passed(self) -> bool:
        """Whether the value is known to be at most the limit, and of what may be checked."""
        uncertain = self.high is not None and self.high > self.limit.most
        doubted = _doubts(self.saved, allow_incomplete=self.allow_incomplete)
        return self.within and not uncertain and not doubted

    @property
    def name(self) -> str:
        """What is limited."""
        if self.limit.window:
            return f"window of {one_line(self.limit.ratio)}"
        in_ms = " bubble" if self.limit.unit == "ms" else ""
        return one_line(self.limit.ratio) + in_ms

    @property
    def line(self) -> str:
        """The line to print: verdict, ratio, value, limit and n, and reasons to doubt it."""
        limit, averaged = self.limit, "iteration" if self.saved.of_iterations else "device"
        parts = [
            f"{'ok' if self.passed else 'FAILED'}: {self.name} "
            f"{_written(self.value, limit)} is {'at most' if self.within else 'above'} "
            f"{limit.written} (mean of {counted(self.ratio.bubble.n, averaged)})"
        ]
        if self.within and self.high is not None and self.high > limit.most:
            high = _written(self.high, limit)
            parts.append(f"the clocks' bounds reach {high}, above {limit.written}")
        if self.ratio.contradicted:
            parts.append("it needs clocks that contradict each other")
        if self.saved.restrictions:
            reasons = "; ".join(restriction.text for restriction in self.saved.restrictions)
            parts[0] += f", {'but' if self.within else 'and'} {reasons}"
            of_part = all(restriction.of_part for restriction in self.saved.restrictions)
            if self.within and of_part and not self.allow_incomplete:
                parts.append("--allow-incomplete checks the ranks here")
        if self.saved.kernels is not None:
            parts.append(one_line(self.saved.kernels, 200))
        return "; ".join(parts)


def _written(value: float, limit: Limit) -> str:
    """Return a value in the unit of the limit, rounded so that it stays on its side of that."""
    above = value > limit.most
    scale, unit, least = {"%": (2, " %", 2), "ms": (0, " ms", 3), "": (0, "", 4)}[limit.unit]
    for digits in range(least, 17 - scale):
        text = f"{value * 10**scale:.{digits}f}"
        if (float(f"{text}e-{scale}") > limit.most) == above:
            return text + unit
    return repr(value)


def promises(
    before: SavedReport, after: SavedReport, path: str, *, allow_incomplete: bool = False
) -> tuple[tuple[str, bool], ...]:
    """Return a line on each piece of advice that was followed, and whether its promise was kept.

    If none was followed, the only line says so and compares the iteration times. It passes, because
    there is no promise to keep; limits on the iteration time are checked separately. If the times
    of the changed run are in doubt, no line passes.

    Args:
        before: Report that gives advice.
        after: Report of the changed run.
        path: Path of the first report, for messages.
        allow_incomplete: Whether ranks or stages may be missing; see :func:`checks`.

    Raises:
        UsageError: One report is on bubbles and the other one on idle time.
        InputError: The reports are of different jobs, or the times of the first are in doubt.
    """
    check_one_kind({path: before, "the report to check": after})
    if (job := describe_job_difference(before, after)) is not None:
        raise InputError(
            f"{path}: {job}, so its advice cannot be checked on the later one; give --promised-by "
            "a report of the same job"
        )
    # A saving also holds for ranks that form no pipeline, so long as their times are right.
    doubts, doubts_after = (
        [
            own.text
            for own in _doubts(run, allow_incomplete=allow_incomplete)
            if own.no_pipeline is None
        ]
        for run in (before, after)
    )
    if doubts:
        raise InputError(
            f"{path}: {doubts[0]}, so it promises nothing that can be checked; give another report "
            "with --promised-by"
        )
    advised = followed_advice(before, after)
    followed = [advice for advice in advised if advice.verdict != NOT_FOLLOWED]
    lines = [(advice.line, advice.verdict == KEPT) for advice in followed]
    if not lines:
        lines = [(_explain_no_promise(path, before, advised), True)]
    if doubts_after:
        lines = [
            (f"{line}; but the report to check is {doubts_after[0]}", False) for line, _ in lines
        ]
    return tuple(
        (f"{'ok' if kept else 'FAILED'}: {one_line(line, 600)}", kept) for line, kept in lines
    )


def _doubts(saved: SavedReport, *, allow_incomplete: bool) -> list[Restriction]:
    """Return the restrictions of a report because of which its values prove nothing.

    Args:
        saved: Any report.
        allow_incomplete: Whether ranks or stages may be missing.
    """
    return [own for own in saved.restrictions if not (own.of_part and allow_incomplete)]


def _explain_no_promise(path: str, before: SavedReport, advised: Sequence[FollowedAdvice]) -> str:
    """Return a sentence that explains why no promise is checked.

    Args:
        path: Path of the earlier report.
        before: The earlier report.
        advised: Results of its advice, none of which was followed.
    """
    # If the schedule causes the bubble, there is no saving to check, so ``what_to_do_first`` is
    # quoted below.
    if advised and before.advice:
        first = advised[0]
        is_longer = (first.saved_ratio or 0.0) < -SAME_SAVING
        limited = "; --baseline limits their length" if is_longer else ""
        return (
            f"no advice of {path} was followed, so no promise is checked; {first.action}: "
            f"{first.change}; {first.outcome}{limited}"
        )
    if before.advice:
        return (
            f"{path} promises no saving of {100 * SAME_SAVING:g} % of an iteration or more to check"
        )
    if before.what_to_do_first is None:
        return f"{path} advises nothing"
    return f"{path} promises no saving to check; what to do first: {before.what_to_do_first}"


def limits_of(texts: Sequence[str], option: str = "--max-bubble") -> tuple[Limit, ...]:
    """Return limits, as ``schedule=12%``, ``schedule=0.12`` or ``schedule=9ms`` gives them.

    One without a name is that of the report's primary ratio; its name is empty.

    Args:
        texts: as written.
        option: that gives them: ``--max-time`` limits windows, in milliseconds.

    Raises:
        UsageError: one is not of that form, or a ratio has two in one unit.
    """
    limits = tuple(_limit(text, option) for text in texts)
    keys = [(limit.ratio, limit.unit == "ms") for limit in limits]
    twice = next((name for name, in_ms in keys if keys.count((name, in_ms)) > 1), None)
    if twice is not None:
        raise UsageError(f"{option}: {twice!r} has two limits; give one for each ratio")
    return limits


def _limit(text: str, option: str) -> Limit:
    name, named, written = (part.strip() for part in text.rpartition("="))
    window = option == "--max-time"
    amount, unit = _amount(written)
    top = math.inf if unit == "ms" else 1
    strange = (named and not name) or unit == "pt" or (window and unit != "ms")
    if not strange and unit == "%" and 1 < amount < math.inf:
        raise UsageError(f"{option} {text[:60]!r}: a ratio is 100 % at most; give a lower limit")
    if strange or not 0 <= amount <= top:
        if window:
            form = "120ms or step=120ms, a limit of the primary or of a named window"
            is_meant, missing = not math.isnan(_amount(f"{written}ms")[0]), "ms"
        else:
            form = "30%, 9ms or schedule=30%, a limit of the primary or of a named ratio"
            is_meant, missing = not unit and 1 < amount <= 100, "%"
        of_name = f"{name[:40]}=" if name else ""
        meant = f"; did you mean {of_name}{written}{missing}?" if is_meant else ""
        raise UsageError(f"{option} {text[:60]!r}: not of the form {form}{meant}")
    number = written.removesuffix(unit).rstrip()
    return Limit(name, amount, f"{number} {unit}".rstrip(), unit, window)


def _amount(text: str) -> tuple[float, str]:
    """Return a number and its unit; a percentage or points as a fraction, NaN for no number."""
    match = _NUMBER.fullmatch(text)
    if match is None or (match[2] and match[3]):
        return math.nan, ""
    unit = match[3] or ""
    # A percentage is shifted as decimals are, so that 7 % is the double nearest to 0.07.
    number = match[1] + ("e-2" if unit in ("%", "pt") else match[2] or "")
    return float(number), unit


def limits_above(
    baseline: SavedReport,
    increases: Sequence[str],
    path: str,
    saved: SavedReport,
    *,
    allow_incomplete: bool = False,
) -> tuple[Limit, ...]:
    """Return limits so far above the primary ratio, or the window, of an earlier report.

    The window is the longest that both have. Where iterations have other numbers of microbatches,
    windows are compared per microbatch.

    Args:
        baseline: the report.
        increases: points of the ratio (``1pt``), or a share of the window (``2%``).
        path: of the report, for sentences.
        saved: the report to check.
        allow_incomplete: whether ranks or stages may be missing of the first; see :func:`checks`.

    Raises:
        InputError: its primary ratio is unknown, or not known to be that of the pipeline.
        UsageError: one is neither, or of the reports one is on bubbles, and one on idle time.
    """
    check_one_kind({path: baseline, "the report to check": saved})
    share = same_work(baseline, saved)
    ratio = baseline.ratio(baseline.headline)
    doubts = [own.text for own in _doubts(baseline, allow_incomplete=allow_incomplete)]
    if doubts or ratio is None or ratio.bubble.mean is None or ratio.window_ns.mean is None:
        why = doubts[0] if doubts else f"its {baseline.headline} ratio is unknown"
        raise InputError(
            f"{path}: {why}, so nothing can be compared with it; give another report with "
            "--baseline"
        )
    from bubbleviz.report.comparison import longest

    whole = baseline.ratio(longest((baseline, saved))) or ratio
    limits = []
    for text in increases:
        amount, unit = _amount(text.strip())
        if unit not in ("pt", "%"):
            raise UsageError(
                f"--max-increase {text[:60]!r}: not of the form 1pt, points of the ratio, or 2%, "
                "of the length of iterations"
            )
        number = text.strip().removesuffix(unit).rstrip()
        more = f"{number} {unit} above {one_line(PurePath(path).name, 60)}"
        if saved.ranks != baseline.ranks:
            more += f" ({saved.ranks:,} ranks here, {baseline.ranks:,} there)"
        if unit == "pt":
            of, most, in_unit = ratio, ratio.bubble.mean + amount, "%"
            written = f"{100 * most:.2f} %"
        else:
            of, in_unit = whole, "ms"
            most = (whole.window_ns.mean or 0.0) / 1e6 * (1 + amount) / share
            written = f"{most:.3f} ms"
            if share != 1:
                numbers = f"{saved.microbatches} here, {baseline.microbatches} there"
                more += f" per microbatch ({numbers})"
        limits.append(Limit(of.name, most, f"{written}, {more}", in_unit, unit == "%"))
    return tuple(limits)


def checks(
    saved: SavedReport, limits: Sequence[Limit], path: str, *, allow_incomplete: bool = False
) -> tuple[Check, ...]:
    """Return the checks of a report, in the order of the limits.

    Args:
        saved: the report.
        limits: of its ratios.
        path: of the report, for errors.
        allow_incomplete: whether the ratio of a pipeline may pass of which ranks or stages are, or
            may be, missing; no other restriction may.

    Raises:
        InputError: the report has no such ratio, or is of no pipeline, or the ratio has no value: a
            missing value is neither good nor bad.
    """
    results = []
    for given in limits:
        limit = replace(given, ratio=given.ratio or saved.headline)
        ratio = saved.ratio(limit.ratio)
        if ratio is None:
            known = [r.name for r in saved.ratios]
            raise InputError(
                f"{path}: no ratio {limit.ratio[:60]!r}; the report has {', '.join(known)}"
                f"{suggestion(limit.ratio, known)}"
            )
        if saved.no_pipeline is not None:
            needed = "the profiles of all stages"
            if saved.no_pipeline == PIPELINE_UNPROVEN:
                needed = (
                    "the order of the stages with --order, or the sizes of the run with --parallel"
                )
            raise InputError(
                f"{path}: {saved.no_pipeline}, so {limit.ratio} is no pipeline's bubble and cannot "
                f"be compared with {limit.written}; give analyze {needed}"
            )
        if ratio.bubble.mean is None:
            raise InputError(
                f"{path}: no iteration has the ratio {limit.ratio}, so it cannot be compared with "
                f"{limit.written}; see the report's limitations"
            )
        results.append(Check(limit, ratio, saved, allow_incomplete))
    return tuple(results)
