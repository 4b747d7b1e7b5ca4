"""What an operation does: the phases of pipeline training, as codes for columns.

The names are those of the Zero Bubble papers (arXiv 2401.10241): ``B`` is the backward pass for
the input alone, ``W`` that for the weights, ``BW`` both fused.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum


class Phase(IntEnum):
    """The phase of an operation; the value is what the ``phase`` columns hold."""

    F = 0
    B = 1
    W = 2
    BW = 3
    R = 4
    FB = 5
    OPTIMIZER = 6
    SEND_F = 7
    RECV_F = 8
    SEND_B = 9
    RECV_B = 10
    SEND_RECV = 11
    COLLECTIVE = 12

    @property
    def label(self) -> str:
        """The name as reports, tables and files print it."""
        return "Optimizer" if self is Phase.OPTIMIZER else self.name


#: F, B, W, BW, R and FB: what the bubble ratios count as the work of an iteration.
WORK = (Phase.F, Phase.B, Phase.W, Phase.BW, Phase.R, Phase.FB)
#: Everything that keeps a GPU from being in a bubble.
COMPUTE = (*WORK, Phase.OPTIMIZER)
#: Phases that take a kernel launched on another thread (spec of the cross-thread rule).
BACKWARD = (Phase.B, Phase.W, Phase.BW, Phase.R)
#: A rank takes part in an iteration's ratios when it has one of these.
COUNTED = (Phase.F, Phase.B, Phase.W, Phase.BW, Phase.FB)
#: What each virtual stage waits for from the one before or behind it.
CHAINED = (Phase.F, Phase.B, Phase.BW)
#: Communication that ranges name.
COMMUNICATION = (
    Phase.SEND_F,
    Phase.RECV_F,
    Phase.SEND_B,
    Phase.RECV_B,
    Phase.SEND_RECV,
    Phase.COLLECTIVE,
)
#: Communication between two ranks.
TRANSFERS = (Phase.SEND_F, Phase.RECV_F, Phase.SEND_B, Phase.RECV_B, Phase.SEND_RECV)
#: Communication that waits for a peer's data.
RECEIVING = (Phase.RECV_F, Phase.RECV_B, Phase.SEND_RECV)

_BY_LABEL = {phase.label: phase for phase in Phase}
#: What names a run's forward, and its backward.
_PHASES_OF_PASS = {
    "forward": {Phase.F, Phase.FB},
    "backward": {Phase.B, Phase.W, Phase.BW, Phase.FB},
}


def list_missing_passes(phases: Collection[int | None]) -> tuple[str, ...]:
    """Return which of ``"forward"`` and ``"backward"`` none of some phases is."""
    return tuple(
        name for name, pass_phases in _PHASES_OF_PASS.items() if pass_phases.isdisjoint(phases)
    )


def parse_phase_label(label: str) -> Phase | None:
    """Return the phase of that printed name, or None."""
    return _BY_LABEL.get(label)
