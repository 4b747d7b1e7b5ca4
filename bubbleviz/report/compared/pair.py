"""A pair of reports, one before and one after a change, and the ratios to compare them by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import COUNTED
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.ratio_summary import ReportSummary, find_ratio
from bubbleviz.report.summary import PhaseTimeEntry, RunSummary

#: Labels of the phases whose times add up to the work of a microbatch.
COMPUTE = frozenset(phase.label for phase in COUNTED)
#: Maximum relative difference between the compute times of the same work in two runs. Clock rates
#: and temperatures differ between runs.
SAME_WORK = 0.05
#: The ratios that have the longest windows, longest first. The window of ``period`` extends from
#: one iteration to the next. The window of ``step`` extends from the start of an iteration to the
#: end of its optimizer.
LONGEST_FIRST = ("period", "step")


@dataclass(frozen=True)
class ReportPair:
    """Two reports of the same kind: both on bubbles, or both on idle time.

    Attributes:
        earlier: The earlier run's report.
        later: The later run's report.
    """

    earlier: ReportSummary
    later: ReportSummary

    @property
    def job_difference(self) -> str | None:
        """A clause that describes how the two jobs differ, or None if they may be the same job."""
        then, now = len(self.earlier.ranks), len(self.later.ranks)
        return None if then == now else f"the runs have {then:,} and {now:,} ranks"

    @property
    def equal_work(self) -> float:
        """Number of later iterations that equal one earlier iteration in work, or 1 if unknown."""
        return 1.0

    @property
    def is_per_microbatch(self) -> bool:
        """Whether times per microbatch are compared, because iterations do unequal work."""
        return self.equal_work != 1

    @cached_property
    def longest_ratio(self) -> str:
        """Name of the ratio whose windows give the iteration time of both runs."""
        return choose_longest_ratio((self.earlier, self.later))


@dataclass(frozen=True)
class RunPair(ReportPair):
    """Two reports on bubbles.

    Attributes:
        earlier: The earlier run's report.
        later: The later run's report.
    """

    earlier: RunSummary
    later: RunSummary

    @property
    def job_difference(self) -> str | None:
        """A clause that describes how the two jobs differ, or None if they may be the same job.

        Runs of the same job have equal numbers of ranks and stages. Unknown numbers of stages are
        not compared.
        """
        other_ranks = super().job_difference
        if other_ranks is not None:
            return other_ranks
        then, now = count_stages(self.earlier), count_stages(self.later)
        if then is not None and now is not None and then != now:
            return f"the runs have {then:,} and {now:,} stages"
        return None

    @cached_property
    def equal_work(self) -> float:
        """Number of later iterations needed to do the work of one earlier iteration.

        With ``e`` microbatches in an earlier iteration and ``l`` in a later one, there are two
        cases:

        - The microbatches have the same size, so the batches differ. The result is ``e / l``.
        - The batch is the same, but is divided into ``l`` instead of ``e`` microbatches. The result
          is 1.

        The compute time of a microbatch changes by a factor of about 1 in the first case, and about
        ``e / l`` in the second. The case whose factor is closer (on a log scale) is chosen. If
        either number is unknown, the result is 1.
        """
        earlier, later = self.earlier, self.later
        if not earlier.microbatches or not later.microbatches:
            return 1.0
        microbatch_ratio = earlier.microbatches / later.microbatches
        then_ns, now_ns = sum_work_ns(earlier), sum_work_ns(later)
        times = now_ns / then_ns if then_ns and now_ns else 1.0
        is_divided = abs(math.log(times)) > abs(math.log(times / microbatch_ratio))
        return 1.0 if is_divided else microbatch_ratio


def make_pair(earlier: ReportSummary, later: ReportSummary) -> ReportPair:
    """Return a pair of two reports of the same kind: both on bubbles, or both on idle time."""
    if isinstance(earlier, RunSummary) and isinstance(later, RunSummary):
        return RunPair(earlier, later)
    return ReportPair(earlier, later)


#: A stage, or -1 if unknown, and the label of a phase.
StagePhase: TypeAlias = tuple[int, str]


def list_median_stage_times(run: RunSummary) -> dict[StagePhase, float]:
    """Return the median time of each stage and phase in ns, summed over the stage's chunks."""
    return _sum_over_chunks(run, lambda kind: kind.median_ns)


