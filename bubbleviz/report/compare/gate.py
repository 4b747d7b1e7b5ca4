"""The gate: limits on the bubble ratios of a saved report, for continuous integration."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.texts import one_line
from bubbleviz.model.values import frozen
from bubbleviz.report.saved import SavedReport


@frozen
class Limit:
    """The most that the mean of a ratio may be, as a fraction of 1, and as it was written."""

    ratio: str
    most: float
    written: str


@frozen
class Check:
    """A limit, and the mean over ``n`` iterations that is compared with it."""

    limit: Limit
    mean: float
    n: int

    @property
    def passed(self) -> bool:
        """Whether the mean is at most the limit."""
        return self.mean <= self.limit.most

    @property
    def line(self) -> str:
        """The line to print: verdict, ratio, value, limit and n."""
        verdict, relation = ("ok", "at most") if self.passed else ("FAILED", "above")
        value = next(
            (text for d in range(4, 17) if _keeps_side(text := f"{self.mean:.{d}f}", self)),
            repr(self.mean),
        )
        name = one_line(self.limit.ratio)
        over = f"{self.n:,} iteration{'' if self.n == 1 else 's'}"
        return f"{verdict}: {name} {value} is {relation} {self.limit.written} (mean of {over})"


def _keeps_side(text: str, check: Check) -> bool:
    """Return whether a rounded mean is on the same side of the limit as the mean."""
    return (float(text) <= check.limit.most) == check.passed


def limits_of(texts: Sequence[str]) -> tuple[Limit, ...]:
    """Return the limits that ``--max-bubble`` gives, as ``schedule=0.12``.

    Raises:
        UsageError: there is none, one is not of that form, or a ratio has two.
    """
    if not texts:
        raise UsageError("nothing to check; give a limit with --max-bubble schedule=0.12")
    limits = tuple(_limit(text) for text in texts)
    names = [limit.ratio for limit in limits]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--max-bubble: {twice!r} has two limits; give one for each ratio")
    return limits


def _limit(text: str) -> Limit:
    name, _, written = (part.strip() for part in text.partition("="))
    try:
        most = float(written)
    except ValueError:
        most = math.nan
    if not name or not 0 <= most <= 1:
        raise UsageError(
            f"--max-bubble {text[:60]!r}: not of the form schedule=0.12, a ratio and a fraction "
            "of 1"
        )
    return Limit(name, most, written)


def checks(saved: SavedReport, limits: Sequence[Limit], path: str) -> tuple[Check, ...]:
    """Return the checks of a report, in the order of the limits.

    Raises:
        InputError: the report has no such ratio, or the ratio has no value: a missing value is
            neither good nor bad.
    """
    results = []
    for limit in limits:
        ratio = saved.ratio(limit.ratio)
        if ratio is None:
            known = ", ".join(r.name for r in saved.ratios)
            raise InputError(f"{path}: no ratio {limit.ratio[:60]!r}; the report has {known}")
        if ratio.bubble.mean is None:
            raise InputError(
                f"{path}: no iteration has the ratio {limit.ratio}, so it cannot be compared with "
                f"{limit.written}; see the report's limitations"
            )
        results.append(Check(limit, ratio.bubble.mean, ratio.bubble.n))
    return tuple(results)
