"""Phases of pipeline training, which describe what an operation computes.

The names follow the Zero Bubble paper (arXiv 2401.10241). ``B`` computes the gradients of the
inputs, ``W`` computes the gradients of the weights, and ``BW`` does both in one operation.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum


class Phase(IntEnum):
    """The phase of an operation. Columns named ``phase`` contain its integer value."""

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
        """Display name used in reports, tables and exported files."""
        return "Optimizer" if self is Phase.OPTIMIZER else self.name


#: Phases that count as work in bubble ratios.
WORK = (Phase.F, Phase.B, Phase.W, Phase.BW, Phase.R, Phase.FB)
#: Phases during which a GPU does not count as being in a bubble.
COMPUTE = (*WORK, Phase.OPTIMIZER)
#: Phases whose kernels may be launched by another thread, such as PyTorch's autograd thread.
BACKWARD = (Phase.B, Phase.W, Phase.BW, Phase.R)
#: A rank is included in an iteration's ratios if it has an operation in one of these phases.
COUNTED = (Phase.F, Phase.B, Phase.W, Phase.BW, Phase.FB)
#: Phases whose results another virtual stage waits for.
CHAINED = (Phase.F, Phase.B, Phase.BW)
#: Phases of communication operations.
COMMUNICATION = (
    Phase.SEND_F,
    Phase.RECV_F,
    Phase.SEND_B,
    Phase.RECV_B,
    Phase.SEND_RECV,
    Phase.COLLECTIVE,
)
#: Phases of communication between two ranks.
TRANSFERS = (Phase.SEND_F, Phase.RECV_F, Phase.SEND_B, Phase.RECV_B, Phase.SEND_RECV)
#: Phases of communication that waits for data from another rank.
RECEIVING = (Phase.RECV_F, Phase.RECV_B, Phase.SEND_RECV)

_BY_LABEL = {phase.label: phase for phase in Phase}
#: Phases that contain a forward, and phases that contain a backward.
_PHASES_OF_PASS = {
    "forward": {Phase.F, Phase.FB},
    "backward": {Phase.B, Phase.W, Phase.BW, Phase.FB},
}


def list_missing_passes(phases: Collection[int | None]) -> tuple[str, ...]:
    """Return the passes, out of ``"forward"`` and ``"backward"``, that do not occur.

    Args:
        phases: Phases that occur. None entries are ignored.
    """
    return tuple(
        name for name, pass_phases in _PHASES_OF_PASS.items() if pass_phases.isdisjoint(phases)
    )


def parse_phase_label(label: str) -> Phase | None:
    """Return the phase with the given display name, or None if there is none."""
    return _BY_LABEL.get(label)
