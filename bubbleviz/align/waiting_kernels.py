"""Kernels of unknown names that count as compute and wait for each other on several ranks.

A collective, or a receive, ends when the last of its ranks is there, however early it began on the
others. No computation does that::

    rank 0   gemm █████ exchange ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
    rank 1   gemm █████████████ exchange ▒▒▒▒▒▒▒▒▒
    rank 2   gemm ████████████████████ exchange ▒▒
                                                 └ all end here
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.offsets import ProfileClock
from bubbleviz.interpret.communication import addition
from bubbleviz.interpret.recording import Recording, UnknownKernels
from bubbleviz.model.columns import Ints
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import counted, one_line

#: Shortest kernel that is taken to wait.
_MIN_WAIT_NS = 20_000
#: Largest difference of two ends that count as one: in nanoseconds, and as a share of the kernel.
_MAX_END_NS, _MAX_END_SHARE = 10_000, 0.02
#: Least difference of their starts, as a share of the longer kernel. Without waiting, a forward
#: takes a half or a third of the backward that ends with it.
_MIN_START_SHARE = 0.7
#: Least share of a name's time on a rank that waits, and the largest share that may by chance.
_MIN_WAITING, _MAX_CHANCE = 0.5, 0.2
#: Maximum number of ranks of a name that are compared.
_MAX_RANKS = 16
#: Characters of a name in a message.
_NAME = 60


def waiting_kernels(
    recordings: Sequence[Recording], clocks: Sequence[ProfileClock]
) -> Iterator[Limitation]:
    """Yield a limitation for each name whose kernels wait for each other and count as compute.

    Args:
        recordings: All recordings of a run.
        clocks: The clock of each on the report's clock.
    """
    moved = [
        replace(kernels, start_ns=clock.of(kernels.start_ns), end_ns=clock.of(kernels.end_ns))
        for recording, clock in zip(recordings, clocks, strict=True)
        for kernels in recording.unknown_kernels
    ]
    yield from waiting_names(moved, "bubbles are too small")


def waiting_names(kernels: Iterable[UnknownKernels], consequence: str) -> Iterator[Limitation]:
    """Yield a limitation for each name whose kernels wait for each other and count as compute.

    Args:
        kernels: Kernels of unknown names on all ranks, with times on a common clock.
        consequence: What that means for the numbers, as a clause.
    """
    by_name: dict[str, list[UnknownKernels]] = defaultdict(list)
    for of_rank in kernels:
        by_name[of_rank.name].append(of_rank)
    for name, of_ranks in by_name.items():
        compared = of_ranks[:_MAX_RANKS]
        if not any(_waits(own, [each for each in compared if each is not own]) for own in compared):
            continue
        total_ms = sum(own.total_ns for own in of_ranks) / 1e6
        yield Limitation(
            "kernels that look like waiting count as compute",
            f"{one_line(name, _NAME)!r} takes {total_ms:,.3f} ms on "
            f"{counted(len(of_ranks), 'rank')} and ends on several of them at once, however early "
            f"it begins, so {consequence}; if it communicates, list it under communication "
            f"in a TOML file, and give it with --convention: {addition([name])}",
            sum(own.count for own in of_ranks),
            LimitationKind.COMMUNICATION_COUNTED,
        )


def _waits(own: UnknownKernels, others: Sequence[UnknownKernels]) -> bool:
    """Tell whether kernels of a rank mostly end with one of another rank that begins otherwise."""
    length_ns = own.end_ns - own.start_ns
    can_wait = length_ns >= _MIN_WAIT_NS
    if not others or not can_wait.any():
        return False
    start_ns, end_ns = own.start_ns[can_wait], own.end_ns[can_wait]
    tolerance_ns = np.minimum(_MAX_END_SHARE * (end_ns - start_ns), _MAX_END_NS)
    is_waiting = np.zeros(len(start_ns), bool)
    chance = np.zeros(len(start_ns))
    for other in others:
        by_end = np.argsort(other.end_ns, kind="stable")
        other_end_ns = other.end_ns[by_end]
        other_start_ns = other.start_ns[by_end]
        nearest = _nearest(other_end_ns, end_ns)
        ends_with = np.abs(other_end_ns[nearest] - end_ns) <= tolerance_ns
        earlier_ns = np.abs(other_start_ns[nearest] - start_ns)
        longer_ns = np.maximum(end_ns - start_ns, other_end_ns[nearest] - other_start_ns[nearest])
        is_waiting |= ends_with & (earlier_ns >= _MIN_START_SHARE * longer_ns)
        span_ns = max(int(other_end_ns[-1] - other_end_ns[0]), 1)
        chance += 2 * tolerance_ns * len(other_end_ns) / span_ns
    waiting_ns = int((end_ns - start_ns)[is_waiting].sum())
    is_chance = float(chance.mean()) > _MAX_CHANCE
    return waiting_ns >= _MIN_WAITING * int(length_ns.sum()) and not is_chance


def _nearest(ascending: Ints, values: Ints) -> Ints:
    """Return the index of the element of a sorted array that is nearest to each value."""
    above = np.clip(np.searchsorted(ascending, values), 0, len(ascending) - 1)
    below = np.maximum(above - 1, 0)
    is_below_nearer = values - ascending[below] <= ascending[above] - values
    return np.asarray(np.where(is_below_nearer, below, above), np.int64)
