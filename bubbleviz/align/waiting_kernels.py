"""Waiting kernels: kernels with unknown names that count as compute but wait for other ranks.

A collective or a receive ends when the last rank has arrived, no matter how early it began on the
other ranks. Compute kernels do not behave this way::

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

from bubbleviz.align.profile_clocks import ProfileClock
from bubbleviz.interpret.communication import format_addition
from bubbleviz.interpret.recording import Recording, UnknownKernels
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import format_count, to_one_line

#: Minimum duration of a kernel that may be waiting.
_MIN_WAIT_NS = 20_000
#: Maximum difference between two end times that are treated as equal: in ns, and as a fraction of
#: the kernel's duration. The smaller of the two limits applies.
_MAX_END_NS, _MAX_END_SHARE = 10_000, 0.02
#: Minimum difference between the starts of two kernels, as a fraction of the longer kernel. A
#: forward takes between a third and half as long as a backward. If a forward and a backward end
#: together by chance, their starts differ by less than this.
_MIN_START_SHARE = 0.7
#: Minimum share of kernel time spent in waiting kernels, for the kernels with one name on a rank.
#: The second number is the maximum probability that two kernels end together by chance.
_MIN_WAITING, _MAX_CHANCE = 0.5, 0.2
#: Maximum number of ranks to compare for each kernel name.
_MAX_RANKS = 16
#: Maximum length, in characters, of a name in a message.
_MAX_NAME = 60


def find_waiting_kernels(
    recordings: Sequence[Recording], clocks: Sequence[ProfileClock], rank_of_recorded: Ints
) -> Iterator[Limitation]:
    """Yield a limitation for each kernel name that counts as compute but waits for other ranks.

    The kernels are compared on the report's clock (:func:`find_waiting_names`).

    Args:
        recordings: All recordings of a run.
        clocks: For each recording, the conversion from its clock to the report's clock.
        rank_of_recorded: For each rank of each recording, its index in the joined recordings.
    """
    kernels = convert_kernels(recordings, clocks, rank_of_recorded)
    yield from find_waiting_names(kernels, "bubbles are too small")


def convert_kernels(
    recordings: Sequence[Recording], clocks: Sequence[ProfileClock], rank_of_recorded: Ints
) -> Iterator[UnknownKernels]:
    """Yield the kernels with unknown names, with joined ranks and with times on other clocks.

    Args:
        recordings: All recordings of a run.
        clocks: For each recording, the clock to which its times are converted.
        rank_of_recorded: For each rank of each recording, its index in the joined recordings.
    """
    first_rank = 0
    for recording, clock in zip(recordings, clocks, strict=True):
        for kernels in recording.unknown_kernels:
            yield replace(
                kernels,
                rank=int(rank_of_recorded[first_rank + kernels.rank]),
                start_ns=clock.convert(kernels.start_ns),
                end_ns=clock.convert(kernels.end_ns),
            )
        first_rank += len(recording.ranks)


def find_waiting_names(kernels: Iterable[UnknownKernels], consequence: str) -> Iterator[Limitation]:
    """Yield a limitation for each kernel name that counts as compute but waits for other ranks.

    For each name, only the first ``_MAX_RANKS`` ranks that run its kernels are compared. The name
    is reported if its kernels wait on any of the compared ranks (:func:`_is_waiting`).

    Args:
        kernels: Kernels with unknown names, one element per rank, name and capture, with times on
            a common clock. Ranks have different numbers.
        consequence: Clause that explains how the numbers are wrong, for example "bubbles are too
            small".
    """
    for name, of_ranks in group_kernels_by_name(kernels).items():
        compared = of_ranks[:_MAX_RANKS]
        is_waiting = any(
            _is_waiting(of_rank, [other for other in compared if other is not of_rank])
            for of_rank in compared
        )
        if is_waiting:
            behavior = "ends at the same time on several of them, no matter how early it starts"
            yield describe_waiting(name, of_ranks, behavior, consequence)


def group_kernels_by_name(kernels: Iterable[UnknownKernels]) -> dict[str, list[UnknownKernels]]:
    """Return the kernels keyed by name. Each value is a list with one element per rank.

    Args:
        kernels: Kernels with unknown names, one element per rank and name.
    """
    by_name: dict[str, list[UnknownKernels]] = defaultdict(list)
    for of_rank in kernels:
        by_name[of_rank.name].append(of_rank)
    return by_name


def describe_waiting(
    name: str, of_ranks: Sequence[UnknownKernels], behavior: str, consequence: str
) -> Limitation:
    """Return a limitation stating that kernels with a given name probably wait.

    Args:
        name: Name of the kernels.
        of_ranks: The kernels with this name, one element per rank and capture.
        behavior: Evidence of waiting, as the predicate of a sentence about the kernels.
        consequence: Clause that explains how the numbers are wrong.
    """
    n_ranks = len({of_rank.rank for of_rank in of_ranks})
    total_ms = sum(of_rank.total_ns for of_rank in of_ranks) / 1e6
    return Limitation(
        "kernels that look like waiting count as compute",
        f"{to_one_line(name, _MAX_NAME)!r} takes {total_ms:,.3f} ms on "
        f"{format_count(n_ranks, 'rank')} and {behavior}, so {consequence}. If it "
        f"communicates, list it in a TOML file for --convention: {format_addition([name])}",
        sum(of_rank.count for of_rank in of_ranks),
        LimitationKind.WAITING_COUNTED,
    )


def _is_waiting(kernels: UnknownKernels, other_ranks: Sequence[UnknownKernels]) -> bool:
    """Return whether a rank's kernels with a given name mostly wait for other ranks.

    A kernel waits if it lasts at least ``_MIN_WAIT_NS`` and ends at the same time as a kernel of
    another rank that began much earlier or later (:func:`_mask_ending_with`). Waiting kernels must
    account for at least ``_MIN_WAITING`` of the total kernel time. The result is False if kernels
    are so frequent that their ends often agree by chance: the mean probability of an equal end must
    not exceed ``_MAX_CHANCE``.

    Args:
        kernels: Kernels on a single rank that all have the same name.
        other_ranks: Kernels with the same name on the other ranks, one element per rank.
    """
    length_ns = kernels.end_ns - kernels.start_ns
    can_wait = length_ns >= _MIN_WAIT_NS
    if not other_ranks or not can_wait.any():
        return False
    start_ns, end_ns = kernels.start_ns[can_wait], kernels.end_ns[can_wait]
    tolerance_ns = np.minimum(_MAX_END_SHARE * (end_ns - start_ns), _MAX_END_NS)
    is_waiting = np.zeros(len(start_ns), bool)
    probability = np.zeros(len(start_ns))
    for other in other_ranks:
        is_waiting |= _mask_ending_with(other, start_ns, end_ns, tolerance_ns)
        span_ns = max(int(other.end_ns.max() - other.end_ns.min()), 1)
        probability += 2 * tolerance_ns * len(other.end_ns) / span_ns
    waiting_ns = int((end_ns - start_ns)[is_waiting].sum())
    is_chance = float(probability.mean()) > _MAX_CHANCE
    return waiting_ns >= _MIN_WAITING * int(length_ns.sum()) and not is_chance


def _mask_ending_with(
    other: UnknownKernels, start_ns: Ints, end_ns: Ints, tolerance_ns: Floats
) -> Bools:
    """Return a mask of the kernels that end with a kernel on another rank but start far from it.

    Each kernel is compared with the kernel on the other rank whose end is nearest, or with the
    earlier kernel in case of a tie. The starts must differ by at least ``_MIN_START_SHARE`` of the
    longer kernel.

    Args:
        other: Kernels on the other rank. Must not be empty.
        start_ns: Start times of the kernels.
        end_ns: End times of the kernels.
        tolerance_ns: For each kernel, the maximum difference between two end times that are treated
            as equal.
    """
    by_end = np.argsort(other.end_ns, kind="stable")
    nearest = by_end[_find_nearest(other.end_ns[by_end], end_ns)]
    other_start_ns, other_end_ns = other.start_ns[nearest], other.end_ns[nearest]
    is_end_equal = np.abs(other_end_ns - end_ns) <= tolerance_ns
    longer_ns = np.maximum(end_ns - start_ns, other_end_ns - other_start_ns)
    is_start_apart = np.abs(other_start_ns - start_ns) >= _MIN_START_SHARE * longer_ns
    return np.asarray(is_end_equal & is_start_apart, bool)


def _find_nearest(ascending: Ints, values: Ints) -> Ints:
    """Return the index of the array element nearest to each value. Ties go to the smaller element.

    Args:
        ascending: Array in ascending order. Must not be empty.
        values: Values to look up.
    """
    above = np.clip(np.searchsorted(ascending, values), 0, len(ascending) - 1)
    below = np.maximum(above - 1, 0)
    is_below_nearer = values - ascending[below] <= ascending[above] - values
    return np.asarray(np.where(is_below_nearer, below, above), np.int64)
