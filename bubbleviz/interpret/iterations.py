"""Steps: which ranges of a process are its iterations, pipeline or not.

First that fits: what the user gives; names that a convention knows to mark iterations
(``ProfilerStep#3``, ``iter_0_7``, ``train#step_num=3#``); a family of names that count up, do not
overlap and cover half of the device's time (``step 7``); one name that repeats and covers four
fifths of it. Of families that cover about as much the one with most ranges is taken:
iterations rather than epochs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.conventions.convention_file import built_in, with_iterations
from bubbleviz.conventions.host_activities import HOST, ActivityList
from bubbleviz.conventions.range_names import bare_name, folded, understand
from bubbleviz.conventions.toml_files import UNCOMPILED, ambiguity_of, compile_pattern
from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import Numbering, distinct, groups_of, numbered, rows_by_value
from bubbleviz.model.intervals import disjoint_layers
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, TRANSFERS, Phase
from bubbleviz.model.profile import Ranges, process_of
from bubbleviz.model.texts import matches_whole

#: Families that count up, and names that repeat, cover at least so much of the device's time.
_COUNTED, _REPEATED = 0.5, 0.8
#: What covers less than the best by so much is no worse.
_ABOUT = 0.1
#: Minimum gap between two Optimizers of different iterations, as a fraction of the time that a rank
#: usually works before an Optimizer.
_IDLE_STEP = 0.5
_NUMBER = re.compile(r"[0-9]+")
#: Sentinel that is larger than the number of ranges of any Optimizer.
_MANY = 1 << 31
#: No iteration has a number of more digits.
_DIGITS = 18


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Table):
    """Iterations of a process, disjoint, in order.

    Attributes:
        start_ns: when the host began it.
        end_ns: when the host ended it.
        name_id: row of ``names``.
        names: distinct names.
        by: how they were found, in half a sentence.
    """

    start_ns: Ints
    end_ns: Ints
    name_id: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    by: str = field(metadata={"shared": True})

    def numbers(self) -> tuple[str, ...]:
        """Return the number of each step: the last in its name, else its place, from 0."""
        last = [_NUMBER.findall(self.names[name])[-1:] for name in self.name_id.tolist()]
        return tuple(
            str(int(digits[0][:_DIGITS])) if digits else str(place)
            for place, digits in enumerate(last)
        )

    def within(self, low_ns: int, high_ns: int) -> Steps:
        """Return the steps that share time with [low, high)."""
        return self.take((self.end_ns > low_ns) & (self.start_ns < high_ns))


def pattern_of(text: str) -> re.Pattern[str]:
    """Return the pattern of ``--step``: the name itself, or a regex on the whole name.

    Raises:
        UsageError: it is no regular expression.
    """
    try:
        compile_pattern(text)
        return compile_pattern(f"(?:{re.escape(text)})|(?:{text})")
    except FutureWarning as warning:
        raise UsageError(f"--step: {ambiguity_of(text, warning)}") from warning
    except UNCOMPILED as error:
        raise UsageError(
            f"--step {text[:60]!r}: not a regular expression ({error}); give the name of ranges, "
            "or a pattern such as 'step [0-9]+'"
        ) from error


def steps_of(
    ranges: Ranges,
    process: int,
    start_ns: int,
    end_ns: int,
    lookup: ActivityList,
    pattern: re.Pattern[str] | None = None,
) -> Steps:
    """Return the steps of a process; none where nothing marks them.

    Args:
        ranges: the longer ones of threads that launch, and of main threads.
        process: whose.
        start_ns: when its device's work began.
        end_ns: when that ended.
        lookup: of activities by name.
        pattern: of the names that the user gives; None for none.
    """
    ranges = ranges.take(process_of(ranges.thread) == process)
    names = [bare_name(name) for name in ranges.names]
    if pattern is not None:
        matching = np.array([matches_whole(pattern, name) for name in names], bool)
        return _steps(ranges.take(matching[ranges.name_id]), "as --step says")
    marks = understand(names, *with_iterations(()))
    marked = np.asarray((marks.iteration >= 0) & (marks.phase < 0), bool)
    if marked[ranges.name_id].any():
        return _steps(ranges.take(marked[ranges.name_id]), "ranges that name iterations")
    best = _best(ranges, names, lookup, start_ns, end_ns)
    by = "ranges that repeat over most of the time" if len(best) else "the whole capture"
    return _steps(best, by)


def frequent_names(ranges: Ranges) -> str:
    """Return the most frequent shapes of names, for a complaint."""
    counts = np.bincount(ranges.name_id, minlength=len(ranges.names)).tolist()
    named = {
        bare_name(name): count for name, count in zip(ranges.names, counts, strict=True) if count
    }
    return ", ".join(f"{name[:60]!r} ({count})" for name, count in folded(named, 5)) or "none"


def _steps(ranges: Ranges, by: str) -> Steps:
    """Return the first of some ranges, then the first after its end, and so on."""
    ranges = ranges.take(ranges.end_ns > ranges.start_ns)
    ranges = ranges.take(np.lexsort((-ranges.end_ns, ranges.start_ns)))
    # Steps may touch, and layers must not.
    layers = disjoint_layers(ranges.start_ns, ranges.end_ns - 1)
    ranges = ranges.take(layers[0] if layers else slice(0))
    used = distinct(ranges.name_id).tolist()
    texts = Numbering[str]()
    of_name = np.full(len(ranges.names), NONE)
    of_name[used] = texts.numbers(bare_name(ranges.names[name]) for name in used)
    return Steps(ranges.start_ns, ranges.end_ns, of_name[ranges.name_id], texts.values, by)


def _best(
    ranges: Ranges, names: Sequence[str], lookup: ActivityList, start_ns: int, end_ns: int
) -> Ranges:
    """Return the family that looks most like iterations; no ranges where none does."""
    for counted in (True, False):
        found = list(_families(ranges, names, lookup, (start_ns, end_ns), counted=counted))
        most = max((share for share, _ in found), default=0.0)
        alike = [rows for share, rows in found if share >= most - _ABOUT]
        if alike:
            return ranges.take(max(alike, key=len))
    return ranges.take(slice(0, 0))


def _families(
    ranges: Ranges,
    names: Sequence[str],
    lookup: ActivityList,
    span_ns: tuple[int, int],
    *,
    counted: bool,
) -> Iterator[tuple[float, Ints]]:
    """Yield families that count up, or names that repeat, and cover enough of a span.

    A family is ranges of one thread whose names differ by their numbers alone; it is given as the
    share that it covers, and its rows.
    """
    shapes, shape_of = Numbering[str](), np.full(len(names), NONE, np.int64)
    numbers = np.zeros(len(names), np.int64)
    # The conventions reduced to patterns that mark iterations without a number.
    marks = [
        replace(c, patterns=tuple(p for p in c.patterns if p.by_order)) for c in built_in().values()
    ]
    ordered = understand(names, *(c for c in marks if c.patterns)).by_order
    for row, name in enumerate(names):
        digits = [text for text in _NUMBER.findall(name) if len(text) <= _DIGITS]
        # A framework's own ranges have an activity of theirs.
        if bool(digits) < counted or not (ordered[row] or lookup.of(name)[0].startswith(HOST)):
            continue
        numbers[row] = int(digits[-1]) if digits else 0
        shape_of[row] = shapes.number(_NUMBER.sub("#", name) if counted else name)
    least = _COUNTED if counted else _REPEATED
    shape = shape_of[ranges.name_id]
    alike = np.flatnonzero(shape >= 0)
    # As many turns as there are names of longer ranges, on each thread.
    for _, own in rows_by_value(groups_of(ranges.thread[alike], shape[alike]).of_row):
        rows = alike[own][np.argsort(ranges.start_ns[alike[own]], kind="stable")]
        start, end = ranges.start_ns[rows], ranges.end_ns[rows]
        rising = np.diff(numbers[ranges.name_id[rows]]) > 0
        if len(rows) < 2 or (start[1:] < end[:-1]).any() or (counted and not rising.all()):
            continue
        inside = np.clip(end, *span_ns) - np.clip(start, *span_ns)
        share = float(inside.sum()) / max(span_ns[1] - span_ns[0], 1)
        if share >= least:
            yield share, rows


# Iterations of one rank: which operations belong together, by the host order of their ranges.
#
# Names come first (``iter_{rank}_{n}``, ``ProfilerStep#n``). Without them a rank's iteration ends
# at the last Optimizer before a forward that it already holds, or at that forward::
#
#     F0 F1 B0 B1 Optimizer F0 F1 B0 B1 Optimizer
#                          │
#                          └ F0 is held already: the iteration ended at the Optimizer before it
#
# An Optimizer that follows another one may be an iteration without other work: see
# ``_find_idle_steps``.
#
# A capture that begins inside an iteration repeats forwards from its own first on: see ``_bounds``.
# Frameworks that give every microbatch the same name hold "the same forward" all the time; there
# an iteration ends at an Optimizer that a forward follows.


@dataclass(frozen=True, eq=False, repr=False)
class HostOrder(Table):
    """Ranges of operations in the order of (rank, host start).

    Attributes:
        rank: rank of the profile.
        microbatch: microbatch number.
        key: one number for each (chunk, sequence, microbatch).
        whole_key: the same with the phase.
        mark: number of the iteration that a range names around it; -1 none.
        forward: whether it is (or holds) a forward.
        counted: whether it is F, B, W, BW or FB.
        transfer: whether it is communication between two ranks.
        optimizer: whether it is an Optimizer that ends an iteration.
        post_validation: whether it is optimizer work for the iteration before.
        start_ns: Start of its compute kernels, or of the range if these are unknown.
        end_ns: End of its compute kernels, or of the range if these are unknown.
    """

    rank: Ints
    microbatch: Ints
    key: Ints
    whole_key: Ints
    mark: Ints
    forward: Bools
    counted: Bools
    transfer: Bools
    optimizer: Bools
    post_validation: Bools
    start_ns: Ints
    end_ns: Ints


def host_order(
    rank: Ints,
    phase: Ints,
    key: Sequence[Ints],
    second: Sequence[Ints],
    mark: Ints,
    times_ns: tuple[Ints, Ints],
    post_validation: Bools | None = None,
) -> HostOrder:
    """Return the input of the search for iterations; rows in order of (rank, host start).

    Args:
        rank: rank of the profile.
        phase: what each range does.
        key: what else distinguishes operations: chunk, sequence and, last, microbatch.
        second: what distinguishes those of two names.
        mark: number of the iteration that a range names around it; -1 none.
        times_ns: Start and end of the compute kernels of each range, or of the range if these are
            unknown.
        post_validation: whether it is optimizer work for the iteration before; None for none.
    """
    validates = np.zeros(len(rank), bool) if post_validation is None else post_validation
    number = groups_of(*key).of_row
    return HostOrder(
        rank=rank.copy(),
        microbatch=key[-1].copy(),
        key=number,
        whole_key=groups_of(number, phase, *second).of_row,
        mark=mark.copy(),
        forward=among(phase, (Phase.F, Phase.FB)),
        counted=among(phase, COUNTED),
        transfer=among(phase, TRANSFERS),
        optimizer=(phase == Phase.OPTIMIZER) & ~validates,
        post_validation=validates.copy(),
        start_ns=times_ns[0].copy(),
        end_ns=times_ns[1].copy(),
    )


def constant_names(order: HostOrder) -> Bools:
    """Tell for each range whether its rank gives every microbatch the same number.

    That is so where all forwards name one microbatch and an iteration has several of one chunk,
    by the ranges that name iterations, or else by Optimizers.
    """
    constant = np.zeros(len(order), bool)
    for rank in distinct(order.rank):
        rows = np.flatnonzero(order.rank == rank)
        ranges = order.take(rows)
        marked = bool((ranges.mark >= 0).any())
        named = distinct(ranges.microbatch[ranges.forward])
        divided = marked or bool(ranges.optimizer.any()) or named.tolist() == [NONE]
        if not divided or len(named) != 1:
            continue
        iteration = ranges.mark if marked else _segments(_after_optimizers(ranges), len(ranges))
        forward = ranges.forward & (ranges.mark >= 0) if marked else ranges.forward
        constant[rows] = bool(occurrences((iteration[forward], ranges.key[forward])).any())
    return constant


def _segments(bounds: Ints, count: int) -> Ints:
    """Return for each of ``count`` places how many bounds lie at or before it."""
    return np.searchsorted(bounds, np.arange(count), side="right")


def _continues(ranges: HostOrder) -> Bools:
    """Tell for each range of a rank whether it is a further part of the operation before it.

    That is: it has the key of the last F, B or W before it, and no Optimizer lies between.
    """
    result = np.zeros(len(ranges), bool)
    at = np.flatnonzero(ranges.counted)
    steps = np.cumsum(ranges.optimizer)[at]
    same = ranges.whole_key[at][1:] == ranges.whole_key[at][:-1]
    result[at[1:]] = same & (np.diff(steps) == 0)
    return result


def number_iterations(order: HostOrder, constant: Bools) -> Ints:
    """Return each operation's iteration, counted from 0 in its rank.

    Post-validation belongs to the iteration of the last Optimizer before it; -1 where the
    capture holds none.
    """
    iteration = np.full(len(order), NONE, np.int64)
    ranks, parts = distinct(order.rank), _count_step_ranges(order)
    for rank, n_parts in zip(ranks.tolist(), parts.tolist(), strict=True):
        rows = np.flatnonzero(order.rank == rank)
        ranges = order.take(rows)
        index = _by_marks(ranges, constant=bool(constant[rows[0]]), n_parts=n_parts)
        late = np.flatnonzero(ranges.post_validation)
        ends = np.flatnonzero(ranges.optimizer)
        before = np.searchsorted(ends, late) - 1
        index[late] = np.where(before >= 0, index[ends[before]] if len(ends) else NONE, NONE)
        iteration[rows] = index
    return iteration


def _by_marks(ranges: HostOrder, *, constant: bool, n_parts: int) -> Ints:
    """Return a rank's iterations: as ranges name them, and by repetition where none does.

    What no range names stands between the named ones, as an evaluation does::

        marks    0 0 0 0   - - - -   1 1 1 1
        ranges   F0 F1 B0 B1 F0 F1 F0 F1 F0 F1 B0 B1
        gives    0  0  0  0  1  1  2  2  3  3  3  3
    """
    marked = ranges.mark >= 0
    row = np.arange(len(ranges))
    last = np.maximum.accumulate(np.where(marked, row, NONE))
    number = np.where(last >= 0, ranges.mark[np.maximum(last, 0)], NONE)
    place = np.zeros(len(ranges), np.int64)
    for start in distinct(last[~marked]).tolist():
        rows = np.flatnonzero(~marked & (last == start))
        loose = ranges.take(rows)
        bounds = _after_optimizers(loose) if constant else _bounds(loose)
        place[rows] = _segments(bounds, len(rows)) + 1
    return groups_of(number, place, np.cumsum(_find_idle_steps(ranges, n_parts))).of_row


def _count_step_ranges(order: HostOrder) -> Ints:
    """Return the number of ranges that make up one Optimizer of each rank, or -1 if unknown.

    It is the smallest number of consecutive Optimizer ranges at the end of an iteration, over all
    ranks with the same total number of them. These ranks step together, and one of them may idle in
    every other iteration::

        rank 0   F0 B0 Optimizer   F0 B0 Optimizer   F0 B0 Optimizer   F0 B0 Optimizer
        rank 1   F0 B0 Optimizer         Optimizer   F0 B0 Optimizer         Optimizer

    It is unknown if an Optimizer runs between backwards.

    Args:
        order: Ranges of all ranks.

    Returns:
        Number of ranges for each distinct rank, in ascending order of ranks.
    """
    ranks = distinct(order.rank)
    is_step = order.optimizer[order.counted | order.optimizer]
    if not (is_step[1:] & is_step[:-1]).any():
        return np.full(len(ranks), NONE)
    fewest, n_steps = [], []
    for rank in ranks:
        ranges = order.take(np.flatnonzero(order.rank == rank))
        ranges = ranges.take(ranges.counted | ranges.optimizer)
        first, stop = _find_step_runs(ranges.optimizer)
        is_at_end = ranges.forward[stop[stop < len(ranges)]].all()
        # The capture may begin between the parts of an Optimizer.
        count = (stop - first)[first > 0] if is_at_end else stop[:0]
        fewest.append(int(count.min(initial=_MANY)))
        n_steps.append(int(np.count_nonzero(ranges.optimizer)))
    group = groups_of(np.array(n_steps, np.int64)).of_row
    parts = np.full(len(fewest), _MANY)
    np.minimum.at(parts, group, np.array(fewest, np.int64))
    parts = parts[group]
    return np.where((parts < _MANY) & (np.array(fewest) < _MANY), parts, NONE)


def _find_step_runs(is_step: Bools) -> tuple[Ints, Ints]:
    """Return the half-open ranges (first, stop) of consecutive Optimizers."""
    first = np.flatnonzero(is_step & ~np.append(False, is_step[:-1]))
    last = np.flatnonzero(is_step & ~np.append(is_step[1:], False))
    return first, last + 1


def _find_idle_steps(ranges: HostOrder, n_parts: int) -> Bools:
    """Return a mask of the Optimizers that start an iteration without other work of the rank.

    A stage without work in an iteration still runs its Optimizer. That Optimizer then directly
    follows the Optimizer of the previous iteration::

        ranges    F0 B0 Optimizer   F0 B0 Optimizer Optimizer   F0 B0 Optimizer
                                                    └ idle

    A single Optimizer may also consist of several ranges. Their number is used if every iteration
    with work ends with a multiple of it. Otherwise the time between Optimizers decides.

    Args:
        ranges: The ranges of one rank.
        n_parts: Number of ranges of an Optimizer, or -1 if it is unknown.

    Returns:
        Mask of the Optimizers that begin an idle iteration.
    """
    is_idle = np.zeros(len(ranges), bool)
    rows = np.flatnonzero(ranges.counted | ranges.optimizer)
    is_step = ranges.optimizer[rows]
    follows_step = np.append(False, is_step[:-1])
    if not (is_step & follows_step).any() or not ranges.forward.any():
        return is_idle
    first, stop = _find_step_runs(is_step)
    count = (stop - first)[first > 0]
    if n_parts > 0 and len(count) and not (count % n_parts).any():
        is_idle[rows] = _find_idle_steps_by_count(is_step, n_parts)
    else:
        is_idle[rows] = _find_idle_steps_by_time(ranges.take(rows))
    return is_idle


def _find_idle_steps_by_count(is_step: Bools, n_parts: int) -> Bools:
    """Return a mask of the Optimizers that start an idle iteration, by counting their ranges.

    Args:
        is_step: Mask of the Optimizers of a rank. The other ranges are forwards and backwards, at
            least one.
        n_parts: Number of ranges of an Optimizer.
    """
    first, stop = _find_step_runs(is_step)
    row = np.arange(len(is_step))
    run = np.searchsorted(first, row, side="right") - 1
    # Ranges before the first work are counted backwards from that work.
    offset = np.where(first[run] == 0, row - stop[run], row - first[run])
    begins = is_step & (offset % n_parts == 0)
    # The first Optimizer of a run belongs to the work before it, or to an iteration that was cut.
    return np.asarray(begins & (row != first[run]), bool)


def _find_idle_steps_by_time(ranges: HostOrder) -> Bools:
    """Return a mask of the Optimizers that start an idle iteration, by the time before them.

    A stage without work in an iteration waits for the other stages before it runs its Optimizer.
    The ranges of a single Optimizer follow each other closely::

        ranges    F0 B0 Optimizer                 Optimizer   F0 B0 Optimizer Optimizer
                                  └─ as long as ─┘└ idle            two parts ┘
                                     F0 and B0

    If such a gap is between two Optimizers in every iteration, both belong to the same iteration
    and none is idle.

    Args:
        ranges: Forwards, backwards and Optimizers of one rank.
    """
    is_idle = np.zeros(len(ranges), bool)
    is_step = ranges.optimizer
    follows_step = np.append(False, is_step[:-1])
    first_work = np.flatnonzero(~is_step & np.append(True, is_step[:-1]))
    first_step = np.flatnonzero(is_step & ~follows_step)
    first_step = first_step[first_step > first_work[0]]
    if len(first_step) < 2:
        return is_idle
    work_ns = ranges.start_ns[first_step] - ranges.start_ns[first_work[: len(first_step)]]
    gap_ns = np.append(0, ranges.start_ns[1:] - ranges.end_ns[:-1])
    is_late = is_step & follows_step & (gap_ns > _IDLE_STEP * np.median(work_ns))
    iteration = np.searchsorted(first_step, np.flatnonzero(is_late), side="right")
    if len(distinct(iteration[iteration > 0])) < len(first_step):
        is_idle[is_late] = True
    return is_idle


def _after_optimizers(ranges: HostOrder) -> Ints:
    """Return where iterations begin: after the last Optimizer before a forward."""
    forwards, ends = np.flatnonzero(ranges.forward), np.flatnonzero(ranges.optimizer)
    last = np.searchsorted(ends, forwards) - 1
    return distinct(ends[last[last >= 0]]) + 1 if len(ends) else np.empty(0, np.int64)


def _bounds(ranges: HostOrder) -> Ints:
    """Return where iterations begin: at repeated forwards, or at an F of the first microbatch.

    A capture that begins inside an iteration without an Optimizer repeats forwards from its own
    first on. Of both ways, that counts which misplaces fewer operations, then that which leaves
    more whole iterations; in a tie the first microbatch begins one::

        ranges       F2 B2 F3 B3 F0 F1 B0 F2 B1 F3 B2 B3 F0 F1 B0 ...
        repeated     ├─────────────────┤├───────────────────┤├───
        first        ├─────────┤├─────────────────────┤├─────────
    """
    forwards = np.flatnonzero(ranges.forward & ~_continues(ranges))
    if len(forwards) == 0:
        return forwards
    repeated, at = _at_repetitions(ranges, forwards), np.flatnonzero(ranges.counted)
    key, number = ranges.key[forwards], ranges.microbatch[forwards]
    starts = distinct(key[number == number.min()])
    if at[0] == forwards[0] and key[0] == starts[0] == starts[-1]:
        return repeated
    before, ends = np.append(NONE, forwards), np.flatnonzero(ranges.optimizer)
    # An Optimizer before all work belongs to a separate iteration.
    first_row = min([int(at[0]), *ends[:1].tolist()])
    found = []
    for start in starts.tolist():  # one for each chunk
        first = forwards[key == start]
        # After an Optimizer behind the forward before.
        last = np.append(NONE, ends)[np.searchsorted(ends, first)]
        begin = np.where(last > before[np.searchsorted(forwards, first)], last + 1, first)
        found.append(begin[begin > first_row])
    return min(*found, repeated, key=lambda bounds: _flaws(ranges, forwards, bounds))


def _flaws(ranges: HostOrder, forwards: Ints, bounds: Ints) -> tuple[int, int]:
    """Return how many operations bounds misplace, and minus how many iterations are whole.

    Misplaced are a backward apart from its forward, and a forward behind another one of its key.
    """
    segment = _segments(bounds, len(ranges))
    rows = np.flatnonzero(ranges.counted)
    rows = rows[np.argsort(ranges.key[rows], kind="stable")]
    last = np.maximum.accumulate(np.where(ranges.forward[rows], np.arange(len(rows)), 0))
    of = rows[last]
    paired = ~ranges.forward[rows] & ranges.forward[of] & (ranges.key[of] == ranges.key[rows])
    wrong = np.count_nonzero(paired & (segment[of] != segment[rows]))
    held, key = segment[forwards], ranges.key[forwards]
    wrong += np.count_nonzero(occurrences((held, key)))
    whole = np.bincount(held) == len(distinct(key))
    return int(wrong), -int(np.count_nonzero(whole))


def _at_repetitions(ranges: HostOrder, forwards: Ints) -> Ints:
    """Return where iterations begin, by the rule of the repeated forward.

    ``repeat[i]`` is the first forward from i on whose key some forward from i on already had;
    one step of the loop is one iteration.
    """
    ends = np.flatnonzero(ranges.optimizer)
    repeat = _first_repetitions(ranges.key[forwards])
    bounds = []
    # A capture that begins after the last forward of an iteration: its rest is one of its own.
    leading = ends[ends < forwards[0]]
    if len(leading):
        bounds.append(int(leading[-1]) + 1)
    at = 0
    while repeat[at] < len(forwards):
        row = forwards[repeat[at]]
        between = ends[(ends > forwards[at]) & (ends < row)]
        bound = int(between[-1]) + 1 if len(between) else int(row)
        bounds.append(bound)
        at = int(np.searchsorted(forwards, bound))
    return np.array(bounds, np.int64)


def _first_repetitions(key: Ints) -> Ints:
    """Return for each i the smallest j such that key[j] equals some key[h], i <= h < j."""
    count = len(key)
    order = np.argsort(key, kind="stable")
    following = np.full(count, count, np.int64)
    same = np.diff(key[order]) == 0
    following[order[:-1][same]] = order[1:][same]
    return np.minimum.accumulate(following[::-1])[::-1]


def occurrences(columns: tuple[Ints, ...]) -> Ints:
    """Return for each row how many earlier rows agree with it in every column."""
    return numbered(groups_of(*columns).of_row)
