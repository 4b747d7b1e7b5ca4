"""The gate: limits on the bubble ratios of a saved report, for continuous integration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bubbleviz.errors import InputError, UsageError
from bubbleviz.explain.recognition.reasons import PIPELINE_UNPROVEN
from bubbleviz.model.texts import counted, one_line, suggestion
from bubbleviz.report.followed import KEPT, NOT_FOLLOWED, followed_advice
from bubbleviz.report.saved import SavedRatio, SavedReport


@dataclass(frozen=True)
class Limit:
    """The most that the mean of a ratio may be, as a fraction of 1, and as it was written."""

    ratio: str
    most: float
    written: str


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
    def mean(self) -> float:
        """The mean of the ratio."""
        return self.ratio.bubble.mean or 0.0

    @property
    def high(self) -> float | None:
        """The most that it may be within the bounds of the clocks; None where it is exact."""
        low, high = self.ratio.interval or (None, None)
        return None if low == high else high

    @property
    def within(self) -> bool:
        """Whether the mean is at most the limit."""
        return self.mean <= self.limit.most

    @property
    def passed(self) -> bool:
        """Whether the ratio is known to be at most the limit, and of what may be checked."""
        uncertain = self.high is not None and self.high > self.limit.most
        allowed = all(own.of_part and self.allow_incomplete for own in self.saved.restrictions)
        return self.within and not uncertain and allowed

    @property
    def line(self) -> str:
        """The line to print: verdict, ratio, value, limit and n, and reasons to doubt it."""
        limit = self.limit
        parts = [
            f"{'ok' if self.passed else 'FAILED'}: {one_line(limit.ratio)} "
            f"{_written(self.mean, limit)} is {'at most' if self.within else 'above'} "
            f"{limit.written} (mean of {counted(self.ratio.bubble.n, 'iteration')})"
        ]
        if self.within and self.high is not None and self.high > limit.most:
            high = _written(self.high, limit)
            parts.append(f"the clocks' bounds reach {high}, above {limit.written}")
        if self.ratio.contradicted:
            parts.append("it needs clocks that contradict each other")
        if self.saved.restrictions:
            reasons = "; ".join(restriction.text for restriction in self.saved.restrictions)
            parts.append(f"{reasons}, see the report's limitations")
        if self.saved.kernels is not None:
            parts.append(one_line(self.saved.kernels, 200))
        return "; ".join(parts)


def _written(value: float, limit: Limit) -> str:
    """Return a value as the limit is written, rounded so that it stays on its side of that."""
    above = value > limit.most
    scale, unit, least = (2, " %", 2) if "%" in limit.written else (0, "", 4)
    for digits in range(least, 17 - scale):
        text = f"{value * 10**scale:.{digits}f}"
        if (float(f"{text}e-{scale}") > limit.most) == above:
            return text + unit
    return repr(value)


def promises(before: SavedReport, after: SavedReport, path: str) -> tuple[tuple[str, bool], ...]:
    """Return a line on each advice that was followed, and whether it was kept.

    Where none was followed, though some was given, the one line says so, and fails.

    Args:
        before: the report that gives advice.
        after: that of the changed run.
        path: of the first one, for the line.
    """
    followed = [own for own in followed_advice(before, after) if own.verdict != NOT_FOLLOWED]
    lines = [(own.line, own.verdict == KEPT) for own in followed]
    if not before.advices:
        lines = [(f"{path} advises nothing", True)]
    elif not lines:
        lines = [(f"no advice of {path} was followed", False)]
    return tuple(
        (f"{'ok' if kept else 'FAILED'}: {one_line(line, 600)}", kept) for line, kept in lines
    )


def limits_of(texts: Sequence[str]) -> tuple[Limit, ...]:
    """Return the limits that ``--max-bubble`` gives, as ``schedule=12%`` or ``schedule=0.12``.

    ``12%`` alone is that of the report's primary ratio; its name is empty.

    Raises:
        UsageError: one is not of that form, or a ratio has two.
    """
    limits = tuple(_limit(text) for text in texts)
    names = [limit.ratio for limit in limits]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--max-bubble: {twice!r} has two limits; give one for each ratio")
    return limits


def _limit(text: str) -> Limit:
    name, named, written = (part.strip() for part in text.rpartition("="))
    number = written.removesuffix("%").rstrip()
    try:
        # A percentage is shifted as decimals are, so that 7 % is the double nearest to 0.07.
        most = float(f"{number}e-2" if "%" in written else number)
    except ValueError:
        most = math.nan
    if (named and not name) or not 0 <= most <= 1:
        meant = f"; did you mean {name[:40]}={number}%?" if name and 1 < most <= 100 else ""
        raise UsageError(
            f"--max-bubble {text[:60]!r}: not of the form schedule=12% or schedule=0.12, a ratio "
            f"and its limit{meant}"
        )
    return Limit(name, most, written)


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
