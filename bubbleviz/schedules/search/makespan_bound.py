"""A lower bound on the makespan of any order that fits in memory.

The bound of a device applies to any order of its operations::

    head            E                                                last
    ├── idle ──┤├ F F F ┤├─ idle ─┤├── remaining work ──┤├── way back ──┤

The *head* is the time before the first microbatch reaches the device. *E* is the earliest time at
which the first gradient can arrive. Until then, the device can run only the forwards that fit in
memory. After the last B of the device, the backwards of all previous stages must still run. If only
a few microbatches fit in memory, the device also idles after its last F. It then has too little
work to stay busy until the microbatch of this F comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bubbleviz.schedules.search.problem import BACKWARD, FORWARD, WEIGHT, Problem


@dataclass(frozen=True)
class _WayTimes:
    """Times, in ticks, of a microbatch that never waits, one per virtual stage.

    Attributes:
        to_forward: Time from the start of the iteration to the start of F.
        to_backward: Time from the start of the iteration to the start of B.
        from_forward: Time from the end of F to the end of the iteration.
        from_backward: Time from the end of B to the end of the iteration.
    """

    to_forward: list[int]
    to_backward: list[int]
    from_forward: list[int]
    from_backward: list[int]


def compute_lower_bound(problem: Problem) -> int:
    """Return a lower bound, in ticks, on the length of any order that fits in memory.

    - If ``problem.makespan`` is False, the length is the longest window of any device. The bound is
      the amount of work on the busiest device.
    - Otherwise, the length is the makespan. The bound is the maximum of two values: the time of a
      microbatch that never waits, and the largest bound of any device (:func:`_bound_device`).
    - If there are no microbatches, the bound is 0.
    """
    if not problem.microbatches or not problem.makespan:
        return problem.max_work
    ways = _compute_way_times(problem)
    last_forward = problem.lengths[0::3][-1]
    bounds = [ways.to_forward[-1] + last_forward + ways.from_forward[-1]]
    bounds += [_bound_device(problem, ways, device) for device in range(problem.devices)]
    return max(bounds)


def _compute_way_times(problem: Problem) -> _WayTimes:
    """Compute how long a microbatch that never waits takes before and after each virtual stage.

    A B starts as soon as the gradient from the next virtual stage arrives. The time from a B to the
    end of the iteration covers the W of the same virtual stage.
    """
    forward, backward, weight = (problem.lengths[phase::3] for phase in range(3))
    n_stages = len(problem.placement)
    to_forward = [0]
    for stage in range(1, n_stages):
        to_forward.append(to_forward[-1] + forward[stage - 1] + problem.down[stage - 1])
    to_backward = [to_forward[-1] + forward[-1]]
    for stage in range(n_stages - 1, 0, -1):
        to_backward.insert(0, to_backward[0] + backward[stage] + problem.up[stage])
    from_backward = [weight[0]]
    for stage in range(1, n_stages):
        onward = problem.up[stage] + backward[stage - 1] + from_backward[-1]
        from_backward.append(max(weight[stage], onward))
    from_forward = [backward[-1] + from_backward[-1]]
    for stage in range(n_stages - 1, 0, -1):
        from_forward.insert(0, problem.down[stage - 1] + forward[stage] + from_forward[0])
    return _WayTimes(to_forward, to_backward, from_forward, from_backward)


def _bound_device(problem: Problem, ways: _WayTimes, device: int) -> int:
    """Return a lower bound on the makespan, in ticks, from the work and memory of one device.

    The result is the maximum of three bounds. Each bound contains the time before the first F, the
    idle time before the first B, and all F and B of the device. The bounds differ in what is added:

    - the time from the end of the last B of the device to the end of the iteration
    - all W of the device
    - all W, and the idle time after the last F while its microbatch passes through the rest of the
      model and comes back. In this third bound, the idle time before the first B is left out if all
      F fit in memory.
    """
    first, last = problem.stages[device][0], problem.stages[device][-1]
    forwards, backwards, weights = (
        problem.microbatches * sum(_list_lengths(problem, device, phase))
        for phase in (FORWARD, BACKWARD, WEIGHT)
    )
    head = ways.to_forward[first]
    # Forwards that fit in memory before the first backward.
    warmup = _maximize_value_in_memory(problem, device, _list_lengths(problem, device, FORWARD))
    idle = max(0, ways.to_backward[last] - head - warmup)
    last_backward_end = head + idle + forwards + backwards
    idle_at_end = max(0, ways.from_forward[last] - _maximize_work_after_forwards(problem, device))
    idle_before = idle if warmup < forwards else 0
    last_forward_bound = head + idle_before + forwards + backwards + weights + idle_at_end
    return max(
        last_backward_end + ways.from_backward[first],
        last_backward_end + weights,
        last_forward_bound,
    )


def _list_lengths(problem: Problem, device: int, phase: int) -> list[int]:
    """Return the duration of one operation of the given phase on each virtual stage of a device."""
    return [problem.lengths[3 * stage + phase] for stage in problem.stages[device]]


def _maximize_work_after_forwards(problem: Problem, device: int) -> int:
    """Return the maximum work, in ticks, that can remain on a device after its last F.

    After the last F, two groups of microbatches still need work: microbatches between F and B need
    B and W, and microbatches between B and W need W. The result adds up both groups as if each of
    them could fill the whole memory.
    """
    weights = _list_lengths(problem, device, WEIGHT)
    backwards = _list_lengths(problem, device, BACKWARD)
    unfinished = [backward + weight for backward, weight in zip(backwards, weights, strict=True)]
    return _maximize_value_in_memory(problem, device, unfinished) + _maximize_value_in_memory(
        problem, device, weights, only_weights=True
    )


def _maximize_value_in_memory(
    problem: Problem, device: int, values: Sequence[int], *, only_weights: bool = False
) -> int:
    """Return the maximum total value of microbatches that fit in a device's memory at once.

    This is a fractional knapsack, solved greedily by value per memory and rounded up. On a device
    with one chunk, microbatches are not divided.

    Args:
        problem: Memory and number of microbatches.
        device: Index of the device.
        values: Value of one microbatch on each virtual stage of the device.
        only_weights: Whether a microbatch takes up only the memory that is kept for W.
    """
    stages, n_microbatches = problem.stages[device], problem.microbatches
    sizes = problem.weight_activation if only_weights else problem.activation
    size_of = [sizes[stage] for stage in stages]
    free, total = problem.limit[device], 0
    if len(stages) == 1:
        max_count = min(n_microbatches, free // size_of[0]) if size_of[0] else n_microbatches
        return values[0] * max_count
    by_density = sorted(
        zip(values, size_of, strict=True), key=lambda item: item[1] / max(1, item[0])
    )
    for value, size in by_density:
        if not size:
            total += n_microbatches * value
            continue
        used = min(n_microbatches * size, free)
        total += -(-used * value // size)
        free -= used
    return total
