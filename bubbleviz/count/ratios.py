"""Bubble ratios: each is defined by the window that it looks at, and what is work in it.

Adding one is adding a row to the table; it appears in every table and file.
A ratio over the ranks is ``1 - sum of work / sum of windows``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.run_kinds import INFERENCE


class CountedWork(Enum):
    """What counts as work inside a window."""

    ITERATION = "F, B, W, BW, R and FB of the iteration"
    STEP = "these and the iteration's Optimizer"
    EVERYTHING = "all compute operations of any iteration, Optimizer included"


@dataclass(frozen=True)
class Extents:
    """First starts and last ends, shape (iterations, ranks); meaningless where not ``present``.

    Attributes:
        first_ns: first start of a rank's F, B, W, BW, R, FB in the iteration.
        last_ns: last end of these.
        step_last_ns: last end, Optimizer included.
        present: whether the rank takes part in the iteration.
        paused: of each iteration, whether nothing was recorded of a rank before the next one;
            None for none.
    """

    first_ns: Ints
    last_ns: Ints
    step_last_ns: Ints
    present: Bools
    paused: Bools | None = None

    @property
    def started(self) -> Bools:
        """Which iterations have any rank in them."""
        return np.asarray(self.present.any(axis=1), bool)

    def of_ranks(self, ranks: slice) -> Extents:
        """Return those of some ranks."""
        return Extents(
            self.first_ns[:, ranks],
            self.last_ns[:, ranks],
            self.step_last_ns[:, ranks],
            self.present[:, ranks],
            self.paused,
        )


@dataclass(frozen=True)
class Windows:
    """Windows, shape (iterations, ranks), and which iterations have one (iterations,)."""

    start_ns: Ints
    end_ns: Ints
    known: Bools

    def of_ranks(self, ranks: slice) -> Windows:
        """Return those of some ranks."""
        return Windows(self.start_ns[:, ranks], self.end_ns[:, ranks], self.known)


@dataclass(frozen=True)
class RatioDefinition:
    """A bubble ratio.

    Attributes:
        name: what reports call it.
        summary: a few words for tables.
        definition: the formula, for captions and papers.
        words: the same in words, for the headline.
        forward_words: likewise of runs that only go forward; empty where ``words`` fit these.
        windows: extents to windows.
        work: what counts as work.
        common_clock: whether ranks of several hosts need one clock for it.
        across_ranks: whether a rank's window depends on other ranks.
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

    def words_for(self, kind: str) -> str:
        """Return the words for a kind of run (:func:`~bubbleviz.model.run_kinds.run_kind`)."""
        return self.forward_words if kind == INFERENCE and self.forward_words else self.words


def _find_common_windows(extents: Extents, last_ns: Ints) -> Windows:
    """Return one window for all ranks, from the first start to the last end."""
    big = np.iinfo(np.int64).max
    start = np.where(extents.present, extents.first_ns, big).min(axis=1, keepdims=True)
    end = np.where(extents.present, last_ns, -big).max(axis=1, keepdims=True)
    shape = extents.present.shape
    return Windows(np.broadcast_to(start, shape), np.broadcast_to(end, shape), extents.started)


def _find_longest_windows(extents: Extents) -> Windows:
    """Return windows as long as the longest rank's own, from each rank's first start."""
    length = np.where(extents.present, extents.last_ns - extents.first_ns, 0)
    longest = length.max(axis=1, keepdims=True, initial=0)
    return Windows(extents.first_ns, extents.first_ns + longest, extents.started)


def _find_periods(extents: Extents) -> Windows:
    """Return the windows from each rank's first start to that of the next iteration."""
    following = np.roll(extents.first_ns, -1, axis=0)
    both = extents.present & np.roll(extents.present, -1, axis=0)
    known = extents.started & (both == extents.present).all(axis=1)
    known[-1:] = False
    if extents.paused is not None:
        # What is next was recorded after others that were not.
        known &= ~extents.paused
    # Iterations are in the host's order, and none starts with or before the one in front of it.
    known &= (~extents.present | (following > extents.first_ns)).all(axis=1)
    return Windows(extents.first_ns, following, known)


_OVER_CHUNKS = (
    "idle share of all ranks between the start of the first chunk and the end of the last"
)
#: In display order.
_RATIOS = (
    # One window of the iteration for all ranks, without the Optimizer.
    RatioDefinition(
        name="schedule",
        summary="single-iteration window",
        definition="1 - sum of the ranks' compute / (ranks x (last end - first start over all "
        "ranks))",
        words="idle share of all ranks from an iteration's first F to its last backward, only its "
        "own F, B and W as work",
        windows=lambda extents: _find_common_windows(extents, extents.last_ns),
        work=CountedWork.ITERATION,
        common_clock=True,
        across_ranks=True,
        forward_words=_OVER_CHUNKS,
    ),
    # The Zero Bubble paper's rate: the longest of the ranks' own windows (arXiv 2401.10241, 5.3).
    RatioDefinition(
        name="stage",
        summary="longest rank's window",
        definition="1 - sum of the ranks' compute / (ranks x longest (last end - first start) of a "
        "rank); arXiv 2401.10241, section 5.3",
        words="idle share of all ranks in windows as long as the longest rank's, from its first F "
        "to its last backward",
        windows=_find_longest_windows,
        work=CountedWork.ITERATION,
        common_clock=False,
        across_ranks=True,
        forward_words="idle share of all ranks in windows as long as the longest rank's, from its "
        "first chunk to its last",
    ),
    # The iteration to the end of its last Optimizer.
    RatioDefinition(
        name="step",
        summary="to the last Optimizer end",
        definition="1 - sum of the ranks' compute and Optimizer / (ranks x (last end, Optimizer "
        "included - first start over all ranks))",
        words="idle share of all ranks from an iteration's first F to the end of its last "
        "Optimizer, only its own as work",
        windows=lambda extents: _find_common_windows(extents, extents.step_last_ns),
        work=CountedWork.STEP,
        common_clock=True,
        across_ranks=True,
        forward_words=_OVER_CHUNKS,
    ),
    # What training waits for: from an iteration's first start to the next one's, on each rank.
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
    """Return every ratio, in display order."""
    return _RATIOS
