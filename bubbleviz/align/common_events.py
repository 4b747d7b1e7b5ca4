"""Common events: F and B of two ranks of which one waits for the other, of many pairs at once.

Every F on the upstream one of two ranks of a pipeline ends before the other rank's input is there,
and every B likewise the other way. Pairs of ranks that have as many iterations and events are one
table, so that what is asked of them is asked of all together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from bubbleviz.align.iteration_fits import Histories, OperationEnds, Overlaps
from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.align.waits import NEVER, forward_and_backward
from bubbleviz.errors import MismatchError
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.grouping import (
    Groups,
    distinct_rows,
    expanded,
    first_of_each,
    groups_of,
    looked_up,
    rows_by_value,
)
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import pid_of
from bubbleviz.model.values import frozen

#: So many events of an iteration are compared, spread evenly over all.
_EVENTS = 64
#: Numbers that are worked on at once.
_AT_ONCE = 1 << 19


@frozen
class CommonEvents:
    """Events of pairs of ranks of which one waits for the other, shape (pairs, iterations, events).

    Attributes:
        a_ns: times on the first rank's clock; NaN unknown.
        b_ns: times on the second's.
        a_end_ns: ends of the same operations.
        b_end_ns: likewise.
        a_leads: by pair and event, whether the second rank waits for the first.
    """

    a_ns: Floats
    b_ns: Floats
    a_end_ns: Floats
    b_end_ns: Floats
    a_leads: Bools

    @property
    def known(self) -> bool:
        """Whether there are any."""
        return bool(self.a_leads.shape[1])

    def take(self, pairs: Ints) -> CommonEvents:
        """Return those of some of the pairs."""
        times = self.a_ns[pairs], self.b_ns[pairs], self.a_end_ns[pairs], self.b_end_ns[pairs]
        return CommonEvents(*times, self.a_leads[pairs])

    def bounds(self, overlaps: Overlaps) -> tuple[Floats, Floats]:
        """Return for each pair of iterations the least and the most to add to b's clock.

        Infinite where nothing bounds it; the shape is (pairs, moves, iterations).
        """
        return self._extremes(self.a_ns, self.b_ns, overlaps)

    def loose_bounds(self, overlaps: Overlaps) -> tuple[Floats, Floats]:
        """Return the same over all iterations, by ends alone, shape (pairs, moves).

        A span may begin with kernels that need no input.
        """
        least, most = self._extremes(self.a_end_ns, self.b_end_ns, overlaps)
        return least.max(axis=2, initial=-np.inf), most.min(axis=2, initial=np.inf)

    def _extremes(self, a_ns: Floats, b_ns: Floats, overlaps: Overlaps) -> tuple[Floats, Floats]:
        shape = len(a_ns), *overlaps.held.shape
        least, most = np.full(shape, -np.inf), np.full(shape, np.inf)
        leads = self.a_leads[:, None, None]
        size = max(1, _AT_ONCE // max(len(a_ns) * shape[2] * a_ns.shape[2], 1))
        for low in range(0, shape[1], size):
            at = slice(low, low + size)
            some = overlaps.take(at)
            apart = a_ns[:, some.first] - b_ns[:, some.second]
            seen = ~np.isnan(apart) & some.held[None, :, :, None]
            least[:, at] = np.where(seen & leads, apart, -np.inf).max(axis=3, initial=-np.inf)
            most[:, at] = np.where(seen & ~leads, apart, np.inf).min(axis=3, initial=np.inf)
        return least, most


def common_events(
    histories: Histories, first: Ints, second: Ints, by_ns: Ints
) -> Iterator[tuple[Ints, CommonEvents]]:
    """Yield (numbers of pairs, their events): of pairs of one shape, some at a time.

    Compared are virtual stages next to each other.

    Args:
        histories: of all ranks.
        first: a rank of each pair.
        second: another one.
        by_ns: what is added to the clock of that.
    """
    if len(first) == 0:
        return
    counts, rows = histories.counts, np.diff(histories.first_end)
    larger = np.maximum((counts[first] + counts[second]) ** 2, rows[first] + rows[second])
    size = max(1, _AT_ONCE // max(int(larger.max()), 1))
    for low in range(0, len(first), size):
        at = slice(low, low + size)
        for pairs, events in _of_some(histories, first[at], second[at], by_ns[at]):
            yield pairs + low, events


def _of_some(
    histories: Histories, first: Ints, second: Ints, by_ns: Ints
) -> Iterator[tuple[Ints, CommonEvents]]:
    """Yield the events of pairs, by shape."""
    ours, theirs = (_Entries(histories, ranks) for ranks in (first, second))
    nearest = _nearest(ours, theirs)
    column, partner = ours.partners(theirs, nearest)
    pair = ours.pair[column]
    number = np.bincount(pair, minlength=len(first))
    begin = np.cumsum(number) - number
    kept = np.minimum(number, _EVENTS)
    owner, nth = expanded(np.zeros_like(kept), kept)
    chosen = begin[owner] + nth * number[owner] // np.maximum(kept[owner], 1)
    column, partner = column[chosen], partner[chosen]
    stage, other = ours.stage[column], theirs.stage[partner]
    leads = (ours.event[column] & 1 == 0) == (stage < other)
    begin = np.cumsum(kept) - kept
    a_ready, a_end = ours.times(np.zeros_like(by_ns))
    b_ready, b_end = theirs.times(by_ns)
    counts = histories.counts
    shapes = groups_of(counts[first], counts[second], kept)
    for _, pairs in rows_by_value(shapes.of_row):
        at = begin[pairs][:, None] + np.arange(kept[pairs[0]])
        one = ours.laid_out(column[at], int(counts[first[pairs[0]]]))
        two = theirs.laid_out(partner[at], int(counts[second[pairs[0]]]))
        a_leads = leads[at]
        yield (
            pairs,
            CommonEvents(
                _inner(np.where(a_leads[:, None], a_end[one], a_ready[one])),
                _inner(np.where(a_leads[:, None], b_ready[two], b_end[two])),
                a_end[one],
                b_end[two],
                a_leads,
            ),
        )


class _Entries:
    """The events of one rank of each pair: a row for each (pair, virtual stage, event), in order.

    Args:
        histories: of all ranks.
        ranks: the rank of each pair.

    Attributes:
        stages: numbers of each end's (pair, virtual stage).
        pair: number of the pair of each event.
        group: number of the (pair, virtual stage) of each.
        stage: virtual stage of each.
        event: which event it is.
    """

    def __init__(self, histories: Histories, ranks: Ints) -> None:
        pair, row = histories.rows_of(ranks)
        self._ends: OperationEnds = histories.ends.take(row)
        self._of_row = pair
        self._counts = histories.counts[ranks]
        self.stages: Groups = groups_of(pair, self._ends.virtual_stage)
        self._entries = groups_of(self.stages.of_row, self._ends.events)
        first = self._entries.first
        self.pair, self.group = pair[first], self.stages.of_row[first]
        self.stage, self.event = self._ends.virtual_stage[first], self._ends.events[first]
        width = self._counts[self.pair]
        self._begin = np.cumsum(width) - width
        self._size = int(width.sum())

    def of_stages(self) -> tuple[Ints, Ints]:
        """Return the pair and the virtual stage of each (pair, virtual stage)."""
        first = self.stages.first
        return self._of_row[first], self._ends.virtual_stage[first]

    def partners(self, others: _Entries, group: Ints) -> tuple[Ints, Ints]:
        """Return the rows that others have, too, and the rows there.

        Args:
            others: of the other rank of each pair.
            group: that of the others that each (pair, virtual stage) is compared with; -1 none.
        """
        found = looked_up(
            (others.group, others.event),
            np.arange(len(others.group)),
            (group[self.group], self.event),
        )
        shared = np.flatnonzero(found >= 0)
        return shared, found[shared]

    def times(self, by_ns: Ints) -> tuple[Floats, Floats]:
        """Return when inputs were there, and ends, by event and iteration; NaN unknown.

        Args:
            by_ns: what is added, by pair.
        """
        ready, end = np.full(self._size, np.nan), np.full(self._size, np.nan)
        at = self._begin[self._entries.of_row] + self._ends.iteration
        ready_ns, by = self._ends.ready_ns, by_ns[self._of_row]
        ready[at] = np.where(ready_ns == NEVER, np.nan, ready_ns + by)
        end[at] = self._ends.end_ns + by
        return ready, end

    def laid_out(self, rows: Ints, count: int) -> Ints:
        """Return where the times of rows are, shape (pairs, iterations, events).

        Args:
            rows: shape (pairs, events).
            count: how many iterations all of these pairs have.
        """
        return self._begin[rows][:, None] + np.arange(count)[:, None]


def _nearest(ours: _Entries, theirs: _Entries) -> Ints:
    """Return the group of theirs whose virtual stage is nearest to each of ours; -1 for none.

    Of two that are equally near it is the earlier one.
    """
    pair, stage = ours.of_stages()
    others, their_stage = theirs.of_stages()
    if len(others) == 0:
        return np.full(len(pair), NONE, np.int64)
    size = int(max(stage.max(initial=0), their_stage.max())) + 1
    behind = np.searchsorted(others * size + their_stage, pair * size + stage)
    before = behind - 1
    last = len(others) - 1
    has_behind = (behind <= last) & (others[np.minimum(behind, last)] == pair)
    has_before = (before >= 0) & (others[before] == pair)
    nearer = stage - their_stage[before] <= their_stage[np.minimum(behind, last)] - stage
    return np.where(has_before & (nearer | ~has_behind), before, np.where(has_behind, behind, NONE))


def _inner(times_ns: Floats) -> Floats:
    """Return times without the first and last of each pair: a capture may have cut those."""
    unknown = np.isnan(times_ns)
    low = np.where(unknown, np.inf, times_ns).min(axis=(1, 2), initial=np.inf)
    high = np.where(unknown, -np.inf, times_ns).max(axis=(1, 2), initial=-np.inf)
    edge = (times_ns == low[:, None, None]) | (times_ns == high[:, None, None])
    return np.where(edge, np.nan, times_ns)


# Refusals: profiles that are of no single run.


def refuse_other_runs(
    recordings: Sequence[Recording], machines: Sequence[str], joined: JoinedRecordings
) -> None:
    """Refuse recordings that are of no one run.

    Args:
        recordings: one a profile.
        machines: on which each was made.
        joined: all of them.

    Raises:
        MismatchError: they differ in what one run has in common, or hold a process twice.
    """
    # An export that lost names of ranges is not held to what these tell.
    lost = LimitationKind.RANGE_NAMES_LOST
    named = [all(note.kind is not lost for note in r.limitations) for r in recordings]
    _refuse_other_shapes(recordings, np.array(named), joined)
    _refuse_other_namings([r for r, kept in zip(recordings, named, strict=True) if kept])
    _refuse_one_process_twice(recordings, machines)
    _refuse_one_rank_twice(recordings)


def _refuse_other_shapes(
    recordings: Sequence[Recording], named: Bools, joined: JoinedRecordings
) -> None:
    """Raise MismatchError where profiles ran other numbers of microbatches or chunks.

    Counted are a rank's iterations in which every forward has its backward.

    Args:
        recordings: one a profile.
        named: which of them hold all names.
        joined: all of them.
    """
    rank, forwards, chunks = _whole_iterations(joined.operations)
    profile = np.array([rank.profile for rank in joined.ranks], np.int64)[rank]
    kept = named[profile]
    profile, forwards, chunks = profile[kept], forwards[kept], chunks[kept]
    numbers = forwards // np.maximum(chunks, 1), chunks
    whats = "microbatches an iteration", "model chunks per rank"
    for number, what in zip(numbers, whats, strict=True):
        first: dict[int, str] = {}
        for place, usual in zip(
            *(column.tolist() for column in _usual(profile, number)), strict=True
        ):
            first.setdefault(usual, recordings[place].source.path)
        if len(first) > 1:
            (usual, path), (another, second), *_ = first.items()
            raise MismatchError(
                f"{path} and {second}: {usual} and {another} {what}, so they are no single run, "
                "or a range is missing in one; give the profiles of one run, each as a whole"
            )


def _usual(profile: Ints, number: Ints) -> tuple[Ints, Ints]:
    """Return profiles, ascending, and the most frequent number of each (ties: the smallest)."""
    groups = groups_of(profile, number)
    often = np.bincount(groups.of_row, minlength=len(groups))
    owner, value = profile[groups.first], number[groups.first]
    most = first_of_each(owner, -often, value)
    return owner[most], value[most]


def _refuse_other_namings(recordings: Sequence[Recording]) -> None:
    """Raise MismatchError where two profiles share no convention of forward or backward.

    Which one leads may differ: ranks name their layers, or their transfers, more or less often.
    """
    differing = {(r.convention, r.conventions): r for r in recordings}
    for first, second in combinations(differing.values(), 2):
        if first.convention != second.convention and not first.conventions & second.conventions:
            raise MismatchError(
                f"{first.source.path} and {second.source.path}: {first.convention} and "
                f"{second.convention} as their naming convention, so they are no single run; give "
                "the profiles of one run"
            )


def _refuse_one_process_twice(recordings: Sequence[Recording], machines: Sequence[str]) -> None:
    """Raise MismatchError where two profiles hold the same process of the same machine.

    That is a process captured twice (``--capture-range-end=repeat``), or two runs.
    """
    paths: dict[tuple[str, str, int], str] = {}
    for recording, machine in zip(recordings, machines, strict=True):
        for process in {rank.process for rank in recording.ranks}:
            # Containers of one machine count their processes each for itself.
            key = (machine, recording.source.host, process)
            path = paths.setdefault(key, recording.source.path)
            if path != recording.source.path and recording.source.host_known:
                raise MismatchError(
                    f"{path} and {recording.source.path}: both hold process {pid_of(process)} of "
                    "the same host, so they are two captures or two runs; analyze each by itself"
                )


def _refuse_one_rank_twice(recordings: Sequence[Recording]) -> None:
    """Raise MismatchError where two tables of operations hold the same rank."""
    paths: dict[int, str] = {}
    for recording in recordings:
        for rank in (rank.told.number for rank in recording.ranks if rank.told is not None):
            path = paths.setdefault(rank, recording.source.path)
            if path != recording.source.path:
                raise MismatchError(
                    f"{path} and {recording.source.path}: both hold rank {rank}; give all rows of "
                    "a rank in one table, or each rank a number of its own"
                )


def _whole_iterations(operations: RankOperations) -> tuple[Ints, Ints, Ints]:
    """Return rank, forwards and chunks of the (rank, iteration) that a capture did not cut.

    These begin with microbatch 0, every forward has its backward there, and vice versa, and an
    Optimizer or another iteration follows.
    """
    first = (operations.occurrence == 0) & (operations.iteration >= 0)
    iterations = int(operations.iteration.max(initial=0)) + 1
    cell = operations.rank * iterations + operations.iteration
    cells = int(cell.max(initial=0)) + 1
    forward = np.flatnonzero(first & among(operations.phase, (Phase.F, Phase.FB)))
    backward = np.flatnonzero(first & among(operations.phase, (Phase.B, Phase.BW, Phase.FB)))
    both = np.concatenate((forward, backward))
    microbatch, chunk = forward_and_backward(operations, forward, backward)
    number = groups_of(cell[both], microbatch, chunk, operations.sequence[both]).of_row
    of_forward, of_backward = number[: len(forward)], number[len(forward) :]
    cut = np.zeros(cells, bool)
    cut[cell[forward[~np.isin(of_forward, of_backward)]]] = True
    cut[cell[backward[~np.isin(of_backward, of_forward)]]] = True
    begins = np.zeros(cells, bool)
    begins[cell[forward[operations.microbatch[forward] == 0]]] = True
    pairs = distinct_rows(cell[forward], operations.chunk[forward])
    followed = np.zeros(cells + 1, bool)
    followed[cell[first & (operations.phase == Phase.OPTIMIZER)]] = True
    later = cell[forward[operations.iteration[forward] > 0]] - 1
    followed[later] = True
    whole = begins & ~cut & followed[:cells]
    return (
        np.flatnonzero(whole) // iterations,
        np.bincount(cell[forward], minlength=cells)[whole],
        np.bincount(pairs[0], minlength=cells)[whole],
    )
