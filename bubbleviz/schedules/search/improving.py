"""Improving: a local search over whole orders, by late acceptance.

An operation is moved along its device's order, most often one of the critical path. What comes out
is kept if it takes no longer than what there was before, or than what there was some trials ago
(Burke and Bykov, The late acceptance hill-climbing heuristic, European Journal of Operational
Research 258, 2017), which leads out of local optima and needs no temperature::

    F F B F B W B W        the second W earlier        F F B W F B W B
                 ^──────────

The compiled part searches a hundred times as fast and gives the same: both draw the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bubbleviz.model.values import frozen
from bubbleviz.native.columns import improved_orders
from bubbleviz.native.library import library
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.search.climbing import extended
from bubbleviz.schedules.search.greedy import greedy, policies
from bubbleviz.schedules.search.problem import NEVER, Codes, Problem

#: How far an operation is moved; orders.c has the same.
_STEPS = (1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8, 12, 20)
_UNKNOWN = -1
_MASK = (1 << 64) - 1
#: No sum of times leaves 64 bits in C.
_MOST_TICKS = 1 << 60


@frozen
class Effort:
    """How long to search.

    Attributes:
        trials: moves to try.
        memory: so many trials before count for acceptance; a long memory searches wider, and needs
            more trials.
        rise: by how many thousandths orders may become longer than the first.
        seed: of the moves; the same one gives the same orders.
        enough: a length, in ticks, at which the search ends.
    """

    trials: int
    memory: int
    rise: int = 0
    seed: int = 1
    enough: int = 0


def improve(problem: Problem, codes: Codes, effort: Effort) -> tuple[int, Codes] | None:
    """Return the shortest orders found from these, with their length in ticks.

    The length is the makespan, or the longest own window of a device; see ``problem.makespan``.

    Args:
        problem: times and memory.
        codes: complete orders; of a fused backward without W.
        effort: how long to search.

    Returns:
        None where the orders deadlock, or exceed the memory.
    """
    compiled = library()
    longest = sum(problem.lengths) * problem.microbatches + sum(problem.down) + sum(problem.up)
    if compiled is None or longest * 8 * problem.devices > _MOST_TICKS:
        return _Search(problem, codes).improved(effort)
    offset = np.cumsum([0, *map(len, codes)]).astype(np.int32)
    found = improved_orders(
        compiled,
        np.array(problem.placement, np.int32),
        [
            np.array(column, np.int64)
            for column in (
                problem.lengths,
                problem.down,
                problem.up,
                problem.held,
                problem.kept,
                problem.limit,
            )
        ],
        problem.microbatches,
        np.array([code for row in codes for code in row], np.int32),
        offset,
        (effort.trials, effort.memory, effort.rise, effort.seed, effort.enough),
        of_cost=not problem.makespan,
    )
    if found is None:
        return None
    length, flat = found
    return length, [row.tolist() for row in np.split(flat, offset[1:-1])]


def is_compiled() -> bool:
    """Return whether the compiled part searches."""
    return library() is not None


@frozen
class _Timed:
    """Times of orders.

    Attributes:
        length: what is to be short.
        total: of all devices, when they are done.
        critical: places of the critical path, the last first.
    """

    length: int
    total: int
    critical: list[int]


class _Search:
    """The search without the compiled part; ``orders.c`` says the same in C."""

    def __init__(self, problem: Problem, codes: Codes) -> None:
        self.problem = problem
        self.code = [code for row in codes for code in row]
        self.offset = [0]
        for row in codes:
            self.offset.append(self.offset[-1] + len(row))
        self.device_of = [device for device, row in enumerate(codes) for _ in row]

    def improved(self, effort: Effort) -> tuple[int, Codes] | None:
        """Return the shortest orders found, with their length; None where the first are none."""
        code = self.code
        timed = self.timed() if all(map(self.sound, range(self.problem.devices))) else None
        if timed is None:
            return None
        now = best_worth = self.worth(timed)
        best_length, best = timed.length, list(code)
        late = [now + now // 1000 * effort.rise] * effort.memory
        numbers = _random(effort.seed)
        for trial in range(effort.trials):
            if best_length <= effort.enough:
                break
            start, to = self.change(numbers, timed.critical)
            ahead = code[start + 1 : to + 1] if start < to else code[to:start]
            if all(other == code[start] for other in ahead):
                continue
            code.insert(to, code.pop(start))
            slot = trial % effort.memory
            found = self.timed() if self.sound(self.device_of[start]) else None
            worth = 0 if found is None else self.worth(found)
            if found is not None and (worth <= now or worth <= late[slot]):
                now, timed = worth, found
                if worth < best_worth:
                    best_worth, best_length, best = worth, found.length, list(code)
            else:
                code.insert(start, code.pop(to))
            late[slot] = min(late[slot], now)
        bounds = zip(self.offset, self.offset[1:], strict=False)
        return best_length, [best[first:stop] for first, stop in bounds]

    def worth(self, timed: _Timed) -> int:
        """Return what is compared: the length, and where that is equal, when devices are done."""
        return timed.length * 4 * self.problem.devices + timed.total

    def change(self, numbers: Iterator[int], critical: list[int]) -> tuple[int, int]:
        """Return which place is moved, and to where."""
        drawn, place = next(numbers), next(numbers)
        some = drawn & 7 and critical
        start = critical[place % len(critical)] if some else place % len(self.code)
        device, step = self.device_of[start], _STEPS[drawn >> 4 & 15]
        to = start + step if drawn >> 3 & 1 else start - step
        return start, max(self.offset[device], min(self.offset[device + 1] - 1, to))

    def sound(self, device: int) -> bool:
        """Return whether a device's order has F before B before W, and memory for all of it."""
        problem = self.problem
        count = [0] * len(problem.lengths)
        held = 0
        for code in self.code[self.offset[device] : self.offset[device + 1]]:
            stage, phase = divmod(code, 3)
            count[code] += 1
            if phase == 0:
                held += problem.held[stage]
            elif count[code] > count[code - 1]:
                return False
            else:
                kept = problem.kept[stage]
                held -= problem.held[stage] - kept if phase == 1 else kept
            if held > problem.limit[device]:
                return False
        return True

    def timed(self) -> _Timed | None:
        """Return the times of the orders; None where they deadlock."""
        times = _Times(self)
        todo = list(range(self.problem.devices))
        while todo:
            todo += times.run(todo.pop())
        if times.at != self.offset[1:]:
            return None
        length = total = 0
        last = -1
        for first, stop in zip(self.offset, self.offset[1:], strict=False):
            if first < stop:
                end = times.end[stop - 1]
                end -= 0 if self.problem.makespan else times.end[first] - times.own(first)
                total += end
                if end > length or last < 0:
                    length, last = end, stop - 1
        critical = []
        while last >= 0:
            critical.append(last)
            last = times.cause[last]
        return _Timed(length, total, critical)


