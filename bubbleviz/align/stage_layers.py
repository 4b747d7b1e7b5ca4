"""Stage layers: kernel time per layer and phase, summed over the ranks of a virtual stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bubbleviz.conventions.layer_names import LayerName
from bubbleviz.interpret.layers import LayerTimes
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_distinct, find_distinct_rows
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase

#: Layer times for one virtual stage. The first dict contains total kernel times in ns, keyed by
#: (phase, layer). The second dict contains the times of first launches, keyed by layer.
StageLayers = tuple[dict[tuple[Phase, LayerName | None], int], dict[LayerName, int]]


def find_chunk_stages(
    rank: Ints, chunk: Ints, operations: Operations, rank_of_local: Ints
) -> Mapping[tuple[int, int], int]:
    """Return each chunk's virtual stage in a profile, keyed by (rank in the profile, chunk).

    The n-th smallest chunk of a rank is on the rank's n-th smallest virtual stage. A rank is left
    out if its number of chunks differs from its number of virtual stages.

    Args:
        rank: Ranks as numbered in the profile. Pairs of rank and chunk may repeat.
        chunk: Chunk of each entry in ``rank``, as numbered in operation names.
        operations: Operations of the run to which the profile belongs.
        rank_of_local: Rank in the run, indexed by rank in the profile.
    """
    is_known = operations.virtual_stage != NONE
    pairs = find_distinct_rows(operations.rank, operations.virtual_stage, mask=is_known)
    stage_of_chunk: dict[tuple[int, int], int] = {}
    for local_rank in find_distinct(rank).tolist():
        chunks = find_distinct(chunk[rank == local_rank]).tolist()
        stages = sorted(pairs[1, pairs[0] == rank_of_local[local_rank]].tolist())
        if len(chunks) == len(stages):
            keys = [(local_rank, name) for name in chunks]
            stage_of_chunk |= dict(zip(keys, stages, strict=True))
    return stage_of_chunk


def build_stage_layers(
    recordings: Sequence[Recording], operations: Operations, rank_of_local: Sequence[Ints]
) -> tuple[StageLayers, ...]:
    """Return each layer's kernel time on each virtual stage, summed over the stage's ranks.

    The result is empty if no forward has layer ranges. Chunks whose virtual stage is unknown are
    left out. Kernel time outside all layer ranges is stored under the layer None.

    Args:
        recordings: All recordings of the run.
        operations: Operations of the run.
        rank_of_local: One array per recording that maps its ranks to ranks of the run.
    """
    layers: list[StageLayers] = []
    for recording, ranks in zip(recordings, rank_of_local, strict=True):
        times = recording.layers
        if times is None or not times.layers:
            continue
        if not layers:
            n_stages = int(operations.virtual_stage.max()) + 1
            layers = [({}, {}) for _ in range(n_stages)]
        _add_layers(layers, times, find_chunk_stages(times.rank, times.chunk, operations, ranks))
    has_forwards = any(first_ns_of for _, first_ns_of in layers)
    return tuple(layers) if has_forwards else ()


def _add_layers(
    layers: Sequence[StageLayers], times: LayerTimes, stage_of_chunk: Mapping[tuple[int, int], int]
) -> None:
    """Add one profile's layer times to the layer times of the virtual stages.

    Kernel times are summed. For a layer's first launch in a forward, the earliest time is kept.

    Args:
        layers: Layer times of each virtual stage. Modified in place.
        times: Layer times of the profile.
        stage_of_chunk: Virtual stage of each (rank, chunk) in the profile. Chunks that are missing
            from this mapping are left out.
    """
    columns = times.rank, times.chunk, times.phase, times.layer, times.kernel_ns, times.first_ns
    # One row per layer, chunk and phase: a few hundred per rank.
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for rank, chunk, phase, layer, kernel_ns, first_ns in rows:
        if (rank, chunk) not in stage_of_chunk:
            continue
        kernel_ns_of, first_ns_of = layers[stage_of_chunk[rank, chunk]]
        name = None if layer == NONE else times.layers[layer]
        key = Phase(phase), name
        kernel_ns_of[key] = kernel_ns_of.get(key, 0) + kernel_ns
        if name is not None and phase == Phase.F:
            first_ns_of[name] = min(first_ns_of.get(name, first_ns), first_ns)