def list_mean_stage_times(run: RunSummary) -> dict[StagePhase, float]:
    """Return the mean time of each stage and phase in ns, summed over the stage's chunks.

    If an operation's mean is unknown, its median is used.
    """
    return _sum_over_chunks(run, lambda kind: kind.mean_ns or kind.median_ns)


def _sum_over_chunks(
    run: RunSummary, time_of: Callable[[PhaseTimeEntry], float]
) -> dict[StagePhase, float]:
    """Sum a time of each kind of operation over the chunks of a stage.

    Args:
        run: The run's report.
        time_of: Function that returns the time of a kind of operation in ns.
    """
    total_ns: dict[StagePhase, float] = {}
    for kind in run.phase_times:
        key = get_stage_phase(kind)
        total_ns[key] = total_ns.get(key, 0.0) + time_of(kind)
    return total_ns


def get_stage_phase(kind: PhaseTimeEntry) -> StagePhase:
    """Return the stage (-1 if unknown) and the phase for a kind of operation."""
    return NONE if kind.stage is None else kind.stage, kind.phase


def sum_work_ns(run: RunSummary) -> float:
    """Return the median compute time of a microbatch in ns, summed over all stages."""
    return sum(ns for (_, phase), ns in list_median_stage_times(run).items() if phase in COMPUTE)


def count_microbatches(report: ReportSummary) -> int:
    """Return the number of microbatches in an iteration, or 1 if it is unknown."""
    return 1 if isinstance(report, IdleSummary) else report.microbatches or 1


def count_stages(run: RunSummary) -> int | None:
    """Return the number of stages whose times are known, or None if no times are known."""
    return len({stage for stage, _ in list_median_stage_times(run)}) or None


def choose_headline_ratio(runs: Sequence[ReportSummary]) -> str:
    """Return the name of the ratio that is used to compare runs.

    If all runs have the same primary ratio, that ratio is used. Otherwise, the first ratio whose
    mean is known in all runs is used. The candidates are tried in this order: ``period``, ``step``,
    the primary ratios in alphabetical order, then all other ratios. If no ratio is known in all
    runs, the alphabetically first primary ratio is used.
    """
    primary = sorted({run.headline for run in runs})
    if len(primary) == 1:
        return primary[0]
    other_ratios = [name for run in runs for name in run.summary.bubble_ratio]
    candidates = (*LONGEST_FIRST, *primary, *other_ratios)
    return next((name for name in candidates if is_common_ratio(name, runs)), primary[0])


def is_common_ratio(name: str, runs: Sequence[ReportSummary]) -> bool:
    """Return whether the mean of a ratio is known in all runs."""
    ratios = [find_ratio(run, name) for run in runs]
    return all(ratio is not None and ratio.bubble.mean is not None for ratio in ratios)


def choose_longest_ratio(runs: Sequence[ReportSummary]) -> str:
    """Return the name of the ratio whose window serves as the iteration time.

    The result is ``period`` if it meets both conditions below, otherwise ``step`` if it does.

    1. The mean of the ratio is known in all runs.
    2. Every run has at least two windows of the ratio, because a test needs several windows. A
       single window is enough in a run that also has only one window of the headline ratio
       (:func:`choose_headline_ratio`).

    If neither ratio meets them, the result is the headline ratio. Its window may leave out the time
    between the last backward and the next forward.
    """
    primary = choose_headline_ratio(runs)
    for name in LONGEST_FIRST:
        if is_common_ratio(name, runs) and all(_is_testable(run, name, primary) for run in runs):
            return name
    return primary


def _is_testable(run: ReportSummary, name: str, primary: str) -> bool:
    """Return whether a run has enough windows of the ratio ``name`` for a test.

    Two windows are enough. A single window is enough if there is also only one window of
    ``primary``.
    """
    ratio, primary_ratio = find_ratio(run, name), find_ratio(run, primary)
    if ratio is None or primary_ratio is None:
        return False
    return ratio.window_ns.n >= min(2, primary_ratio.window_ns.n)


def check_same_kind(reports: Mapping[str, ReportSummary]) -> None:
    """Check that the reports are all on bubbles or all on idle time.

    Args:
        reports: Reports, keyed by path.

    Raises:
        UsageError: Some reports are on bubbles and others are on idle time.
    """
    path_of_kind = {isinstance(report, IdleSummary): path for path, report in reports.items()}
    if len(path_of_kind) > 1:
        raise UsageError(
            f"{path_of_kind[True]} is about idle time, but {path_of_kind[False]} is about pipeline "
            "bubbles: compare reports of the same kind"
        )
