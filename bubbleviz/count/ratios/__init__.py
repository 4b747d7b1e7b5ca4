"""Bubble ratios: each module here defines one, by the window it looks at and what is work in it.

Adding one is adding a module with a ``RATIO`` constant; it appears in every table and file.
A ratio over the ranks is ``1 - sum of work / sum of windows``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache

import numpy as np

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.phase_masks import INFERENCE
from bubbleviz.registry import discover


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
        order: place in tables.
    """

    name: str
    summary: str
    definition: str
    words: str
    windows: Callable[[Extents], Windows]
    work: CountedWork
    common_clock: bool
    across_ranks: bool
    order: int
    forward_words: str = ""

    def words_for(self, kind: str) -> str:
        """Return the words for a kind of run (:func:`~bubbleviz.model.phase_masks.run_kind`)."""
        return self.forward_words if kind == INFERENCE and self.forward_words else self.words


@cache
def ratio_definitions() -> tuple[RatioDefinition, ...]:
    """Return every statistic, in display order."""
    return discover(__name__, "RATIO", RatioDefinition)
