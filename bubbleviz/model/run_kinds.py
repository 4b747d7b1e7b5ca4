"""The kind of a run: training, or forward passes only, as in serving and evaluation."""

from __future__ import annotations

from bubbleviz.model.columns import Ints
from bubbleviz.model.phase_masks import has_phase
from bubbleviz.model.phases import BACKWARD, Phase

TRAINING = "training"
INFERENCE = "inference"
#: An iteration of a run that trains, which only goes forward.
EVALUATION = "evaluation"
#: What no run has that only goes forward, its communication included.
_TRAINING_PHASES = (*BACKWARD, Phase.FB, Phase.OPTIMIZER, Phase.SEND_B, Phase.RECV_B)


def run_kind(phase: Ints) -> str:
    """Return the kind of a run: ``"training"`` or ``"inference"``.

    A run without any forward counts as training: nothing shows that it serves.

    Args:
        phase: of all its operations.
    """
    is_training = has_phase(phase, _TRAINING_PHASES)
    return INFERENCE if not is_training and (phase == Phase.F).any() else TRAINING
