"""Lost kernels: launches whose kernel the profile does not hold, though the capture went on.

::

    launches     │ a  b  c  d  e  f │
    kernels      │  a  b     d      │     c is lost; e and f had not run when the capture ended

A launch that failed makes no kernel, and neither does one while a stream is captured into a CUDA
graph. Where very many calls have no work, a sample of them stands for all; it is drawn by a hash of
their row numbers, for training repeats itself, and each second or fourth call may be of one kind.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.interpret.linking.correlations import Launches
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.grouping import distinct, found_in, groups_of, rows_by_value
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Activities, CallLog, Calls, pid_of, process_of
from bubbleviz.model.texts import percent
from bubbleviz.model.values import frozen

#: So many calls without work are kept, or, of more, about half as many.
_MOST = 1 << 16
#: So many of these are looked at first, and the others only where a kernel of these is lost.
_FIRST = 1 << 13
#: Where such a part of the kernels of a process is lost, ratios are those of another run.
_NOTICEABLE = 0.01
#: So many lost kernels of a sample tell how many there are (to a third).
_ENOUGH = 10
#: Stands for the launch of a thread that made none, and for a time that never comes.
_NEVER, _FOREVER = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


class WorklessRows:
    """Rows of calls without work; of many, those with the lowest hashes.

    Attributes:
        step: how many calls each of them stands for.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self.step = 1
        self._blocks: list[Ints] = []
        self._kept = 0

    def add(self, row: Ints) -> None:
        """Note the rows of some calls without work."""
        chosen = _chosen(row, self.step)
        self._blocks.append(chosen)
        self._kept += len(chosen)
        while self._kept > self._most:
            self.step *= 2
            self._blocks = [_chosen(np.concatenate(self._blocks), self.step)]
            self._kept = len(self._blocks[0])

    def sample(self, most: int) -> tuple[Ints, int]:
        """Return the rows, ascending, or a part of them of about so many; and its step."""
        step = self.step
        while self._kept * self.step > most * step:
            step *= 2
        blocks = [_chosen(block, step) for block in self._blocks]
        return distinct(np.empty(0, np.int64), *blocks), step


