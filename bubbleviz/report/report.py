"""The report: everything that an output format may show, and nothing else.

``Report`` is what :func:`bubbleviz.analyze` returns and what every renderer takes. Ratios are
fractions of 1, None where they are unknown; times are integer nanoseconds on the report's
clock, which is the first profile's own.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from bubbleviz.count.iterations import Iteration, Iterations, typical
from bubbleviz.count.summary import Summary
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.explanation import Explanation
from bubbleviz.explain.recognition.reasons import NO_PIPELINE, SINGLE_STAGE
from bubbleviz.explain.recognition.recognition import Recognition
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import (
    BusyIntervals,
    Operations,
    ProfileSummary,
    Rank,
    RankCoverage,
    RankIntervals,
    UnattributedKernels,
)
from bubbleviz.model.restrictions import Restriction, first_text
from bubbleviz.model.run_kind import INFERENCE, TRAINING
from bubbleviz.model.texts import counted
from bubbleviz.model.values import frozen
from bubbleviz.report.memory import RunMemory
from bubbleviz.report.restrictions import restrictions_of

if TYPE_CHECKING:  # most reports hold no alternatives, which take long to load
    from bubbleviz.explain.alternatives import Alternatives
    from bubbleviz.explain.slowdown.slowdowns import Slowdowns

SCHEMA = "bubbleviz.report/1"
#: Where unattributed compute can move a ratio by more than this, its lower bound is beside it; and
#: where more kernels than this share were left out, it is marked.
NOTICEABLE = 0.01


@frozen
class Report:
    """The result of an analysis.

    Attributes:
        version: of bubbleviz.
        convention: name of the NVTX convention that range names follow.
        headline: name of the primary ratio, the one to quote.
        headline_reason: one sentence with the reason for this choice.
        profiles: the inputs, in the order given.
        ranks: the rows of the picture, in pipeline order.
        iterations: every iteration found, averaged or not.
        summary: statistics over the averaged iterations.
        operations: every operation, in order of (rank, start).
        busy: the busy intervals of the operations.
        unattributed: compute outside every compute operation, by rank.
        coverage: how much GPU time is attributed to operations, by rank.
        unattributed_kernels: the largest kernels outside compute operations.
        explanation: why there are bubbles.
        limitations: what could not be determined, and why.
        schedule: which schedule ran, by the order of operations; None if not analysed.
        plan: how the order differs from the given plan; None without one.
        alternatives: other schedules at the same times; None if not analysed.
        command: the command line; empty where there was none.
        exposed: when only collectives ran on a rank.
        overheads: when the profiler held a rank up.
        collectives: when ranks were in which, and which are one.
        pauses: when nothing of a rank was recorded, though it ran on.
        memory: what ranks and operations hold; None if not read, or not recorded.
    """

    version: str
    convention: str
    headline: str
    headline_reason: str
    profiles: tuple[ProfileSummary, ...]
    ranks: tuple[Rank, ...]
    iterations: Iterations
    summary: Summary
    operations: Operations
    busy: BusyIntervals
    unattributed: RankIntervals
    coverage: tuple[RankCoverage, ...]
    unattributed_kernels: tuple[UnattributedKernels, ...]
    explanation: Explanation
    limitations: tuple[Limitation, ...]
    schedule: Recognition | None = None
    plan: Recognition | None = None
    alternatives: Alternatives | None = None
    command: str = ""
    exposed: RankIntervals = field(default_factory=RankIntervals.none)
    overheads: RankIntervals = field(default_factory=RankIntervals.none)
    collectives: CollectiveIntervals = field(default_factory=CollectiveIntervals.none)
    pauses: RankIntervals = field(default_factory=RankIntervals.none)
    memory: RunMemory | None = None

    def __repr__(self) -> str:
        spread = self.summary.bubble_ratio.get(self.headline)
        mean = None if spread is None else spread.mean
        return (
            f"Report({self.headline} bubble ratio {'unknown' if mean is None else f'{mean:.4f}'}, "
            f"{counted(len(self.ranks), 'rank')}, {counted(len(self.iterations), 'iteration')}, "
            f"{counted(len(self.operations), 'operation')}, "
            f"{counted(len(self.limitations), 'limitation')})"
        )

    @property
    def kind(self) -> str:
        """What ran: ``"training"``, or ``"inference"`` where nothing ever goes back."""
        forward = any(iteration.kind == INFERENCE for iteration in self.iterations)
        return INFERENCE if forward else TRAINING

    @property
    def iteration_noun(self) -> str:
        """What sentences call an iteration."""
        if self.kind == TRAINING:
            return "training iteration"
        return "iteration" if len(self.iterations) > 1 else "window"

    @property
    def bubbles(self) -> Bubbles:
        """The idle intervals in the headline's windows, with their causes."""
        return self.explanation.bubbles

    @property
    def slowdowns(self) -> Slowdowns | None:
        """What stragglers cost over all averaged iterations; None where that is unknown.

        It is worked out when it is first asked for, which takes seconds for a million operations.
        """
        return self.explanation.slowdowns

    @property
    def single_stage(self) -> bool:
        """Whether the ranks that work form no pipeline, so that no schedule applies."""
        return self.no_pipeline == SINGLE_STAGE

    @property
    def no_pipeline(self) -> str | None:
        """Why the ranks that work are not known to form a pipeline; None where they do."""
        reason = None if self.schedule is None else self.schedule.reason
        return reason if reason in NO_PIPELINE else None

    @property
    def incomplete(self) -> bool:
        """Whether a rank that takes part in averaged iterations is known to be missing."""
        return any(
            ratio.incomplete
            for iteration in self.iterations
            if iteration.averaged
            for ratio in iteration.ratios.values()
        )

    @property
    def restrictions(self) -> tuple[Restriction, ...]:
        """Why the ratios are not those of a whole pipeline, what weighs most first."""
        kinds = {note.kind for note in self.limitations}
        if not self._many_kernels_left_out():
            kinds.discard(LimitationKind.KERNELS_LEFT_OUT)
        return restrictions_of(
            None if self.schedule is None else self.schedule.reason,
            kinds,
            ranks_missing=self.incomplete,
        )

    def _many_kernels_left_out(self) -> bool:
        """Return whether so many kernels were left out for their times that ratios are off."""
        kind = LimitationKind.KERNELS_LEFT_OUT
        left_out = sum(note.count for note in self.limitations if note.kind is kind)
        kept = sum(profile.kernels for profile in self.profiles)
        return left_out >= NOTICEABLE * (kept + left_out) > 0

    @property
    def restriction(self) -> str | None:
        """The words of the first restriction; None where there is none."""
        return first_text(self.restrictions)

    @property
    def operations_lacking(self) -> bool:
        """Whether ranks lack operations that others have, so that their work is unknown."""
        return any(note.kind is LimitationKind.OPERATIONS_LACKING for note in self.limitations)

    @property
    def stages_contradicted(self) -> bool:
        """Whether the order of stages that the user gave contradicts the data dependencies."""
        return any(note.kind is LimitationKind.STAGES_CONTRADICTED for note in self.limitations)

    def clock_uncertainty_ns(self, rank: Rank) -> int | None:
        """Return how far the clock of a rank's host can be off, in ns; None if unbounded."""
        return self.profiles[rank.profile].clock_uncertainty_ns

    def clock(self, profile: int) -> tuple[str, float, int | None]:
        """Return host, drift (ppm) and uncertainty (ns) of a profile's clock, which distinguish it.

        Machines of one hostname have clocks of their own, which are off by different times.
        """
        summary = self.profiles[profile]
        return summary.host, summary.clock_drift_ppm, summary.clock_uncertainty_ns

    def contradicted(self, name: str) -> bool:
        """Return whether a ratio needs clocks that contradict each other, in any iteration."""
        return any(
            name in iteration.ratios and iteration.ratios[name].contradicted
            for iteration in self.iterations
        )

    def lower_bound(self, name: str) -> float | None:
        """Return the mean of a ratio with compute outside every operation counted as work.

        None where that is unknown, or about the same as the mean and no operation is lacking.
        """
        ratio, low = self.summary.bubble_ratio.get(name), self.summary.bubble_low.get(name)
        if ratio is None or low is None or ratio.mean is None or low.mean is None:
            return None
        noticeable = 0.0 if self.operations_lacking else NOTICEABLE
        return low.mean if ratio.mean - low.mean > noticeable else None

    def iteration(self, index: int) -> Iteration:
        """Return the iteration of that index.

        Raises:
            IndexError: there is none.
        """
        if not 0 <= index < len(self.iterations):
            raise IndexError(f"no iteration {index}; there are {len(self.iterations)}")
        return self.iterations[index]

    def typical_iteration(self) -> Iteration | None:
        """Return the iteration to show: the median one by length of its ``step`` window.

        It is one of the averaged iterations, if possible with the headline ratio; where there are
        none, of the complete training ones, else of all that have work. Of an even number it is
        the lower median, and of equally long ones the one with the lowest index. None where no
        iteration has work.
        """
        return typical(tuple(self.iterations), self.headline)


def distinct_percents(interval: tuple[float, float], fewest: int, most: int) -> tuple[str, str]:
    """Return both ends in percent, with enough digits to distinguish them.

    Args:
        interval: fractions of 1.
        fewest: digits at least.
        most: digits at most.
    """
    for digits in range(fewest, most + 1):
        low, high = (f"{100 * end:.{digits}f}" for end in interval)
        if low != high:
            break
    return low, high
