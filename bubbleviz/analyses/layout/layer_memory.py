"""Divides the memory of stages among their layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.align.stage_layers import find_chunk_stages
from bubbleviz.conventions.layer_names import LayerName
from bubbleviz.interpret.memory import LayerMemory
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Floats, Ints
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


def measure_layer_bytes(
    recordings: Sequence[Recording], run: Run, names: Sequence[LayerName], layout: Layout
) -> Floats:
    """Return the bytes that each layer allocates in a forward and keeps after the forward.

    Bytes are added up over all ranks that run a layer, so only the ratios between the layers of a
    stage are meaningful. The result is 0 for layers that have no memory events. Recorded layers are
    matched by virtual stage and name. The parts of an embedding or a head are treated as one layer.

    Args:
        recordings: Recordings with ranges of layers and memory events.
        run: The merged recordings.
        names: Layer names as they appear in ranges.
        layout: Layout of the run.
    """
    index_of_layer = {
        (s, names[index]): index for s, stage in enumerate(layout.stages) for index in stage
    }
    result = np.zeros(len(names))
    for number, recording in enumerate(recordings):
        if recording.memory is None:
            continue
        layers = _list_layers(recording.memory.layers, run, run.rank_of_local[number])
        for stage, name, layer_bytes in layers:
            # All parts of an embedding or a head are treated as one layer.
            index = index_of_layer.get(
                (stage, name), index_of_layer.get((stage, LayerName(name.kind)), NONE)
            )
            if index != NONE:
                result[index] += layer_bytes
    return result


def _list_layers(
    table: LayerMemory, run: Run, rank_of_local: Ints
) -> Iterator[tuple[int, LayerName, float]]:
    """Yield the virtual stage, name and bytes of each layer of a recording.

    The stage is -1 if unknown. Memory outside of layers is left out.

    Args:
        table: Memory of the recording's layers, with ranks numbered within the recording.
        run: The merged recordings.
        rank_of_local: Maps each rank number in the recording to the rank number in the run.
    """
    stage_of = find_chunk_stages(table.rank, table.chunk, run.operations, rank_of_local)
    columns = table.rank, table.chunk, table.layer, table.activation
    # The loop is short, because a rank has only a few dozen layers and chunks.
    for rank, chunk, layer, layer_bytes in zip(*(c.tolist() for c in columns), strict=True):
        if layer != NONE:
            yield stage_of.get((rank, chunk), NONE), table.layers[layer], layer_bytes
