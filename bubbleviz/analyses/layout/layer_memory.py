"""Measures the bytes that each layer allocates, from the ranges of the layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.align.stage_layers import find_chunk_stages
from bubbleviz.conventions.layer_names import LayerName
from bubbleviz.interpret.memory import LayerMemory
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.schedules.layout.layers import Layout


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
