"""The gate: limits on the bubble ratios of a saved report, for continuous integration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bubbleviz.errors import InputError, UsageError
from bubbleviz.explain.recognition.reasons import PIPELINE_UNPROVEN
from bubbleviz.model.limitations import Restriction
from bubbleviz.model.texts import one_line, suggestion
from bubbleviz.model.values import frozen
from bubbleviz.report.saved import SavedRatio, SavedReport


@frozen
class Limit:
    """The most that the mean of a ratio may be, as a fraction of 1, and as it was written."""

    ratio: str
    most: float
    written: str

    @property
    def in_percent(self) -> bool:
        """Whether it is written in percent."""
        return "%" in self.written


@frozen
class Check:
    """A limit, and the mean over ``n`` iterations that is compared with it.

    Attributes:
        limit: the limit.
        mean: of the ratio.
        n: iterations that it is the mean of.
        high: the most that the mean may be within the bounds of the clocks; None where these are
            not known, or the ratio is exact.
        contradicted: whether the ratio needs clocks that contradict each other.
        restrictions: why the ratio is not that of a whole pipeline.
        allow_incomplete: whether it may pass though ranks or stages are, or may be, missing.
        kernels: for how much of the time kernels ran, in words, where that stands beside the ratio.
    """

    limit: Limit
    mean: float
    n: int
    high: float | None = None
    contradicted: bool = False
    restrictions: tuple[Restriction, ...] = ()
    allow_incomplete: bool = False
    kernels: str | None = None

    @property
    def within(self) -> bool:
        """Whether the mean is at most the limit."""
        return self.mean <= self.limit.most

    @property
    def uncertain(self) -> bool:
        """Whether the bounds of the clocks reach above the limit."""
        return self.high is not None and self.high > self.limit.most

    @property
    def passed(self) -> bool:
        """Whether the ratio is known to be at most the limit, and of what may be checked."""
        allowed = all(own.of_part and self.allow_incomplete for own in self.restrictions)
        return self.within and not self.uncertain and allowed

    @property
    def line(self) -> str:
        """The line to print: verdict, ratio, value, limit and n, and reasons to doubt it."""
        verdict = "ok" if self.passed else "FAILED"
        relation = "at most" if self.within else "above"
        value = _written(self.mean, self.limit)
        name = one_line(self.limit.ratio)
        over = f"{self.n:,} iteration{'' if self.n == 1 else 's'}"
        verdict = f"{verdict}: {name} {value} is {relation} {self.limit.written} (mean of {over})"
        return "; ".join((verdict, *self._doubts()))

    def _doubts(self) -> Iterator[str]:
        """Yield why the ratio may be another one."""
        if self.within and self.uncertain and self.high is not None:
            high = _written(self.high, self.limit)
            yield f"the clocks' bounds reach {high}, above {self.limit.written}"
        if self.contradicted:
            yield "it needs clocks that contradict each other"
        if self.restrictions:
            reasons = "; ".join(restriction.text for restriction in self.restrictions)
            yield f"{reasons}, see the report's limitations"
        if self.kernels is not None:
            yield one_line(self.kernels, 200)


def _written(value: float, limit: Limit) -> str:
    """Return a value as the limit is written, rounded so that it stays on its side of that."""
    above = value > limit.most
    scale, unit, least = (2, " %", 2) if limit.in_percent else (0, "", 4)
    for digits in range(least, 17 - scale):
        text = f"{value * 10**scale:.{digits}f}"
        if (float(f"{text}e-{scale}") > limit.most) == above:
            return text + unit
    return repr(value)


def limits_of(texts: Sequence[str]) -> tuple[Limit, ...]:
    """Return the limits that ``--max-bubble`` gives, as ``schedule=12%`` or ``schedule=0.12``.

    Raises:
        UsageError: there is none, one is not of that form, or a ratio has two.
    """
    if not texts:
        raise UsageError("nothing to check; give a limit with --max-bubble schedule=12%")
    limits = tuple(_limit(text) for text in texts)
    names = [limit.ratio for limit in limits]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--max-bubble: {twice!r} has two limits; give one for each ratio")
    return limits


def _limit(text: str) -> Limit:
    name, _, written = (part.strip() for part in text.partition("="))
    number = written.removesuffix("%").rstrip()
    try:
        # A percentage is shifted as decimals are, so that 7 % is the double nearest to 0.07.
        most = float(f"{number}e-2" if "%" in written else number)
    except ValueError:
        most = math.nan
    if not name or not 0 <= most <= 1:
        raise UsageError(
            f"--max-bubble {text[:60]!r}: not of the form schedule=12% or schedule=0.12, a ratio "
            f"and its limit{_in_percent(name, number, most)}"
        )
    return Limit(name, most, written)


def _in_percent(name: str, number: str, most: float) -> str:
    """Return the suggestion to write as a percentage what can be one; "" for all else."""
    return f"; did you mean {name[:40]}={number}%?" if name and 1 < most <= 100 else ""


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
    for limit in limits:
        ratio = saved.ratio(limit.ratio)
        if ratio is None:
            known = [r.name for r in saved.ratios]
            raise InputError(
                f"{path}: no ratio {limit.ratio[:60]!r}; the report has {', '.join(known)}"
                f"{suggestion(limit.ratio, known)}"
            )
        if saved.no_pipeline is not None:
            needed = _missing_input(saved.no_pipeline)
            raise InputError(
                f"{path}: {saved.no_pipeline}, so {limit.ratio} is no pipeline's bubble and cannot "
                f"be compared with {limit.written}; give analyze {needed}"
            )
        if ratio.bubble.mean is None:
            raise InputError(
                f"{path}: no iteration has the ratio {limit.ratio}, so it cannot be compared with "
                f"{limit.written}; see the report's limitations"
            )
        results.append(
            Check(
                limit,
                ratio.bubble.mean,
                ratio.bubble.n,
                _upper_bound(ratio),
                ratio.contradicted,
                saved.restrictions,
                allow_incomplete,
                saved.kernels,
            )
        )
    return tuple(results)


def _missing_input(reason: str) -> str:
    """Return what a report that is of no whole pipeline for this reason was made without."""
    if reason == PIPELINE_UNPROVEN:
        return "the order of the stages with --order, or the sizes of the run with --parallel"
    return "the profiles of all stages"


def _upper_bound(ratio: SavedRatio) -> float | None:
    """Return the upper bound of a mean by the clocks; None where the mean is exact."""
    if ratio.interval is None or ratio.interval[0] == ratio.interval[1]:
        return None
    return ratio.interval[1]
