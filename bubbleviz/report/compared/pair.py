"""A pair of reports, one before and one after a change, and the ratios that they compare by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import COUNTED

if TYPE_CHECKING:
    from bubbleviz.report.saved import SavedReport

#: Labels of the phases whose times add up to the work of a microbatch.
COMPUTE = frozenset(phase.label for phase in COUNTED)
#: Maximum relative change of work that counts as the same: clock rates and temperatures differ
#: between runs.
SAME_WORK = 0.05
#: Ratios with the longest windows, longest first: from an iteration to the next one, and from an
#: iteration's start to the end of its optimizer.
LONGEST_FIRST = ("period", "step")


@dataclass(frozen=True)
class RunPair:
    """Reports of two runs.

    Attributes:
        before: Report of the earlier run.
        after: Report of the later run.
    """

    before: SavedReport
    after: SavedReport

    @cached_property
    def job_difference(self) -> str | None:
        """Clause that says how the two jobs differ, or None if they may be the same job.

        Two runs of the same job have equal numbers of ranks and stages.
        """
        before, after = self.before, self.after
        if before.ranks != after.ranks:
            return f"the runs have {before.ranks:,} and {after.ranks:,} ranks"
        then, now = count_stages(before), count_stages(after)
        if then is not None and now is not None and then != now:
            return f"the runs have {then:,} and {now:,} stages"
        return None

    @cached_property
    def equal_work(self) -> float:
        """Number of later iterations that do the work of one earlier iteration.

        This is the ratio of the numbers of microbatches. It is 1 if either number is unknown, or
        if operations got shorter in proportion, since the same batch was then divided into more
        microbatches.
        """
        before, after = self.before, self.after
        if not before.microbatches or not after.microbatches:
            return 1.0
        share = before.microbatches / after.microbatches
        then_ns, now_ns = sum_work_ns(before), sum_work_ns(after)
        times = now_ns / then_ns if then_ns and now_ns else 1.0
        is_divided = abs(math.log(times)) > abs(math.log(times / share))
        return 1.0 if is_divided else share

    @property
    def is_per_microbatch(self) -> bool:
        """Whether times per microbatch are compared, because iterations do unequal work."""
        return self.equal_work != 1

    @cached_property
    def longest_ratio(self) -> str:
        """Name of the ratio whose windows give the iteration time of both runs."""
        return choose_longest_ratio((self.before, self.after))


def sum_work_ns(run: SavedReport) -> float:
    """Return the compute time of a microbatch, summed over all stages."""
    return sum(ns for (_, phase), ns in run.stage_ns.items() if phase in COMPUTE)


def count_stages(run: SavedReport) -> int | None:
    """Return the number of stages whose times are known, or None if there are none."""
    return len({stage for stage, _ in run.stage_ns}) or None


def choose_headline_ratio(runs: Sequence[SavedReport]) -> str:
    """Return the name of the ratio that runs are compared by, whatever their order.

    This is the primary ratio if all runs have the same one. Otherwise it is the ratio with the
    longest window among the ratios that all runs have, because a longer window shows more of the
    time. If the runs have no ratio in common, it is one of their primary ratios.
    """
    primary = sorted({run.headline for run in runs})
    if len(primary) == 1:
        return primary[0]
    others = [ratio.name for run in runs for ratio in run.ratios]
    candidates = (*LONGEST_FIRST, *primary, *others)
    return next((name for name in candidates if is_common_ratio(name, runs)), primary[0])


def is_common_ratio(name: str, runs: Sequence[SavedReport]) -> bool:
    """Return whether all runs have a mean of a ratio."""
    ratios = [run.ratio(name) for run in runs]
    return all(ratio is not None and ratio.bubble.mean is not None for ratio in ratios)


def choose_longest_ratio(runs: Sequence[SavedReport]) -> str:
    """Return the name of the ratio whose windows give the iteration time.

    This is the ratio with the longest window that all runs have. Shorter windows leave out the
    time between the last backward and the next forward. If a run has only one window of a ratio,
    and more windows of the primary ratio, the ratio is not chosen: one window has no spread to
    test by.
    """
    primary = choose_headline_ratio(runs)
    for name in LONGEST_FIRST:
        if is_common_ratio(name, runs) and all(_is_testable(run, name, primary) for run in runs):
            return name
    return primary


def _is_testable(run: SavedReport, name: str, primary: str) -> bool:
    """Return whether a run has two windows of a ratio, or as many as of the primary ratio."""
    ratio, primary_ratio = run.ratio(name), run.ratio(primary)
    if ratio is None or primary_ratio is None:
        return False
    return ratio.window_ns.n >= min(2, primary_ratio.window_ns.n)


def check_same_kind(reports: Mapping[str, SavedReport]) -> None:
    """Check that all reports are on bubbles, or all on idle time.

    Args:
        reports: Reports, keyed by path.

    Raises:
        UsageError: There are reports of both kinds.
    """
    path_of_kind = {saved.of_pipeline: path for path, saved in reports.items()}
    if len(path_of_kind) > 1:
        raise UsageError(
            f"{path_of_kind[False]} is on idle time, and {path_of_kind[True]} on the bubbles of a "
            "pipeline; compare reports of one kind"
        )