class _Times:
    """The state of one timing of all operations; by place if not said otherwise."""

    def __init__(self, search: _Search) -> None:
        self.search, self.problem = search, search.problem
        cells = len(self.problem.placement) * self.problem.microbatches
        #: By virtual stage and microbatch: end and place of F, and of B.
        self.ends = [_UNKNOWN] * cells, [_UNKNOWN] * cells
        self.places = [_UNKNOWN] * cells, [_UNKNOWN] * cells
        self.end = [0] * len(search.code)
        #: The place whose end each waited for; -1 none.
        self.cause = [_UNKNOWN] * len(search.code)
        self.count = [0] * len(self.problem.lengths)
        self.at = search.offset[:-1]

    def own(self, place: int) -> int:
        """Return how long an operation takes."""
        return self.problem.lengths[self.search.code[place]]

    def run(self, device: int) -> list[int]:
        """Run a device as far as it comes; return the devices that may go on."""
        stages, m = len(self.problem.placement), self.problem.microbatches
        woken = []
        first, stop = self.search.offset[device], self.search.offset[device + 1]
        for at in range(self.at[device], stop):
            code = self.search.code[at]
            stage, phase = divmod(code, 3)
            cell = stage * m + self.count[code]
            ready, cause = 0, _UNKNOWN
            neighbour = stage - 1 if phase == 0 else stage + 1
            if phase < 2 and 0 <= neighbour < stages:
                other = cell - m if phase == 0 else cell + m
                ready, cause = self.ends[phase][other], self.places[phase][other]
                if cause == _UNKNOWN:
                    break
                way = self.problem.down if phase == 0 else self.problem.up
                ready += way[neighbour]
            if at > first and self.end[at - 1] >= ready:
                ready, cause = self.end[at - 1], at - 1
            self.end[at], self.cause[at] = ready + self.problem.lengths[code], cause
            self.count[code] += 1
            self.at[device] = at + 1
            if phase < 2:
                self.ends[phase][cell], self.places[phase][cell] = self.end[at], at
                neighbour = stage + 1 if phase == 0 else stage - 1
                if 0 <= neighbour < stages:
                    woken.append(self.problem.placement[neighbour])
        return woken


def _random(seed: int) -> Iterator[int]:
    """Yield numbers of 31 bits: xorshift64* (Vigna, arXiv 1402.6246)."""
    state = (seed * 2654435761 + 88172645463325252) & _MASK
    while True:
        state ^= state >> 12
        state = (state ^ state << 25) & _MASK
        state ^= state >> 27
        yield (state * 2685821657736338717 & _MASK) >> 33


