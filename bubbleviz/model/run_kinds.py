"""The kind of a run: training, or inference, which has only forward passes."""

from __future__ import annotations

from bubbleviz.model.columns import Ints
from bubbleviz.model.phase_masks import has_phase
from bubbleviz.model.phases import BACKWARD, Phase

TRAINING = "training"
INFERENCE = "inference"
#: Kind of an iteration that has only forward passes, in a training run.
EVALUATION = "evaluation"
#: Phases that occur only in training, including communication.
_TRAINING_PHASES = (*BACKWARD, Phase.FB, Phase.OPTIMIZER, Phase.SEND_B, Phase.RECV_B)


def run_kind(phase: Ints) -> str:
    """Return the kind of a run, ``"training"`` or ``"inference"``.

    A run is inference if it contains a forward pass and no phase that occurs only in training.

    Args:
        phase: Phase of each operation.
    """
    is_training = has_phase(phase, _TRAINING_PHASES)
    return INFERENCE if not is_training and (phase == Phase.F).any() else TRAINING
