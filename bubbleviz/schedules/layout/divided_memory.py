"""Divides the memory of stages and devices among their layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import Floats
from bubbleviz.schedules.layout.layers import Layers, Layout
from bubbleviz.schedules.plan import MeasuredMemory

_RESIDENT = "resident memory: divided equally among the layers of each device"
_HELD = "activations: divided among the layers of each stage in proportion to their forward times"


def add_layer_memory(
    layers: Layers, layout: Layout, memory: MeasuredMemory, allocated: Floats | None = None
) -> tuple[Layers, tuple[str, ...]]:
    """Divide the memory of stages and devices among their layers.

    The activations of a stage are divided in proportion to the measured bytes of its layers, or to
    their forward times if the bytes are unknown. The resident memory of a device is divided equally
    among its layers.

    Args:
        layers: The model's layers.
        layout: Layout of the run.
        memory: Memory of the run's virtual stages and devices, in bytes.
        allocated: Measured bytes of each layer, or None if only stages were measured.

    Returns:
        layers: The layers, including their memory.
        assumptions: Assumptions that replace missing measurements, one sentence each.
    """
    activation_bytes, weight_bytes, resident = (np.zeros(len(layers)) for _ in range(3))
    assumptions = {_RESIDENT}
    for number, stage in enumerate(layout.stages):
        rows = np.arange(stage.start, stage.stop)
        parts = np.zeros(len(rows)) if allocated is None else allocated[rows]
        if not parts.any():
            parts = layers.forward_ns[rows].astype(float)
            assumptions.add(_HELD)
        shares = parts / parts.sum() if parts.any() else np.full(len(rows), 1 / len(rows))
        activation_bytes[rows] = memory.activation[number] * shares
        weight_bytes[rows] = memory.weight_activation[number] * shares
    for device, resident_bytes in enumerate(memory.resident):
        of_device = [at for stage in layout.get_stages_of(device) for at in layout.stages[stage]]
        resident[of_device] = resident_bytes / len(of_device)
    return replace(
        layers, activation=activation_bytes, weight_activation=weight_bytes, resident=resident
    ), tuple(sorted(assumptions))
