"""Operations: the rows of a table as operations, or why they cannot be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operation_table import OperationTable
from bubbleviz.model.operations import (
    OperationKeys,
    OperationLaunches,
    OperationSpans,
    RankOperations,
)
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.model.profile import Source
from bubbleviz.sources.tables.cells import Cells, refused
from bubbleviz.sources.tables.collective_cells import told_collectives
from bubbleviz.sources.tables.interval_cells import row_intervals
from bubbleviz.sources.tables.keys import iterations, names, paired_numbers, phases
from bubbleviz.sources.tables.ranks import places, refuse_two_stages
from bubbleviz.sources.tables.times import spans, times, whole_numbers

#: Nothing takes longer.
_FARTHEST_NS = 1 << 62
#: What an operation is, its times apart.
_WHAT = (
    "rank",
    "iteration",
    "phase",
    "microbatch",
    "chunk",
    "sequence",
    "second_microbatch",
    "second_chunk",
    "occurrence",
)
#: A multiplier that mixes bits (that of splitmix64).
_ODD = np.uint64(0xBF58476D1CE4E5B9)


def operation_table(cells: Cells, source: Source) -> OperationTable:
    """Return a table's operations, with what else it tells.

    Raises:
        NothingToAnalyseError: it has no rows.
        ProfileError: a row cannot be an operation, or contradicts another.
    """
    if cells.rows == 0:
        raise NothingToAnalyseError(
            f"{cells.path}: the table is empty; write a row for each operation"
        )
    place, rank_places = places(cells)
    iteration, iteration_names = iterations(cells)
    span = spans(cells)
    keys = _keys(cells, place, iteration, span)
    virtual_stage = whole_numbers(cells, "virtual_stage", least=NONE)[0]
    refuse_two_stages(cells, place, keys.chunk, keys.phase, virtual_stage)
    _refuse_twice(cells, keys, span)
    return OperationTable(
        source=source,
        operations=RankOperations.of(keys, _spans(cells, span), _launches(cells)),
        places=rank_places,
        iterations=iteration_names,
        virtual_stage=virtual_stage,
        kind=_texts(cells, "kind"),
        group=_texts(cells, "group"),
        paired=not (whole_numbers(cells, "paired")[0] == 0).any(),
        told=cells.names,
        waits=row_intervals(cells, "waits"),
        unattributed=row_intervals(cells, "unattributed"),
        exposed=row_intervals(cells, "exposed"),
        overheads=row_intervals(cells, "profiler"),
        collectives=told_collectives(cells),
        pauses=row_intervals(cells, "pauses"),
    )


def _texts(cells: Cells, name: str) -> CodedTexts:
    """Return a column of texts; none in any row where it is not there."""
    column = cells.texts.get(name)
    return CodedTexts(np.full(cells.rows, NONE, np.int64), ()) if column is None else column


def _keys(
    cells: Cells, place: Ints, iteration: Ints, span: tuple[Ints, Ints, Bools]
) -> OperationKeys:
    """Return what the operations are; ``occurrence`` is -1 where the table does not tell it.

    Raises:
        ProfileError: a row cannot be an operation.
    """
    start_ns, end_ns, spanned = span
    phase = phases(cells)
    microbatch, second_microbatch = paired_numbers(cells, "microbatch")
    chunk, second_chunk = paired_numbers(cells, "chunk")
    name_id, texts = names(cells, phase)
    host_start_ns, host_end_ns = times(cells, "host_start_ns"), times(cells, "host_end_ns")
    timeless = ~spanned & (host_start_ns == NONE)
    if timeless.any():
        row = int(timeless.argmax())
        raise refused(cells.path, row, "it has no times at all; fill them, or leave the row out")
    host_start_ns = np.where(host_start_ns == NONE, start_ns, host_start_ns)
    host_end_ns = np.where(host_end_ns == NONE, end_ns, host_end_ns)
    return OperationKeys(
        rank=place,
        iteration=iteration,
        phase=phase,
        microbatch=microbatch,
        chunk=chunk,
        sequence=whole_numbers(cells, "sequence", least=NONE)[0],
        second_microbatch=second_microbatch,
        second_chunk=second_chunk,
        occurrence=whole_numbers(cells, "occurrence")[0],
        host_start_ns=host_start_ns,
        host_end_ns=np.maximum(host_start_ns, host_end_ns),
        cut=whole_numbers(cells, "cut", 0)[0],
        tokens=whole_numbers(cells, "tokens")[0],
        name_id=name_id,
        names=texts,
    )


def _spans(cells: Cells, span: tuple[Ints, Ints, Bools]) -> OperationSpans:
    """Return when operations ran; as far as is told, their kernels kept the GPU busy throughout."""
    start_ns, end_ns, spanned = span
    length_ns = end_ns - start_ns
    active_ns, known = whole_numbers(cells, "active_ns", below=_FARTHEST_NS)
    return OperationSpans(
        start_ns=start_ns,
        end_ns=end_ns,
        has_span=spanned.astype(np.int64),
        kernels=whole_numbers(cells, "kernels", 0)[0],
        active_ns=np.where(known, active_ns, length_ns),
        busy_ns=length_ns,
        received_ns=times(cells, "received_ns"),
    )


def _launches(cells: Cells) -> OperationLaunches:
    return OperationLaunches(
        launched_ns=times(cells, "launched_ns"),
        receive_start_ns=times(cells, "receive_start_ns"),
        receive_launched_ns=times(cells, "receive_launched_ns"),
    )


def _differ(columns: Sequence[Ints]) -> bool:
    """Tell whether all rows surely differ, by a mixture of their columns, which one sort shows."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.view(np.uint64)) * _ODD
        mixed ^= mixed >> np.uint64(29)
    mixed.sort()
    return not (mixed[1:] == mixed[:-1]).any()


def _refuse_twice(cells: Cells, keys: OperationKeys, span: tuple[Ints, Ints, Bools]) -> None:
    """Refuse rows that hold one forward or backward twice.

    They do where all that they tell agrees, times included, or where the table numbers repeated
    operations and gives two of them one number.

    Raises:
        ProfileError: there are two such rows.
    """
    start_ns, end_ns, spanned = span
    rows = np.flatnonzero(np.isin(keys.phase, COUNTED) & spanned & (keys.microbatch != NONE))
    columns = [getattr(keys, name)[rows] for name in _WHAT]
    occurrence, iteration = keys.occurrence[rows], keys.iteration[rows]
    numbered = (occurrence != NONE) & (iteration != NONE)
    columns += [np.where(numbered, NONE, time_ns[rows]) for time_ns in (start_ns, end_ns)]
    if _differ(columns):
        return
    own = keys.take(rows)
    groups = groups_of(*columns)
    if len(groups) == len(rows):
        return
    again = np.ones(len(rows), bool)
    again[groups.first] = False
    at = int(again.argmax())
    first = int(rows[groups.first[groups.of_row[at]]])
    phase = Phase(int(own.phase[at])).label
    what = f"{phase} of microbatch {own.microbatch[at]}"
    raise refused(
        cells.path,
        int(rows[at]),
        f"it holds the {what} that row {first + 1} holds, too; give each operation once",
    )
