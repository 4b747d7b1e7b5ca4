"""Keys: what operations are, by the names of their ranges and by their order on the host."""

from __future__ import annotations

import numpy as np

from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.interpret.iterations import occurrences
from bubbleviz.interpret.operation_ranges import OperationRanges
from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import OperationKeys
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import Ranges
from bubbleviz.model.values import frozen


@frozen
class NameHints(Table):
    """What the names of operations give beyond their keys; -1 nothing.

    Attributes:
        stage: virtual stage.
        iteration: number of the iteration that a range around it names.
    """

    stage: Ints
    iteration: Ints


def keys_of(
    named: Ranges, names: NameMeanings, placed: OperationRanges
) -> tuple[OperationKeys, NameHints]:
    """Return the keys of operations, in order of (rank, host start), and what else names give."""
    count = int(placed.operation.max(initial=-1)) + 1
    first = np.unique(placed.operation, return_index=True)[1]
    of_range, rank = placed.range[first], placed.rank[first]
    name = names.take(named.name_id[of_range])
    host_end_ns = intervals.group_extents(
        placed.operation, count, named.start_ns[placed.range], named.end_ns[placed.range]
    )[1]
    cut = np.zeros(count, np.int64)
    np.maximum.at(cut, placed.operation, named.cut[placed.range].astype(np.int64))
    iteration = placed.iteration[first]
    counted = placed.unnumbered[first]
    order = occurrences((rank, iteration, name.phase, name.chunk, name.sequence))
    microbatch = np.where(counted, order, name.microbatch)
    phase = fused_backward(name.phase, (rank, name.chunk, name.stage, name.microbatch))
    key = (rank, iteration, phase, name.chunk, name.stage, name.sequence, microbatch)
    keys = OperationKeys(
        rank=rank.copy(),
        iteration=iteration,
        phase=phase,
        microbatch=microbatch,
        chunk=np.where(name.chunk >= 0, name.chunk, name.stage),
        sequence=name.sequence.copy(),
        second_microbatch=name.second_microbatch.copy(),
        second_chunk=np.where(name.second_chunk >= 0, name.second_chunk, name.second_stage),
        occurrence=occurrences((*key, name.second_microbatch, name.second_chunk)),
        host_start_ns=named.start_ns[of_range],
        host_end_ns=host_end_ns,
        cut=cut,
        tokens=name.all_tokens,
        name_id=named.name_id[of_range],
        names=named.names,
    )
    return keys, NameHints(stage=name.stage.copy(), iteration=placed.mark[first])


def fused_backward(phase: Ints, whole: tuple[Ints, Ints, Ints, Ints]) -> Ints:
    """Return phases, with B made BW where that backward never gets a W on its rank.

    A ``W_clear`` (a W without a microbatch) may settle any backward of its chunk.

    Args:
        phase: of each operation.
        whole: rank, chunk, stage and microbatch of each; -1 where names do not give it.
    """
    phase = phase.copy()
    if len(phase) == 0:
        return phase
    rank, chunk, stage, microbatch = whole
    number = groups_of(*whole).of_row
    of_chunk = groups_of(rank, chunk, stage).of_row
    weights = phase == Phase.W
    clears = weights & (microbatch < 0)
    settled = np.isin(number, number[weights]) | np.isin(of_chunk, of_chunk[clears])
    # A W that names no chunk either may settle any backward of its rank.
    settled |= np.isin(rank, rank[clears & (chunk < 0) & (stage < 0)])
    phase[(phase == Phase.B) & ~settled] = Phase.BW
    return phase
