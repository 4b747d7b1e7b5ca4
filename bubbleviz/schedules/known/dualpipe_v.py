"""DualPipeV: DualPipe cut in half; two chunks per device in a V, forwards run beside backwards."""

from __future__ import annotations

from collections import Counter

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan, PlannedOperation, Schedule, refuse_chunks, v_placement

_F, _B, _W, _BW = Phase.F, Phase.B, Phase.W, Phase.BW


def plan(stages: int, microbatches: int, chunks: int = 2) -> Plan:
    """Return the plan: virtual stage v of 2p is on device v on the way down, 2p-1-v on the way up.

    Raises:
        UsageError: the chunks are not two, or there are fewer than 2p microbatches.
    """
    refuse_chunks("dualpipev", chunks, 2, "per device")
    enough("dualpipev", stages, microbatches)
    orders = [
        two_ways((d, 2 * stages - 1 - d), microbatches, d, stages, apart=d == stages - 1)
        for d in range(stages)
    ]
    return two_way_plan("dualpipev", stages, microbatches, 2, orders)


#: The order of a device, and the forwards in it that run beside a backward.
TwoWays = tuple[list[PlannedOperation], list[PlannedOperation]]


def two_way_plan(
    name: str, stages: int, microbatches: int, chunks: int, orders: list[TwoWays], replicas: int = 1
) -> Plan:
    """Return the plan of the orders of :func:`two_ways`."""
    return Plan(
        name,
        stages,
        microbatches,
        chunks,
        v_placement(stages),
        tuple(tuple(order) for order, _ in orders),
        replicas=replicas,
        together=frozenset(forward for _, together in orders for forward in together),
    )


def enough(name: str, stages: int, microbatches: int) -> None:
    """Check that there are enough microbatches.

    Raises:
        UsageError: there are fewer than two per stage.
    """
    if microbatches < 2 * stages:
        raise UsageError(
            f"{name} needs two microbatches per stage, {2 * stages} or more, not {microbatches}"
        )


def two_ways(
    stages: tuple[int, int], microbatches: int, before: int, depth: int, *, apart: bool
) -> TwoWays:
    """Return the order of a device that holds two virtual stages, of one pipeline or of two.

    ::

        F0 F0 .. | F0 F1 .. | B1 W F1 .. | F0&B1 F1&B0 .. | B1 F1&B0 .. | B1 B0 .. | W B0 .. | W ..

    Args:
        stages: the virtual stages 0 and 1; the microbatches come first to 0.
        microbatches: of each of them.
        before: how many devices the microbatches of stage 0 have passed.
        depth: after how many they come back (to stage 1, of one pipeline or of the other).
        apart: whether the first forward beside a backward stands alone here.
    """
    order: list[PlannedOperation] = []
    together: list[PlannedOperation] = []
    owed: list[PlannedOperation] = []
    begun: Counter[tuple[int, bool]] = Counter()

    def write(way: int, phase: Phase) -> None:
        number = begun[way, phase is _F]
        begun[way, phase is _F] += 1
        order.append(PlannedOperation(stages[way], phase, number))
        if phase is _B:
            owed.append(PlannedOperation(stages[way], _W, number))

    def beside(forward: int, backward: int, *, apart: bool = False) -> None:
        """Write a forward that runs together with a backward, unless they are to stand apart."""
        write(forward, _F)
        together.extend([] if apart else order[-1:])
        write(backward, _BW)

    behind = depth - before - 1
    for way in [0, 0] * behind + [0, 1] * (before + 1):
        write(way, _F)
    for _ in range(behind):
        write(1, _B)
        order.append(owed.pop(0))
        write(1, _F)
    for number in range(microbatches - 2 * depth + before + 1):
        beside(0, 1, apart=apart and number == 0)
        beside(1, 0)
    for _ in range(behind):
        write(1, _BW)
        beside(1, 0)
    # The second half of these 2 (before + 1) backwards is split.
    for number in range(2 * (before + 1)):
        write(1 - number % 2, _B if number > before else _BW)
    for _ in range(behind):
        order.append(owed.pop(0))
        write(0, _B)
    return order + owed[: before + 1], together


SCHEDULE = Schedule(
    name="dualpipev",
    summary="Two chunks per device in a V; in the steady state forwards run beside backwards.",
    source="DeepSeek-AI, DualPipe repository; DeepSeek-V3, arXiv 2412.19437, section 3.2.1",
    chunks=2,
    plan=plan,
)
