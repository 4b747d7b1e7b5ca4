"""Memory of layers: the memory of stages, divided among their layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.align.stage_layers import find_chunk_stages
from bubbleviz.conventions.layer_names import LayerName
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Floats
from bubbleviz.schedules.layout.layers import Layers, Layout
from bubbleviz.schedules.plan import MeasuredMemory

_RESIDENT = "constant memory of each layer: an equal share of its device's"
_HELD = "the activations of each layer: those of its stage, divided as its forward"


def with_layer_memory(
    layers: Layers, own: Layout, memory: MeasuredMemory, allocated: Floats | None = None
) -> tuple[Layers, tuple[str, ...]]:
    """Return layers with the memory of their stages, and what was not measured.

    Args:
        layers: of the model, in the layout of the run.
        own: that layout.
        memory: of its virtual stages, in bytes.
        allocated: bytes that each layer was seen to hold; None where only stages are known.
    """
    held, kept, resident = (np.zeros(len(layers)) for _ in range(3))
    assumptions = {_RESIDENT}
    for number, stage in enumerate(own.stages):
        rows = np.arange(stage.start, stage.stop)
        parts = np.zeros(len(rows)) if allocated is None else allocated[rows]
        if not parts.any():
            parts = layers.forward_ns[rows].astype(float)
            assumptions.add(_HELD)
        shares = parts / parts.sum() if parts.any() else np.full(len(rows), 1 / len(rows))
        held[rows] = memory.activation[number] * shares
        kept[rows] = memory.weight_activation[number] * shares
    for device, taken in enumerate(memory.resident):
        of_device = [at for stage in own.of_device(device) for at in own.stages[stage]]
        resident[of_device] = taken / len(of_device)
    return replace(layers, held=held, kept=kept, resident=resident), tuple(sorted(assumptions))


def allocated_by_layer(
    recordings: Sequence[Recording], run: Run, names: Sequence[LayerName], own: Layout
) -> Floats:
    """Return the bytes that each layer was seen to hold from its forwards on.

    Args:
        recordings: read with ranges of layers and memory events.
        run: these, merged.
        names: of the layers, as ranges give them.
        own: which virtual stage holds which.
    """
    place = {(s, names[at]): at for s, stage in enumerate(own.stages) for at in stage}
    result = np.zeros(len(names))
    for number, recording in enumerate(recordings):
        if recording.memory is None:
            continue
        table = recording.memory.layers
        local = run.rank_of_local[number]
        stage_of = find_chunk_stages(table.rank, table.chunk, run.operations, local)
        columns = table.rank, table.chunk, table.layer, table.activation
        # A row a layer and chunk: a few dozen a rank.
        for rank, chunk, layer, held in zip(*(c.tolist() for c in columns), strict=True):
            stage = stage_of.get((rank, chunk), NONE)
            if layer != NONE:
                name = table.layers[layer]
                # The parts of an embedding, or of a head, are one layer.
                at = place.get((stage, name), place.get((stage, LayerName(name.kind)), NONE))
                if at != NONE:
                    result[at] += held
    return result
