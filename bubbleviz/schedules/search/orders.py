"""Orders: the shortest ones of a problem: good starts, each improved by a local search.

::

    known          as they are, where they fit                 ─┐
    greedy         B, else F, else W, over a grid of limits    ─┤   the best few ─> improved, the
    blocks         repeated, squeezed at their ends (in a V)   ─┼─> best of these at length
    fewer          the same search with 2p microbatches,       ─┘
                   its middle repeated (of large ones)

None is worse than a known order that fits the memory. The same call gives the same orders.

An improvement moves an operation along its device's order, most often one of the critical path.
What comes out is kept if it takes no longer than what there was before, or than what there was some
trials ago (Burke and Bykov, The late acceptance hill-climbing heuristic, European Journal of
Operational Research 258, 2017), which leads out of local optima and needs no temperature::

    F F B F B W B W        the second W earlier        F F B W F B W B
                 ^──────────

The compiled part searches a hundred times as fast and gives the same: both draw the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from bubbleviz.native import functions as native
from bubbleviz.native.library import Argument
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.plan import make_v_placement
from bubbleviz.schedules.search.problem import NEVER, Codes, Problem
from bubbleviz.schedules.search.trials import MANNERS, Greedy, Squeezed, Trial, blocks, policies

#: How far an operation is moved; orders.c has the same.
_STEPS = (1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8, 12, 20)
_UNKNOWN = -1
_MASK = (1 << 64) - 1
#: No sum of times leaves 64 bits in C.
_MOST_TICKS = 1 << 60

#: The length of orders, in ticks, and these.
Orders = tuple[int, Codes]


def improve(
    problem: Problem,
    codes: Codes,
    trials: int,
    *,
    memory: int = 1,
    rise: int = 0,
    seed: int = 1,
    enough: int = 0,
) -> Orders | None:
    """Return the shortest orders found from these, with their length in ticks.

    The length is the makespan, or the longest own window of a device; see ``problem.makespan``.

    Args:
        problem: times and memory.
        codes: complete orders; of a fused backward without W.
        trials: moves to try; 0 only times the orders.
        memory: so many trials before count for acceptance; a long memory searches wider, and needs
            more trials.
        rise: by how many thousandths orders may become longer than the first.
        seed: of the moves; the same one gives the same orders.
        enough: a length, in ticks, at which the search ends.

    Returns:
        None where the orders deadlock, or exceed the memory.
    """
    longest = sum(problem.lengths) * problem.microbatches + sum(problem.down) + sum(problem.up)
    if longest * 8 * problem.devices > _MOST_TICKS:
        return Improvement(problem, codes).improved(trials, memory, rise, seed, enough)
    offset = np.cumsum([0, *map(len, codes)]).astype(np.int32)
    columns = (problem.lengths, problem.down, problem.up, problem.held, problem.kept, problem.limit)
    code = np.array([code for row in codes for code in row], np.int32)
    sizes: tuple[int, ...] = problem.devices, len(problem.placement), problem.microbatches
    pipeline: tuple[Argument, ...] = (
        np.array(problem.placement, np.int32),
        *(np.array(column, np.int64) for column in columns),
        *sizes,
        not problem.makespan,
    )
    length = native.improve_orders(
        pipeline=pipeline,
        code=code,
        offset=offset,
        trials=trials,
        memory=memory,
        rise=rise,
        seed=seed,
        enough=enough,
    )
    if length is None:
        return Improvement(problem, codes).improved(trials, memory, rise, seed, enough)
    return None if length < 0 else (length, [row.tolist() for row in np.split(code, offset[1:-1])])


class Improvement:
    """The search without the compiled part; ``orders.c`` says the same in C."""

    def __init__(self, problem: Problem, codes: Codes) -> None:
        self.problem = problem
        self.code = [code for row in codes for code in row]
        self.offset = np.cumsum([0, *map(len, codes)]).tolist()
        self.device_of = [device for device, row in enumerate(codes) for _ in row]

    def improved(
        self, trials: int, memory: int, rise: int, seed: int, enough: int
    ) -> Orders | None:
        """Return the shortest orders found, with their length; None where the first are none."""
        code = self.code
        timed = self.timed() if all(map(self.sound, range(self.problem.devices))) else None
        if timed is None:
            return None
        best_length, now, critical = timed
        best_worth, best = now, list(code)
        late = [now + now // 1000 * rise] * memory
        numbers = _random(seed)
        for trial in range(trials):
            if best_length <= enough:
                break
            start, to = self.change(numbers, critical)
            ahead = code[start + 1 : to + 1] if start < to else code[to:start]
            if all(other == code[start] for other in ahead):
                continue
            code.insert(to, code.pop(start))
            slot = trial % memory
            timed = self.timed() if self.sound(self.device_of[start]) else None
            if timed is not None and (timed[1] <= now or timed[1] <= late[slot]):
                length, now, critical = timed
                if now < best_worth:
                    best_worth, best_length, best = now, length, list(code)
            else:
                code.insert(start, code.pop(to))
            late[slot] = min(late[slot], now)
        bounds = zip(self.offset, self.offset[1:], strict=False)
        return best_length, [best[first:stop] for first, stop in bounds]

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

    def timed(self) -> tuple[int, int, list[int]] | None:
        """Return the times of the orders; None where they deadlock.

        These are the length; what is compared: the length, and where that is equal, when devices
        are done; and the places of the critical path, the last first.
        """
        ran = self.ran()
        if ran is None:
            return None
        ends, cause = ran
        length = total = 0
        last = _UNKNOWN
        for first, stop in zip(self.offset, self.offset[1:], strict=False):
            if first < stop:
                end = ends[stop - 1]
                if not self.problem.makespan:
                    end -= ends[first] - self.problem.lengths[self.code[first]]
                total += end
                if end > length or last < 0:
                    length, last = end, stop - 1
        critical = []
        while last >= 0:
            critical.append(last)
            last = cause[last]
        return length, length * 4 * self.problem.devices + total, critical

    def ran(self) -> tuple[list[int], list[int]] | None:
        """Return when each operation ends, and the place whose end it waited for; -1 none."""
        problem, stages, m = self.problem, len(self.problem.placement), self.problem.microbatches
        # By virtual stage and microbatch: end and place of F, and of B.
        there = [_UNKNOWN] * (stages * m), [_UNKNOWN] * (stages * m)
        places = [_UNKNOWN] * (stages * m), [_UNKNOWN] * (stages * m)
        ends, cause = [0] * len(self.code), [_UNKNOWN] * len(self.code)
        count, reached = [0] * len(problem.lengths), self.offset[:-1]
        todo = list(range(problem.devices))
        while todo:
            device = todo.pop()
            first, stop = self.offset[device], self.offset[device + 1]
            for at in range(reached[device], stop):
                code = self.code[at]
                stage, phase = divmod(code, 3)
                cell, away = stage * m + count[code], 1 if phase else -1
                ready, waited = 0, _UNKNOWN
                if phase < 2 and 0 <= stage + away < stages:
                    other = cell + away * m
                    ready, waited = there[phase][other], places[phase][other]
                    if waited == _UNKNOWN:
                        break
                    ready += (problem.up if phase else problem.down)[stage + away]
                if at > first and ends[at - 1] >= ready:
                    ready, waited = ends[at - 1], at - 1
                ends[at], cause[at] = ready + problem.lengths[code], waited
                count[code] += 1
                reached[device] = at + 1
                if phase < 2:
                    there[phase][cell], places[phase][cell] = ends[at], at
                    if 0 <= stage - away < stages:
                        todo.append(problem.placement[stage - away])
        return (ends, cause) if reached == self.offset[1:] else None


def _random(seed: int) -> Iterator[int]:
    """Yield numbers of 31 bits: xorshift64* (Vigna, arXiv 1402.6246)."""
    state = (seed * 2654435761 + 88172645463325252) & _MASK
    while True:
        state ^= state >> 12
        state = (state ^ state << 25) & _MASK
        state ^= state >> 27
        yield (state * 2685821657736338717 & _MASK) >> 33


#: Operations timed in all, where nothing else is asked for, and at most without the compiled part:
#: a schedule's order does not depend on it.
_TIMED = 4_000_000
#: Operations that trials of one sort put down, but for those that are broken off.
_TRIED = 50_000
#: A trial costs as much as that of so many at least.
_LEAST_TRIED = 200
#: Rounds of improvement: number of starts that are improved, share of the budget, minimum number of
#: trials from each start, memory of late acceptance, and rise in thousandths that is allowed.
_ROUNDS = ((4, 0.2, 200, 300, 0), (2, 0.4, 200, 1000, 10), (1, 0.4, 1000, 3000, 30))
#: Maximum number of trials from one start: in total, and per operation of a small problem.
_MOST, _MOST_EACH = 400_000, 2_000
#: Operations from which on a search begins with fewer microbatches.
_MANY = 10_000


def shortest_orders(
    problem: Problem,
    known: Callable[[int], Iterable[Codes]],
    *,
    enough: int = 0,
    weights: bool = True,
    most: int = _TIMED,
    watch: Watch = unwatched,
) -> Orders:
    """Return the shortest orders of all that were tried.

    Args:
        problem: times and memory.
        known: orders to begin with, by the number of microbatches.
        enough: a length, in ticks, at which the search ends.
        weights: whether orders have W; else B is the whole backward.
        most: operations that are timed in all, by the compiled part.
        watch: called with the share of the search that is done.
    """
    starts = [*known(problem.microbatches), *_tried(problem, weights=weights)]
    few, begun = 2 * problem.devices, 0.0
    if problem.operations > _MANY and problem.microbatches > few:
        begun = 0.4
        _, codes = shortest_orders(
            replace(problem, microbatches=few),
            known,
            weights=weights,
            most=most,
            watch=lambda share: watch(0.4 * share),
        )
        starts.append(extended(codes, problem.microbatches - few))
    # One microbatch goes all the way, then the next: the least memory.
    starts.append(
        [
            [
                *(3 * s for s in stages),
                *(3 * s + phase for s in reversed(stages) for phase in (1, 2)),
            ]
            * problem.microbatches
            for stages in problem.stages
        ]
    )
    if not weights:
        starts = [[[code for code in row if code % 3 < 2] for row in codes] for codes in starts]
    best = _distinct([improve(problem, codes, 0) for codes in starts])
    watch(begun + 0.1 * (1 - begun))
    budget = most if native.is_available() else min(most, _TIMED)
    moves = budget * (1 - begun) / problem.operations
    done = 0.0
    for kept, share, fewest, memory, rise in _ROUNDS:
        best = best[:kept]
        trials = int(moves * share / max(1, len(best)))
        trials = max(fewest, min(trials, _MOST, _MOST_EACH * problem.operations))
        for seed, start in enumerate(best):
            if best[0][0] > enough:
                late = min(memory, trials // 20)
                # Few trials descend from the start; they would not come back from longer orders.
                allowed_rise = rise if late == memory else 0
                options = {"memory": late, "rise": allowed_rise, "seed": seed + 1, "enough": enough}
                best[seed] = improve(problem, start[1], trials, **options) or start
            watch(begun + (1 - begun) * (0.1 + 0.9 * (done + share * (seed + 1) / len(best))))
        best = _distinct(best)
        done += share
    return best[0]


def _distinct(orders: Sequence[Orders | None]) -> list[Orders]:
    """Return the orders that differ, the shortest first."""
    unique: list[Orders] = []
    for each in sorted((each for each in orders if each is not None), key=lambda one: one[0]):
        if all(each[1] != other[1] for other in unique):
            unique.append(each)
    return unique


def _tried(problem: Problem, *, weights: bool) -> list[Codes]:
    """Return the orders of trials: of greedy policies, and in a V of repeated blocks.

    Each is better than those before of its sort.
    """
    sorts: list[list[Callable[[int], Trial]]] = [
        [partial(Greedy, problem, policy=policy) for policy in policies(problem)]
    ]
    if weights and problem.placement == make_v_placement(problem.devices):
        fitting = blocks(problem.devices, min(problem.rooms))
        sorts.append(
            [
                partial(Squeezed, problem, block=block, manner=manner)
                for manner, block in product(MANNERS, fitting)
            ]
        )
    found = []
    for trials in sorts:
        target = NEVER
        operations = max(problem.operations, _LEAST_TRIED)
        for trial in trials[:: max(1, len(trials) * operations // (_TRIED * 8))]:
            if result := trial(target).result():
                target = result.excess
                found.append(result.codes)
    return found


def extended(codes: Codes, more: int) -> Codes:
    """Return complete orders with more microbatches: what stands in the middle is repeated.

    ::

        F F B F W | B F W | B B W W    ->    F F B F W | B F W | B F W | B F W | B B W W
    """
    longer = []
    for order in codes:
        period = len(set(order))
        starts = range(len(order) - period + 1)
        whole = [at for at in starts if len(set(order[at : at + period])) == period]
        at = min(whole, key=lambda at: abs(2 * at + period - len(order)), default=len(order))
        longer.append(order[:at] + order[at : at + period] * (more + 1) + order[at + period :])
    return longer
