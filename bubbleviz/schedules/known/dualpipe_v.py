"""DualPipeV: DualPipe cut in half; two chunks per device in a V, forwards run beside backwards."""

from __future__ import annotations

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
    written = [
        TwoWays((device, 2 * stages - 1 - device), microbatches).written(
            device, stages, apart=device == stages - 1
        )
        for device in range(stages)
    ]
    return Plan(
        "dualpipev",
        stages,
        microbatches,
        2,
        v_placement(stages),
        tuple(tuple(writer.order) for writer in written),
        together=frozenset(forward for writer in written for forward in writer.together),
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


class TwoWays:
    """Writes the order of a device that holds two virtual stages, of one pipeline or of two.

    ::

        F0 F0 .. | F0 F1 .. | B1 W F1 .. | F0&B1 F1&B0 .. | B1 F1&B0 .. | B1 B0 .. | W B0 .. | W ..

    Args:
        stages: the virtual stages 0 and 1; the microbatches come first to 0.
        microbatches: of each of them.
    """

    def __init__(self, stages: tuple[int, int], microbatches: int) -> None:
        self.order: list[PlannedOperation] = []
        self.together: list[PlannedOperation] = []
        self._stages, self._microbatches = stages, microbatches
        self._begun = {(way, phase): 0 for way in (0, 1) for phase in (_F, _B)}
        self._owed: list[PlannedOperation] = []

    def written(self, before: int, depth: int, *, apart: bool) -> TwoWays:
        """Write all of it.

        Args:
            before: how many devices the microbatches of stage 0 have passed.
            depth: after how many they come back (to stage 1, of one pipeline or of the other).
            apart: whether the first forward beside a backward stands alone here.
        """
        behind = depth - before - 1
        for _ in range(2 * behind):
            self._forward(0)
        for _ in range(before + 1):
            self._forward(0)
            self._forward(1)
        for _ in range(behind):
            self._backward(1, split=True)
            self._weights()
            self._forward(1)
        for number in range(self._microbatches - 2 * depth + before + 1):
            self._beside(0, 1, apart=apart and number == 0)
            self._beside(1, 0)
        for _ in range(behind):
            self._backward(1)
            self._beside(1, 0)
        # The second half of these 2 (before + 1) backwards is split.
        for number in range(2 * (before + 1)):
            self._backward(1 - number % 2, split=number > before)
        for _ in range(behind):
            self._weights()
            self._backward(0, split=True)
        for _ in range(before + 1):
            self._weights()
        return self

    def _next(self, way: int, phase: Phase) -> PlannedOperation:
        kind = _F if phase is _F else _B
        number = self._begun[way, kind]
        self._begun[way, kind] += 1
        return PlannedOperation(self._stages[way], phase, number)

    def _forward(self, way: int) -> None:
        self.order.append(self._next(way, _F))

    def _backward(self, way: int, *, split: bool = False) -> None:
        operation = self._next(way, _B if split else _BW)
        self.order.append(operation)
        if split:
            self._owed.append(PlannedOperation(operation.virtual_stage, _W, operation.microbatch))

    def _weights(self) -> None:
        self.order.append(self._owed.pop(0))

    def _beside(self, forward: int, backward: int, *, apart: bool = False) -> None:
        """Write a forward that runs together with a backward, unless they are to stand apart."""
        self._forward(forward)
        if not apart:
            self.together.append(self.order[-1])
        self._backward(backward)


SCHEDULE = Schedule(
    name="dualpipev",
    summary="Two chunks per device in a V; in the steady state forwards run beside backwards.",
    source="DeepSeek-AI, DualPipe repository; DeepSeek-V3, arXiv 2412.19437, section 3.2.1",
    chunks=2,
    plan=plan,
)
