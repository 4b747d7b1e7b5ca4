"""Search for the shortest orders for a problem: a local search improves several starting orders.

::

    known          as they are, if they fit in memory          ─┐
    greedy         B, else F, else W, over a grid of limits    ─┤   improve the best few, then
    blocks         repeated, squeezed at their ends (in a V)   ─┼─> the best of these at length
    fewer          the same search with 2p microbatches, its   ─┘
                   middle repeated (for large problems)

The result is never worse than a known order that fits in memory. Identical calls return identical
orders.

A step of the local search moves one operation along the order of its device. Most steps move an
operation on the critical path. A step is accepted if the new orders are at least as fast as the
current orders, or as the orders a fixed number of steps ago. This method is late acceptance
hill-climbing (Burke and Bykov, The late acceptance hill-climbing heuristic, European Journal of
Operational Research 258, 2017). The method can escape local optima and needs no temperature
parameter::

    F F B F B W B W        the second W earlier        F F B W F B W B
                 ^──────────

The compiled code is a hundred times faster than the Python code. Both versions return the same
orders because they use the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from bubbleviz.native import functions as native
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.plan import make_v_placement
from bubbleviz.schedules.search.blocks import list_blocks
from bubbleviz.schedules.search.problem import (
    BACKWARD,
    FORWARD,
    NEVER,
    WEIGHT,
    Codes,
    Problem,
    list_columns,
)
from bubbleviz.schedules.search.trials import MANNERS, Greedy, Squeezed, Trial, list_policies

#: Distances to move an operation by; one is chosen at random.
#: ``orders.c`` has the same list.
_DISTANCES = (1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8, 12, 20)
_UNKNOWN = -1
_MASK = (1 << 64) - 1

#: The length of the orders in ticks (makespan or longest window), and the orders themselves.
Orders = tuple[int, Codes]


def improve_orders(
    problem: Problem,
    codes: Codes,
    trials: int,
    *,
    memory: int = 1,
    rise: int = 0,
    seed: int = 1,
    enough: int = 0,
) -> Orders | None:
    """Improve orders by late acceptance hill-climbing.

    The compiled code is used if it is available and all times fit in 64 bits, otherwise
    :class:`HillClimbing`. Both implementations give the same result.

    Args:
        problem: The search problem, with times and memory.
        codes: Complete orders to start from. Orders with fused backwards contain no W.
        trials: Number of moves to try. If 0, the orders are only timed.
        memory: Length of the history, in steps. New orders are accepted if they are at least as
            fast as the current orders, or as the orders this many steps ago. With a longer history,
            the search explores more orders but needs more trials.
        rise: Tolerance at the start of the search, in thousandths of the length of ``codes``. The
            history is initialized with the length increased by the tolerance.
        seed: Seed for the random number generator.
        enough: Length, in ticks. The search stops once the best orders are at most this long.

    Returns:
        The length of the shortest orders in ticks, and the orders themselves. The length is the
        makespan or the longest window of any device (see ``problem.makespan``). None if ``codes``
        deadlock or exceed the memory.
    """
    if not problem.fits_in_64_bits:
        return HillClimbing(problem, codes).run(trials, memory, rise, seed, enough)
    offset = np.cumsum([0, *map(len, codes)]).astype(np.int32)
    code = np.array([code for order in codes for code in order], np.int32)
    length = native.improve_orders(
        pipeline=list_columns(problem),
        code=code,
        offset=offset,
        trials=trials,
        memory=memory,
        rise=rise,
        seed=seed,
        enough=enough,
    )
    if length is None:
        return HillClimbing(problem, codes).run(trials, memory, rise, seed, enough)
    if length < 0:
        return None
    return length, [order.tolist() for order in np.split(code, offset[1:-1])]


class HillClimbing:
    """The local search in Python; ``orders.c`` contains the same algorithm in C.

    Attributes:
        code: Codes of the operations of all devices in one list, device by device. An operation is
            identified by its index in this list.
        offset: Index in ``code`` of each device's first operation, followed by the number of
            operations.
        device_of: Device of each operation in ``code``.
    """

    def __init__(self, problem: Problem, codes: Codes) -> None:
        """Prepare a search.

        Args:
            problem: The search problem, with times and memory.
            codes: Orders to start from.
        """
        self.problem = problem
        self.code = [code for order in codes for code in order]
        self.offset = np.cumsum([0, *map(len, codes)]).tolist()
        self.device_of = [device for device, order in enumerate(codes) for _ in order]

    def run(self, trials: int, memory: int, rise: int, seed: int, enough: int) -> Orders | None:
        """Run the search in Python.

        Each trial has three steps:

        1. Make a random move (see :meth:`choose_move`). A move past operations with the same code
           is skipped, because it changes nothing.
        2. Accept the move if the new orders are valid and their cost (see :meth:`measure`) is at
           most the current cost or at most entry ``trial % memory`` of the history. Otherwise, undo
           the move.
        3. Replace this entry of the history with the current cost if that is smaller.

        All entries of the history start as ``cost + cost // 1000 * rise``, where ``cost`` is the
        cost of the first orders. On return, :attr:`code` contains the orders that were accepted
        last, which are not necessarily the shortest ones.

        Args:
            trials: Maximum number of trials.
            memory: Number of entries of the history.
            rise: Initial tolerance, in thousandths of the cost.
            seed: Seed for the random number generator.
            enough: Length, in ticks. The search stops once the best length is at most this.

        Returns:
            For the orders with the lowest cost: the length in ticks, and one list of codes per
            device. None if the first orders are invalid or deadlock.
        """
        code = self.code
        is_valid = all(map(self.is_valid, range(self.problem.devices)))
        timing = self.measure() if is_valid else None
        if timing is None:
            return None
        best_length, cost, critical = timing
        best_cost, best = cost, list(code)
        accepted_costs = [cost + cost // 1000 * rise] * memory
        numbers = _generate_random(seed)
        for trial in range(trials):
            if best_length <= enough:
                break
            source, target = self.choose_move(numbers, critical)
            passed = code[source + 1 : target + 1] if source < target else code[target:source]
            if all(other == code[source] for other in passed):
                continue
            code.insert(target, code.pop(source))
            slot = trial % memory
            timing = self.measure() if self.is_valid(self.device_of[source]) else None
            if timing is not None and (timing[1] <= cost or timing[1] <= accepted_costs[slot]):
                length, cost, critical = timing
                if cost < best_cost:
                    best_cost, best_length, best = cost, length, list(code)
            else:
                code.insert(source, code.pop(target))
            accepted_costs[slot] = min(accepted_costs[slot], cost)
        bounds = zip(self.offset, self.offset[1:], strict=False)
        return best_length, [best[first:stop] for first, stop in bounds]

    def choose_move(self, numbers: Iterator[int], critical: list[int]) -> tuple[int, int]:
        """Choose a random move: the index of an operation, and its new index on the same device.

        In 7 of 8 cases, the operation is on the critical path. The distance is a random entry of
        ``_DISTANCES``. A move beyond either end of the device's order is shortened.

        Args:
            numbers: Iterator over random numbers, from which the method takes two.
            critical: Indices of the operations on the critical path.
        """
        bits, number = next(numbers), next(numbers)
        is_critical = bits & 7 and critical
        source = critical[number % len(critical)] if is_critical else number % len(self.code)
        device, distance = self.device_of[source], _DISTANCES[bits >> 4 & 15]
        target = source + distance if bits >> 3 & 1 else source - distance
        first, last = self.offset[device], self.offset[device + 1] - 1
        return source, max(first, min(last, target))

    def is_valid(self, device: int) -> bool:
        """Return whether a device's order is valid, without checking for deadlocks.

        On each virtual stage, the n-th F must come before the n-th B, and the n-th B before the
        n-th W. The device's memory use must never exceed its limit.
        """
        problem = self.problem
        count = [0] * len(problem.lengths)
        memory_used = 0
        for code in self.code[self.offset[device] : self.offset[device + 1]]:
            stage, phase = divmod(code, 3)
            count[code] += 1
            if phase == FORWARD:
                memory_used += problem.activation[stage]
            elif count[code] > count[code - 1]:
                return False
            elif phase == BACKWARD:
                memory_used -= problem.activation[stage] - problem.weight_activation[stage]
            else:
                memory_used -= problem.weight_activation[stage]
            if memory_used > problem.limit[device]:
                return False
        return True

    def measure(self) -> tuple[int, int, list[int]] | None:
        """Determine how long the current orders take.

        Returns:
            length: The makespan, or the longest window of any device, in ticks.
            cost: Number that the search minimizes: ``length * 4 * devices`` plus the sum of the
                windows of all devices.
            critical: Indices of the operations on the critical path, last operation first.

            The result is None if the orders deadlock.
        """
        simulation = self.simulate()
        if simulation is None:
            return None
        end_time, cause = simulation
        length = total = 0
        last = _UNKNOWN
        for first, stop in zip(self.offset, self.offset[1:], strict=False):
            if first < stop:
                end = end_time[stop - 1]
                if not self.problem.makespan:
                    end -= end_time[first] - self.problem.lengths[self.code[first]]
                total += end
                if end > length or last < 0:
                    length, last = end, stop - 1
        critical = []
        while last >= 0:
            critical.append(last)
            last = cause[last]
        return length, length * 4 * self.problem.devices + total, critical

    def simulate(self) -> tuple[list[int], list[int]] | None:
        """Compute the end time of each operation.

        A device runs its operations in order, each as early as its input allows. A stack contains
        the devices that may be able to continue.

        Returns:
            end_time: End of each operation, in ticks.
            cause: For each operation, the index of the operation that determined its start, or -1
                for none. On a tie between the input and the device's previous operation, the
                previous operation is used.

            The result is None if the orders deadlock.
        """
        problem, n_stages = self.problem, len(self.problem.placement)
        m = problem.microbatches
        # End time and index of each F and of each B, at position ``stage * m + microbatch``.
        pass_end = [_UNKNOWN] * (n_stages * m), [_UNKNOWN] * (n_stages * m)
        pass_index = [_UNKNOWN] * (n_stages * m), [_UNKNOWN] * (n_stages * m)
        end_time, cause = [0] * len(self.code), [_UNKNOWN] * len(self.code)
        count, reached = [0] * len(problem.lengths), self.offset[:-1]
        runnable = list(range(problem.devices))
        while runnable:
            device = runnable.pop()
            first, stop = self.offset[device], self.offset[device + 1]
            for index in range(reached[device], stop):
                code = self.code[index]
                stage, phase = divmod(code, 3)
                # An F needs a result from the previous stage (-1), and a B needs one from the next
                # stage (+1).
                cell, source = stage * m + count[code], 1 if phase else -1
                ready, waited_for = 0, _UNKNOWN
                if phase != WEIGHT and 0 <= stage + source < n_stages:
                    source_cell = cell + source * m
                    ready = pass_end[phase][source_cell]
                    waited_for = pass_index[phase][source_cell]
                    if waited_for == _UNKNOWN:
                        break
                    ready += (problem.up if phase else problem.down)[stage + source]
                if index > first and end_time[index - 1] >= ready:
                    ready, waited_for = end_time[index - 1], index - 1
                end_time[index], cause[index] = ready + problem.lengths[code], waited_for
                count[code] += 1
                reached[device] = index + 1
                if phase != WEIGHT:
                    pass_end[phase][cell], pass_index[phase][cell] = end_time[index], index
                    if 0 <= stage - source < n_stages:
                        runnable.append(problem.placement[stage - source])
        return (end_time, cause) if reached == self.offset[1:] else None


def _generate_random(seed: int) -> Iterator[int]:
    """Yield 31-bit random numbers: xorshift64* (Vigna, arXiv 1402.6246)."""
    state = (seed * 2654435761 + 88172645463325252) & _MASK
    while True:
        state ^= state >> 12
        state = (state ^ state << 25) & _MASK
        state ^= state >> 27
        yield (state * 2685821657736338717 & _MASK) >> 33


#: Default number of operations that a search times.
#: Without the compiled code, this is also the maximum.
#: Default searches therefore find the same orders with and without it.
_BUDGET = 4_000_000
#: An eighth of the maximum number of operations in one kind of trial. Most trials fail early.
_TRIAL_BUDGET = 50_000
#: Minimum number of operations that are counted for a trial.
_MIN_TRIAL_COST = 200
#: Maximum number of moves from one start: in total, and per operation of the problem.
_MAX_MOVES, _MAX_MOVES_PER_OPERATION = 400_000, 2_000
#: A problem that has more operations than this is first solved with fewer microbatches.
_MANY_OPERATIONS = 10_000
#: Fraction of a search that is spent on fewer microbatches.
#: Fraction of the remaining search that is spent on timing the starting orders.
_FEWER_FRACTION, _STARTS_FRACTION = 0.4, 0.1


class _Round(NamedTuple):
    """One round of improving orders.

    Attributes:
        n_starts: Maximum number of orders to improve.
        fraction: Fraction of the budget that this round may use.
        min_moves: Minimum number of moves to try for each start.
        memory: Length of the history; see :func:`improve_orders`.
        rise: Initial tolerance in thousandths; see :func:`improve_orders`.
    """

    n_starts: int
    fraction: float
    min_moves: int
    memory: int
    rise: int


#: The rounds of improvement, in order.
_ROUNDS = (
    _Round(4, 0.2, min_moves=200, memory=300, rise=0),
    _Round(2, 0.4, min_moves=200, memory=1000, rise=10),
    _Round(1, 0.4, min_moves=1000, memory=3000, rise=30),
)


def find_shortest_orders(
    problem: Problem,
    known: Callable[[int], Iterable[Codes]],
    *,
    enough: int = 0,
    weights: bool = True,
    budget: int = _BUDGET,
    watch: Watch = unwatched,
) -> Orders:
    """Find the shortest orders for a problem.

    The module docstring describes the starting orders and the rounds of improvement. Starting
    orders that deadlock or exceed the memory are dropped.

    Args:
        problem: The search problem, with times and memory.
        known: Function that takes a number of microbatches and returns known orders to start from.
        enough: Length, in ticks. The search stops once the best orders are at most this long.
        weights: Whether the orders contain W. If not, B is the whole backward.
        budget: Number of operations to time during the whole search. Without the compiled code, the
            maximum is ``_BUDGET``.
        watch: Callback that receives the completed fraction of the search.

    Returns:
        The length of the shortest orders in ticks, and their codes.
    """
    known_orders = _time_starts(problem, known(problem.microbatches), weights=weights)
    shortest = min((length for length, _ in known_orders), default=NEVER)
    if shortest <= enough:
        # No trial can be shorter, and known orders win ties.
        watch(1.0)
        return _sort_distinct(known_orders)[0]
    starts = _run_trials(problem, weights=weights)
    n_fewer, done = 2 * problem.devices, 0.0
    if problem.operations > _MANY_OPERATIONS and problem.microbatches > n_fewer:
        done = _FEWER_FRACTION
        _, codes = find_shortest_orders(
            replace(problem, microbatches=n_fewer),
            known,
            weights=weights,
            budget=budget,
            watch=lambda fraction: watch(_FEWER_FRACTION * fraction),
        )
        starts.append(repeat_middle(codes, problem.microbatches - n_fewer))
    starts.append(_build_sequential_orders(problem))
    best = _sort_distinct([*known_orders, *_time_starts(problem, starts, weights=weights)])
    watch(done + _STARTS_FRACTION * (1 - done))
    return _improve_in_rounds(problem, best, enough=enough, budget=budget, done=done, watch=watch)


def _time_starts(problem: Problem, starts: Iterable[Codes], *, weights: bool) -> list[Orders]:
    """Time starting orders, and drop those that deadlock or exceed the memory.

    Args:
        problem: The search problem, with times and memory.
        starts: Codes of the orders.
        weights: Whether the orders contain W. If not, each W is removed.
    """
    timed = []
    for codes in starts:
        kept = codes
        if not weights:
            kept = [[code for code in order if code % 3 != WEIGHT] for order in codes]
        orders = improve_orders(problem, kept, 0)
        if orders is not None:
            timed.append(orders)
    return timed


def _improve_in_rounds(
    problem: Problem,
    best: list[Orders],
    *,
    enough: int,
    budget: int,
    done: float,
    watch: Watch,
) -> Orders:
    """Improve the best orders in rounds: first many starts briefly, then fewer starts for longer.

    Each round in ``_ROUNDS`` keeps the shortest ``n_starts`` orders and passes each of them to
    :func:`improve_orders`. The moves of a round are divided equally among its starts, within
    ``min_moves`` and ``_MAX_MOVES``. The length of the history is limited to 1/20 of the number of
    moves.

    Args:
        problem: The search problem, with times and memory.
        best: Orders to start from, shortest first.
        enough: Length, in ticks. The search stops once the best orders are at most this long.
        budget: Number of operations to time in the whole search.
        done: Fraction of the search that was completed before the starts were timed.
        watch: Callback that receives the completed fraction of the search.

    Returns:
        The shortest orders.
    """
    budget = budget if native.is_available() else min(budget, _BUDGET)
    moves = budget * (1 - done) / problem.operations
    rounds_done = 0.0
    max_moves = min(_MAX_MOVES, _MAX_MOVES_PER_OPERATION * problem.operations)
    for step in _ROUNDS:
        best = best[: step.n_starts]
        trials = int(moves * step.fraction / max(1, len(best)))
        trials = max(step.min_moves, min(trials, max_moves))
        for index, (_, codes) in enumerate(best):
            if best[0][0] > enough:
                memory = min(step.memory, trials // 20)
                best[index] = (
                    improve_orders(
                        problem,
                        codes,
                        trials,
                        memory=memory,
                        # With few trials, the search would not recover from longer orders.
                        rise=step.rise if memory == step.memory else 0,
                        seed=index + 1,
                        enough=enough,
                    )
                    or best[index]
                )
            in_rounds = rounds_done + step.fraction * (index + 1) / len(best)
            after_search = _STARTS_FRACTION + (1 - _STARTS_FRACTION) * in_rounds
            watch(done + (1 - done) * after_search)
        best = _sort_distinct(best)
        rounds_done += step.fraction
    return best[0]


def _build_sequential_orders(problem: Problem) -> Codes:
    """Return orders that start each microbatch only after the previous one has finished.

    No other orders need less memory than these.
    """
    return [
        [
            *(3 * stage + FORWARD for stage in stages),
            *(3 * stage + phase for stage in reversed(stages) for phase in (BACKWARD, WEIGHT)),
        ]
        * problem.microbatches
        for stages in problem.stages
    ]


def _sort_distinct(orders: Sequence[Orders | None]) -> list[Orders]:
    """Return distinct orders, sorted by length, dropping None."""
    distinct: list[Orders] = []
    valid = [candidate for candidate in orders if candidate is not None]
    for candidate in sorted(valid, key=lambda candidate: candidate[0]):
        if all(candidate[1] != other[1] for other in distinct):
            distinct.append(candidate)
    return distinct


def _run_trials(problem: Problem, *, weights: bool) -> list[Codes]:
    """Run trials of greedy policies and, if the placement is a V, of repeated blocks.

    If there are too many trials of one kind for the budget, only every n-th trial is run.

    Args:
        problem: The search problem, with times and memory.
        weights: Whether the orders contain W. Blocks are only tried for orders with W.

    Returns:
        The orders from each trial that was better than all previous trials of the same kind.
    """
    kinds: list[list[Callable[[int], Trial]]] = [
        [partial(Greedy, problem, policy=policy) for policy in list_policies(problem)]
    ]
    if weights and problem.placement == make_v_placement(problem.devices):
        blocks = list_blocks(problem.devices, min(problem.max_live))
        kinds.append(
            [
                partial(Squeezed, problem, block=block, manner=manner)
                for manner, block in product(MANNERS, blocks)
            ]
        )
    orders = []
    cost = max(problem.operations, _MIN_TRIAL_COST)
    for trials in kinds:
        target = NEVER
        step = max(1, len(trials) * cost // (_TRIAL_BUDGET * 8))
        for make_trial in trials[::step]:
            if trial := make_trial(target).run():
                target = trial.excess
                orders.append(trial.codes)
    return orders


def repeat_middle(codes: Codes, n_more: int) -> Codes:
    """Extend complete orders to more microbatches by repeating a part near the middle of each.

    The repeated part is a sequence of consecutive operations that contains each code exactly once.
    It is inserted ``n_more`` more times::

        F F B F W | B F W | B B W W    ->    F F B F W | B F W | B F W | B F W | B B W W

    If several parts of an order qualify, the one closest to the middle is used, or the first one in
    case of a tie. If no part qualifies, the order is left unchanged.

    Args:
        codes: Complete orders.
        n_more: Number of microbatches to add.
    """
    extended = []
    for order in codes:
        period = len(set(order))
        starts = range(len(order) - period + 1)
        windows = [start for start in starts if len(set(order[start : start + period])) == period]
        start = min(
            windows, key=lambda start: abs(2 * start + period - len(order)), default=len(order)
        )
        window = order[start : start + period]
        extended.append(order[:start] + window * (n_more + 1) + order[start + period :])
    return extended