def _chosen(row: Ints, step: int) -> Ints:
    """Return one row of ``step``, whatever the distances between them."""
    if step == 1:
        return row
    # Two rounds of multiplication, with constants of MurmurHash3; the high bits are mixed best.
    mixed = row.astype(np.uint32)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0xC2B2AE35)
    chosen: Ints = row[mixed < np.uint32((1 << 32) // step)]
    return chosen


@frozen
class ProcessLoss:
    """What a process launched that the profile could hold.

    Attributes:
        process: the process.
        count: of kernels that are lost; an estimate where calls were sampled.
        seen: of these, in the sample.
        kernels: that the profile holds, of the time in which kernels count as lost.
    """

    process: int
    count: int
    seen: int
    kernels: int

    def share(self, part: float) -> float:
        """Return the part of its kernels that is lost, where a part of ``count`` is."""
        return part * self.count / (part * self.count + self.kernels)


@frozen
class LostKernels:
    """How many kernels were launched and are not in the profile.

    Attributes:
        processes: that launched any, by number; none where nothing is lost.
        sampled: whether only some of the calls without work were looked at.
    """

    processes: tuple[ProcessLoss, ...]
    sampled: bool

    @property
    def count(self) -> int:
        """How many there are; an estimate where ``sampled``."""
        return sum(loss.count for loss in self.processes)

    def limitations(self, path: str, left_out: int) -> Iterator[Limitation]:
        """Yield what to tell of them, if anything.

        Args:
            path: of the profile.
            left_out: how many kernels were left out as they were read, which is told already.
        """
        count = self.count - left_out
        if count <= 0:
            return
        # What is told already may be any process's.
        part = count / self.count
        reason = (
            f"{path}: {self._share_in_words(part)} of the kernels that the host launched are not "
            f"in the profile{self._where()}: their time counts as idle; profile again with larger "
            "buffers, or export again"
        )
        kind = LimitationKind.KERNELS_LOST if self._noticeable(part) else LimitationKind.COSTS
        yield Limitation("kernels that were launched and not recorded", reason, count, kind)

    def _whole(self) -> ProcessLoss:
        """Return the loss of all processes together."""
        seen, kernels = (sum(getattr(p, k) for p in self.processes) for k in ("seen", "kernels"))
        return ProcessLoss(NONE, self.count, seen, kernels)

    def _noticeable(self, part: float) -> bool:
        """Tell whether any process, however many share the file, lost a noticeable part.

        A process without any kernel is no rank, and counts in the file's sum only.
        """
        enough = _ENOUGH if self.sampled else 1
        losses = (self._whole(), *(loss for loss in self.processes if loss.kernels))
        return any(
            loss.seen >= enough and loss.share(part) >= _NOTICEABLE for loss in losses if loss.count
        )

    def _share_in_words(self, part: float) -> str:
        """Return the file's share of lost kernels."""
        share = self._whole().share(part)
        # Two decimals show no less.
        if share < 1e-4:
            return "less than 0.01 %"
        return f"{'about ' if self.sampled else ''}{percent(share)}"

    def _where(self) -> str:
        """Return whether later kernels are recorded, in words."""
        without = [str(pid_of(p.process)) for p in self.processes if p.count and not p.kernels]
        some = any(p.count and p.kernels for p in self.processes)
        of_process = f"process{'es' if len(without) > 1 else ''} {', '.join(without)}"
        none = f"which holds none of {of_process}" if without else ""
        return ", " + " and ".join(filter(None, ("though later ones are" * some, none)))


def lost_kernels(
    workless: WorklessRows,
    launches: Launches,
    activities: Activities,
    of_launch: tuple[Codes, Ints],
    calls: CallLog,
) -> LostKernels:
    """Return how many kernels were launched before others, and are not in the profile.

    Args:
        workless: calls without work.
        launches: of all activities.
        activities: kernels, then copies.
        of_launch: of each activity the row of its launch's thread, which means nothing where it
            has none; and the threads that made calls.
        calls: all calls, by row.
    """
    rows, step = workless.sample(_FIRST)
    some = _launches_without_kernel(rows, launches, calls)
    if len(some) == 0:
        return LostKernels((), step > 1)
    bounds = _Bounds(launches, activities, *of_launch)
    some = some.take(some.start_ns < bounds.of(some.thread))
    if len(some) and step > workless.step:
        rows, step = workless.sample(_MOST)
        some = _launches_without_kernel(rows, launches, calls)
        some = some.take(some.start_ns < bounds.of(some.thread))
    losses = bounds.losses(process_of(some.thread), step) if len(some) else ()
    return LostKernels(losses, step > 1)


def _launches_without_kernel(rows: Ints, launches: Launches, calls: CallLog) -> Calls:
    """Return those of some calls that should have made a kernel, and share their id with none."""
    rows = calls.kernel_launches(rows)
    some = calls.at(rows)
    some = some.take(~launches.have_work(some))
    if len(some):
        some = some.take(~calls.failed(some.row))
    if len(some):
        some = some.take(~_captured(some, calls))
    return some


class _Bounds:
    """Until when kernels that each thread launched had to be recorded.

    That is until the thread launched what is recorded last. A thread that launched nothing of it
    counts until another one of its process last did; if none did either, until the end of time.

    A stream may still wait when the capture ends, while others go on. Which stream a lost kernel
    was for is not recorded, so that the longest wait of any work of the process is granted::

        launches     │ a     b     c     │
        kernels      │   a        b   c  │    one at the time of c may have waited as long as b
    """

    def __init__(
        self, launches: Launches, activities: Activities, thread: Codes, threads: Ints
    ) -> None:
        known = np.flatnonzero(launches.call != NONE)
        self._launched_ns, self._thread = launches.start_ns[known], thread[known]
        self._kernel = known < activities.kernels
        latest_ns: Ints = np.full(len(threads), _NEVER, np.int64)
        np.maximum.at(latest_ns, self._thread, self._launched_ns)
        processes = groups_of(process_of(threads))
        of_process, last_ns = (np.full(len(processes), _NEVER, np.int64) for _ in range(2))
        np.maximum.at(of_process, processes.of_row, latest_ns)
        latest_ns = np.where(latest_ns == _NEVER, of_process[processes.of_row], latest_ns)
        wait_ns: Ints = np.zeros(len(processes), np.int64)
        process, start_ns = processes.of_row[self._thread], activities.start_ns[known]
        np.maximum.at(wait_ns, process, start_ns - self._launched_ns)
        np.maximum.at(last_ns, process, start_ns)
        until_ns = np.where(last_ns == _NEVER, _FOREVER, last_ns - wait_ns + 1)
        self._threads = threads
        self._until_ns = np.where(
            latest_ns == _NEVER, _FOREVER, np.minimum(latest_ns, until_ns[processes.of_row])
        )

    def of(self, thread: Ints) -> Ints:
        """Return it for each of some threads, by their ids."""
        order = np.argsort(self._threads)
        return np.take(self._until_ns[order], found_in(self._threads[order], thread))

    def losses(self, lost: Ints, step: int) -> tuple[ProcessLoss, ...]:
        """Return what each process lost.

        Args:
            lost: process of each lost kernel of the sample.
            step: how many launches each of these stands for.
        """
        # The launch that a bound was taken from is before it, too.
        counts = self._kernel & (self._launched_ns <= self._until_ns[self._thread])
        kernels = np.bincount(self._thread[counts], minlength=len(self._threads))
        process = process_of(self._threads)
        seen = {number: len(rows) for number, rows in rows_by_value(lost)}
        return tuple(
            ProcessLoss(number, step * seen.get(number, 0), seen.get(number, 0), total)
            for number in distinct(process).tolist()
            if (total := int(kernels[process == number].sum())) or number in seen
        )


def _captured(some: Calls, calls: CallLog) -> Bools:
    """Tell which calls were made while their process captured a stream into a CUDA graph.

    Several threads may capture at once, and one may end what another began; a capture that never
    ends lasts, and one that failed to begin has no end.
    """
    began, ended = (calls.containing(f"Stream{what}Capture") for what in ("Begin", "End"))
    begin, end = calls.at(began[~calls.failed(began)]), calls.at(ended)
    captured = np.zeros(len(some), bool)
    for process, rows in rows_by_value(process_of(some.thread)):
        began_ns = begin.start_ns[process_of(begin.thread) == process]
        ended_ns = end.end_ns[process_of(end.thread) == process]
        times_ns = np.concatenate((began_ns, ended_ns))
        change = np.repeat([1, -1], [len(began_ns), len(ended_ns)])
        order = np.lexsort((change, times_ns))
        open_now = np.append(0, np.cumsum(change[order]))
        # An end without a beginning, which was before the profile, ends nothing else.
        open_now -= np.minimum.accumulate(open_now)
        at = np.searchsorted(times_ns[order], some.start_ns[rows], side="right")
        captured[rows] = open_now[at] > 0
    return captured
