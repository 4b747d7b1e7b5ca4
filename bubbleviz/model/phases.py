"""Phases of pipeline training, which say what an operation computes.

The names follow the Zero Bubble papers (arXiv 2401.10241): ``B`` is the backward pass for the
input, ``W`` the backward pass for the weights, and ``BW`` is both in one operation.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum


class Phase(IntEnum):
    """The phase of an operation. Its value is the code in ``phase`` columns."""

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
        """Display name used in reports, tables and file exports."""
        return "Optimizer" if self is Phase.OPTIMIZER else self.name


#: Phases that count as work in bubble ratios.
WORK = (Phase.F, Phase.B, Phase.W, Phase.BW, Phase.R, Phase.FB)
#: Phases during which a GPU is not in a bubble.
COMPUTE = (*WORK, Phase.OPTIMIZER)
#: Phases that may own kernels launched on another thread, as PyTorch's autograd thread does.
BACKWARD = (Phase.B, Phase.W, Phase.BW, Phase.R)
#: A rank counts in the ratios of an iteration if it has an operation of one of these phases.
COUNTED = (Phase.F, Phase.B, Phase.W, Phase.BW, Phase.FB)
#: Phases whose results the next or previous virtual stage waits for.
CHAINED = (Phase.F, Phase.B, Phase.BW)
#: Communication operations that ranges name.
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
#: Phases that contain a forward, and phases that contain a backward.
_PHASES_OF_PASS = {
    "forward": {Phase.F, Phase.FB},
    "backward": {Phase.B, Phase.W, Phase.BW, Phase.FB},
}


def list_missing_passes(phases: Collection[int | None]) -> tuple[str, ...]:
    """Return the passes (``"forward"``, ``"backward"``) that none of the phases contains.

    Args:
        phases: Phases that occur.
    """
    return tuple(
        name for name, pass_phases in _PHASES_OF_PASS.items() if pass_phases.isdisjoint(phases)
    )


def parse_phase_label(label: str) -> Phase | None:
    """Return the phase with this display name, or None if there is none."""
    return _BY_LABEL.get(label)
