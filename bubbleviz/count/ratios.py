"""Bubble ratios. A ratio is defined by its window and by the operations that count as work.

The ratio over all ranks is ``1 - sum of work / sum of window lengths``. To add a ratio, add an
entry to ``_RATIOS``. The ratio will then appear in every table and file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.run_kinds import INFERENCE


class CountedWork(Enum):
    """Operations that count as work inside a window."""

    ITERATION = "F, B, W, BW, R and FB of the iteration"
    STEP = "these and the iteration's Optimizer"
    EVERYTHING = "all compute operations of any iteration, Optimizer included"


@dataclass(frozen=True)
class Extents:
    """First start and last end of each rank's work in each iteration, shape (iterations, ranks).

    Times are undefined unless ``present`` is set.

    Attributes:
        first_ns: First start of the rank's F, B, W, BW, R and FB in the iteration.
        last_ns: Last end of the rank's F, B, W, BW, R and FB in the iteration.
        step_last_ns: Last end of the rank's F, B, W, BW, R, FB and Optimizer in the iteration.
        present: Mask of the ranks that take part in the iteration.
        paused: Mask of the iterations with a pause in any recording before the next iteration,
            shape (iterations,), or None if no recording paused.
    """

    first_ns: Ints
    last_ns: Ints
    step_last_ns: Ints
    present: Bools
    paused: Bools | None = None

    @property
    def started(self) -> Bools:
        """Mask of the iterations in which any rank takes part."""
        return np.asarray(self.present.any(axis=1), bool)

    def of_ranks(self, ranks: slice) -> Extents:
        """Return the extents of consecutive ranks."""
        return Extents(
            self.first_ns[:, ranks],
            self.last_ns[:, ranks],
            self.step_last_ns[:, ranks],
            self.present[:, ranks],
            self.paused,
        )


@dataclass(frozen=True)
class Windows:
    """The windows for one ratio.

    Attributes:
        start_ns: Start of each window, shape (iterations, ranks).
        end_ns: End of each window, shape (iterations, ranks).
        is_known: Mask of the iterations whose windows are known, shape (iterations,).
    """

    start_ns: Ints
    end_ns: Ints
    is_known: Bools

    def of_ranks(self, ranks: slice) -> Windows:
        """Return the windows of consecutive ranks."""
        return Windows(self.start_ns[:, ranks], self.end_ns[:, ranks], self.is_known)


@dataclass(frozen=True)
class RatioDefinition:
    """Definition of a bubble ratio.

    Attributes:
        name: Name of the ratio in reports, for example ``schedule``.
        summary: Short description for tables.
        definition: Formula, for captions and papers.
        words: Definition in words, for the headline.
        forward_words: Definition in words for forward-only runs, or "" if ``words`` also applies to
            them.
        windows: Function that computes the windows from the extents of all ranks.
        work: Operations that count as work.
        common_clock: Whether the ratio needs a common clock when ranks are on several hosts.
        across_ranks: Whether the window of a rank depends on other ranks.
    """

    name: str
    summary: str
    definition: str
    words: str
    windows: Callable[[Extents], Windows]
    work: CountedWork
    common_clock: bool
    across_ranks: bool
    forward_words: str = ""

    def get_words(self, kind: str) -> str:
        """Return the definition in words for the given kind of run.

        See :func:`~bubbleviz.model.run_kinds.run_kind` for the kinds.
        """
        return self.forward_words if kind == INFERENCE and self.forward_words else self.words


def _find_common_windows(extents: Extents, last_ns: Ints) -> Windows:
    """Return one window for all ranks in an iteration, from the first start to the last end.

    Args:
        extents: First start and last end of each rank's work in each iteration.
        last_ns: The last end to use for each rank, shape (iterations, ranks).
    """
    never = np.iinfo(np.int64).max
    start = np.where(extents.present, extents.first_ns, never).min(axis=1, keepdims=True)
    end = np.where(extents.present, last_ns, -never).max(axis=1, keepdims=True)
    shape = extents.present.shape
    return Windows(np.broadcast_to(start, shape), np.broadcast_to(end, shape), extents.started)


def _find_longest_windows(extents: Extents) -> Windows:
    """Return a window for each rank that begins at its first start. All windows are equally long.

    Their length is the longest time from first start to last end on any rank in that iteration.
    """
    length = np.where(extents.present, extents.last_ns - extents.first_ns, 0)
    longest = length.max(axis=1, keepdims=True, initial=0)
    return Windows(extents.first_ns, extents.first_ns + longest, extents.started)


def _find_periods(extents: Extents) -> Windows:
    """Return windows from each rank's first start to its first start in the next iteration.

    The windows of an iteration are unknown in each of the following cases:

    - The iteration is the last one.
    - A recording paused before the next iteration.
    - A rank takes part in the iteration but not in the next one.
    - A rank starts the next iteration no later than this one.
    """
    next_ns = np.roll(extents.first_ns, -1, axis=0)
    is_in_both = extents.present & np.roll(extents.present, -1, axis=0)
    is_known = extents.started & (is_in_both == extents.present).all(axis=1)
    is_known[-1:] = False
    if extents.paused is not None:
        is_known &= ~extents.paused
    # Iterations are sorted by host time, but the device may start them in a different order.
    is_known &= (~extents.present | (next_ns > extents.first_ns)).all(axis=1)
    return Windows(extents.first_ns, next_ns, is_known)


_OVER_CHUNKS = (
    "idle share of all ranks between the start of the first chunk and the end of the last"
)
#: Definitions of all ratios, in display order.
_RATIOS = (
    # A common window for all ranks in the iteration, without the Optimizer.
    RatioDefinition(
        name="schedule",
        summary="single-iteration window",
        definition="1 - sum of the ranks' compute / (ranks x (last end - first start over all "
        "ranks))",
        words="idle share of all ranks from an iteration's first F to its last backward; only the "
        "iteration's own F, B and W count as work",
        windows=lambda extents: _find_common_windows(extents, extents.last_ns),
        work=CountedWork.ITERATION,
        common_clock=True,
        across_ranks=True,
        forward_words=_OVER_CHUNKS,
    ),
    # Bubble rate of the Zero Bubble paper: longest window of any rank (arXiv 2401.10241, 5.3).
    RatioDefinition(
        name="stage",
        summary="longest rank's window",
        definition="1 - sum of the ranks' compute / (ranks x longest (last end - first start) of a "
        "rank); arXiv 2401.10241, section 5.3",
        words="idle share of all ranks; the window of each rank is as long as the longest time "
        "that any rank takes from its first F to its last backward",
        windows=_find_longest_windows,
        work=CountedWork.ITERATION,
        common_clock=False,
        across_ranks=True,
        forward_words="idle share of all ranks; the window of each rank is as long as the longest "
        "time that any rank takes from its first chunk to its last",
    ),
    # A common window for all ranks, to the end of the iteration's last Optimizer.
    RatioDefinition(
        name="step",
        summary="to the last Optimizer end",
        definition="1 - sum of the ranks' compute and Optimizer / (ranks x (last end, Optimizer "
        "included - first start over all ranks))",
        words="idle share of all ranks from an iteration's first F to the end of its last "
        "Optimizer; only the iteration's own operations count as work",
        windows=lambda extents: _find_common_windows(extents, extents.step_last_ns),
        work=CountedWork.STEP,
        common_clock=True,
        across_ranks=True,
        forward_words=_OVER_CHUNKS,
    ),
    # The step time as seen by the training loop, from one start to the next on each rank.
    RatioDefinition(
        name="period",
        summary="start to next start",
        definition="1 - sum of all compute / sum of the ranks' times from the iteration's first "
        "start to the next iteration's",
        words="idle share of all ranks from the start of one iteration to the start of the next",
        windows=_find_periods,
        work=CountedWork.EVERYTHING,
        common_clock=False,
        across_ranks=False,
    ),
)


def list_ratios() -> tuple[RatioDefinition, ...]:
    """Return the definitions of all ratios, in display order."""
    return _RATIOS