# Search for the shortest orders of a workload: good starts, each improved by a local search.
#
# ::
#
#     fixed orders   as they are, where they fit                 ─┐
#     greedy         B, else F, else W, over a grid of limits    ─┼─> the best few ─> improved, the
#     fewer          the same search with 2p microbatches,       ─┘   best of these at length
#                    its middle repeated (of large ones)
#
# None is worse than a fixed order that fits the memory. The same call gives the same orders.


#: Operations timed in all, by the compiled part and without it.
_BUDGET, _SLOW_BUDGET = 400_000_000, 4_000_000
#: Operations that greedy trials put down, but for those that are broken off.
_GREEDY = 400_000
#: Starts that are improved, and the rounds: how many are left, their share of the budget, what late
#: acceptance remembers, and by how many thousandths orders may become longer.
_ROUNDS = ((4, 0.2, 300, 0), (2, 0.4, 1000, 10), (1, 0.4, 3000, 30))
#: Bounds of the trials from one start: however large the problem, and for each operation of a small
#: one.
_FEWEST, _MOST, _MOST_EACH = 200, 400_000, 2_000
#: Operations from which on a search begins with fewer microbatches.
_MANY = 10_000


@frozen
class Orders:
    """Complete orders, and their length in ticks."""

    length: int
    codes: Codes


def shortest_orders(
    problem: Problem,
    known: Callable[[int], Sequence[Codes]],
    *,
    enough: int = 0,
    weights: bool = True,
    watch: Watch = unwatched,
) -> Orders:
    """Return the shortest orders of all that were tried.

    Args:
        problem: times and memory.
        known: orders to begin with, by the number of microbatches.
        enough: a length, in ticks, at which the search ends.
        weights: whether orders have W; else B is the whole backward.
        watch: called with the share of the search that is done.
    """
    starts = [_timed(problem, codes) for codes in known(problem.microbatches)]
    starts += _greedy(problem, weights=weights)
    few, begun = 2 * problem.devices, 0.0
    if problem.operations > _MANY and problem.microbatches > few:
        begun = 0.4
        less = shortest_orders(
            problem.with_microbatches(few),
            known,
            weights=weights,
            watch=lambda share: watch(0.4 * share),
        )
        codes = extended(less.codes, problem.microbatches - few)
        starts.append(_timed(problem, codes))
    starts.append(_timed(problem, _one_by_one(problem, weights=weights)))
    best = _distinct(starts)
    watch(begun + 0.1 * (1 - begun))
    budget = (_BUDGET if is_compiled() else _SLOW_BUDGET) * (1 - begun) / problem.operations
    done = 0.0
    for kept, share, memory, rise in _ROUNDS:
        best = best[:kept]
        trials = int(budget * share / max(1, len(best)))
        trials = max(_FEWEST, min(trials, _MOST, _MOST_EACH * problem.operations))
        for seed, start in enumerate(best):
            if best[0].length > enough:
                effort = Effort(trials, min(memory, trials // 20), rise, seed + 1, enough)
                improved = improve(problem, start.codes, effort)
                best[seed] = start if improved is None else Orders(*improved)
            watch(begun + (1 - begun) * (0.1 + 0.9 * (done + share * (seed + 1) / len(best))))
        best = _distinct(best)
        done += share
    return best[0]


def _one_by_one(problem: Problem, *, weights: bool) -> Codes:
    """Return the orders with the least memory: one microbatch goes all the way, then the next."""
    phases = (1, 2) if weights else (1,)
    return [
        [
            *(3 * stage for stage in stages),
            *(3 * stage + phase for stage in reversed(stages) for phase in phases),
        ]
        * problem.microbatches
        for stages in problem.stages
    ]


def _timed(problem: Problem, codes: Codes) -> Orders | None:
    """Return orders with their length; None where they deadlock, or exceed the memory."""
    found = improve(problem, codes, Effort(0, 1))
    return None if found is None else Orders(*found)


def _distinct(orders: Sequence[Orders | None]) -> list[Orders]:
    """Return the orders that differ, the shortest first."""
    unique: list[Orders] = []
    for each in sorted((each for each in orders if each is not None), key=lambda one: one.length):
        if all(each.codes != other.codes for other in unique):
            unique.append(each)
    return unique


def _greedy(problem: Problem, *, weights: bool) -> list[Orders | None]:
    """Return the orders of greedy policies, each better than those before."""
    grid = list(policies(problem))
    stride = max(1, len(grid) * problem.operations // (_GREEDY * 8))
    found: list[Orders | None] = []
    target = NEVER
    for policy in grid[::stride]:
        result = greedy(problem, policy, target)
        if result is not None:
            target = result.excess
            codes = result.codes
            if not weights:
                codes = [[code for code in row if code % 3 < 2] for row in codes]
            found.append(_timed(problem, codes))
    return found
