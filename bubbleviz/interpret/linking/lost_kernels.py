"""Lost kernels: launches whose kernel the profile does not hold, though the capture went on.

::

    launches     │ a  b  c  d  e  f │
    kernels      │  a  b     d      │     c is lost; e and f had not run when the capture ended

A launch that failed makes no kernel, and neither does one while a stream is captured into a CUDA
graph. Where very many calls have no work, an even sample of them stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.interpret.linking.launches import Launches
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.grouping import distinct, found_in, groups_of, rows_by_value
from bubbleviz.model.operations import Limitation, LimitationKind
from bubbleviz.model.profile import CallLog, Calls, process_of
from bubbleviz.model.values import frozen

#: So many calls without work are looked at, or, of more, at least half as many.
_MOST = 1 << 10
#: Where such a part of all kernels is lost, ratios are those of another run.
_NOTICEABLE = 0.01
#: Stands for the launch of a thread that made none.
_NEVER = int(np.iinfo(np.int64).min)


class WorklessRows:
    """Rows of calls without work; of many, every second, fourth, eighth ... of them."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self.step = 1
        self._seen = 0
        self._blocks: list[Ints] = []
        self._kept = 0

    def add(self, row: Ints, at: Ints) -> None:
        """Note some calls of a block.

        Args:
            row: of each call of the block.
            at: places of the calls without work.
        """
        chosen = row[at[-self._seen % self.step :: self.step]]
        self._seen += len(at)
        self._blocks.append(chosen)
        self._kept += len(chosen)
        while self._kept > self._most:
            self.step *= 2
            self._blocks = [np.concatenate(self._blocks)[::2]]
            self._kept = len(self._blocks[0])

    def rows(self) -> Ints:
        """Return the rows, ascending."""
        return distinct(np.empty(0, np.int64), *self._blocks)


@frozen
class LostKernels:
    """How many kernels were launched and are not in the profile.

    Attributes:
        count: of these launches; an estimate where ``sampled``.
        kernels: that the profile holds.
        sampled: whether only some of the calls without work were looked at.
    """

    count: int
    kernels: int
    sampled: bool

    def limitations(self, path: str, left_out: int) -> Iterator[Limitation]:
        """Yield what to tell of them, if anything.

        Args:
            path: of the profile.
            left_out: how many kernels were left out as they were read, which is told already.
        """
        count = self.count - left_out
        if count <= 0:
            return
        share = count / (count + self.kernels)
        reason = (
            f"{path}: {'about ' if self.sampled else ''}{100 * share:.2g} % of the kernels that "
            "the host launched are not in the profile, though later ones are: their time counts "
            "as idle; profile again with larger buffers, or export again"
        )
        kind = LimitationKind.KERNELS_LOST if share >= _NOTICEABLE else LimitationKind.COSTS
        yield Limitation("kernels that were launched and not recorded", reason, count, kind)


def lost_kernels(
    workless: WorklessRows, launches: Launches, thread: Codes, threads: Ints, calls: CallLog
) -> LostKernels:
    """Return how many kernels were launched before others, and are not in the profile.

    Args:
        workless: calls without work.
        launches: of all activities.
        thread: row of ``threads`` of each activity; means nothing where it has no launch.
        threads: that made calls.
        calls: all calls, by row.
    """
    kernels = launches.kernels
    rows = calls.kernel_launches(workless.rows())
    if len(rows) == 0:
        return LostKernels(0, kernels, sampled=False)
    some = calls.at(rows)
    lost = ~launches.have_work(some) & ~calls.failed(rows)
    lost &= some.start_ns < _latest_ns(some.thread, launches, thread, threads)
    if lost.any():
        lost &= ~_captured(some, calls)
    count = int(lost.sum()) * workless.step
    return LostKernels(count, kernels, sampled=workless.step > 1)


def _latest_ns(thread_of_call: Ints, launches: Launches, thread: Codes, threads: Ints) -> Ints:
    """Return until when each call's thread launched what is recorded.

    A thread that launched nothing of it counts until another one of its process last did; if none
    did either, until the end of time.
    """
    known = launches.call != NONE
    latest_ns: Ints = np.full(len(threads), _NEVER, np.int64)
    np.maximum.at(latest_ns, thread[known], launches.start_ns[known])
    processes = groups_of(process_of(threads))
    of_process = np.full(len(processes), _NEVER, np.int64)
    np.maximum.at(of_process, processes.of_row, latest_ns)
    latest_ns = np.where(latest_ns == _NEVER, of_process[processes.of_row], latest_ns)
    latest_ns[latest_ns == _NEVER] = np.iinfo(np.int64).max
    order = np.argsort(threads)
    place = found_in(threads[order], thread_of_call)
    return np.take(latest_ns[order], place)


def _captured(some: Calls, calls: CallLog) -> Bools:
    """Tell which calls were made while their process captured a stream into a CUDA graph."""
    begin, end = (calls.at(calls.containing(f"Stream{what}Capture")) for what in ("Begin", "End"))
    captured = np.zeros(len(some), bool)
    for process, rows in rows_by_value(process_of(some.thread)):
        began_ns = begin.start_ns[process_of(begin.thread) == process]
        ended_ns = np.sort(end.end_ns[process_of(end.thread) == process])
        # A capture that never ends lasts.
        until_ns = np.append(ended_ns, np.iinfo(np.int64).max)
        times = intervals.union(began_ns, until_ns[np.searchsorted(ended_ns, began_ns)])
        at = np.searchsorted(times[0], some.start_ns[rows], side="right")
        captured[rows] = at > np.searchsorted(times[1], some.start_ns[rows], side="right")
    return captured
