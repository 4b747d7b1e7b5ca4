"""Bounds: the least makespan that any order of a problem can have.

For each device, whatever its order::

    head            E                                                last
    ├── idle ──┤├ F F F ┤├─ idle ─┤├──── the rest of its work ────┤├── way back ──┤

until E, when its first gradient can be there, it has but the forwards that there is memory for; its
last B is followed by those of the stages before. With memory for few microbatches, what is left to
do after its last F is too little to fill the way of that F to the end of the model and back.
"""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.model.values import frozen
from bubbleviz.schedules.search.problem import Problem


@frozen
class _Ways:
    """Ticks before and behind an operation of a microbatch that waits nowhere, by virtual stage.

    Attributes:
        to_forward: until its F can start.
        to_backward: until its B can start.
        from_forward: after the end of its F.
        from_backward: after the end of its B.
    """

    to_forward: list[int]
    to_backward: list[int]
    from_forward: list[int]
    from_backward: list[int]


def lower_bound(problem: Problem) -> int:
    """Return a makespan, in ticks, that no order within the memory is shorter than."""
    if not problem.microbatches:
        return 0
    ways = _ways(problem)
    return max(_of_device(problem, ways, device) for device in range(problem.devices))


def _ways(problem: Problem) -> _Ways:
    count = len(problem.placement)
    forward, backward, weight = (problem.lengths[phase::3] for phase in range(3))
    to_forward = [0]
    for s in range(1, count):
        to_forward.append(to_forward[-1] + forward[s - 1] + problem.down[s - 1])
    to_backward = [to_forward[-1] + forward[-1]]
    for s in range(count - 1, 0, -1):
        to_backward.insert(0, to_backward[0] + backward[s] + problem.up[s])
    from_backward = [weight[0]]
    for s in range(1, count):
        onward = problem.up[s] + backward[s - 1] + from_backward[-1]
        from_backward.append(max(weight[s], onward))
    from_forward = [backward[-1] + from_backward[-1]]
    for s in range(count - 1, 0, -1):
        from_forward.insert(0, problem.down[s - 1] + forward[s] + from_forward[0])
    return _Ways(to_forward, to_backward, from_forward, from_backward)


def _of_device(problem: Problem, ways: _Ways, device: int) -> int:
    stages, m = problem.stages[device], problem.microbatches
    first, last = stages[0], stages[-1]
    lengths = problem.lengths
    forwards = m * sum(lengths[3 * s] for s in stages)
    backwards = m * sum(lengths[3 * s + 1] for s in stages)
    weights = m * sum(lengths[3 * s + 2] for s in stages)
    head = ways.to_forward[first]
    ahead = _most(problem, device, [lengths[3 * s] for s in stages])
    idle = max(0, ways.to_backward[last] - head - ahead)
    # Its last B is one of its first virtual stage, its last F one of its last.
    ends = head + idle + forwards + backwards
    bound = max(ends + ways.from_backward[first], ends + weights)
    left = _most(problem, device, [lengths[3 * s + 1] + lengths[3 * s + 2] for s in stages])
    # A W may be owed by microbatches that hold no more than that.
    left += _most(problem, device, [lengths[3 * s + 2] for s in stages], owed=True)
    waits = max(0, ways.from_forward[last] - left)
    before = idle if ahead < forwards else 0
    alone = ways.to_forward[-1] + lengths[-3] + ways.from_forward[-1]
    return max(bound, head + before + forwards + backwards + weights + waits, alone)


def _most(problem: Problem, device: int, worth: Sequence[int], *, owed: bool = False) -> int:
    """Return the most that microbatches that a device holds at once can be worth.

    Parts of microbatches count, but where the device has one chunk.

    Args:
        problem: memory, and how many microbatches there are.
        device: its number.
        worth: of a microbatch, by virtual stage of the device.
        owed: whether they hold only what is kept for W.
    """
    stages, m = problem.stages[device], problem.microbatches
    weight = [(problem.kept if owed else problem.held)[s] for s in stages]
    room, total = problem.limit[device], 0
    if len(stages) == 1:
        return worth[0] * (m if not weight[0] else min(m, room // weight[0]))
    rows = sorted(zip(worth, weight, strict=True), key=lambda row: row[1] / max(1, row[0]))
    for each, size in rows:
        if not size:
            total += m * each
            continue
        part = min(m * size, room)
        total += -(-part * each // size)
        room -= part
    return total
