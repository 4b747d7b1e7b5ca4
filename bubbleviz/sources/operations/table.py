"""Converts the rows of a table to operations. Rows that are invalid operations raise an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.errors import NothingToAnalyzeError, ProfileError
from bubbleviz.model import grouping, texts
from bubbleviz.model.columns import NONE, Bools, Ints, scatter
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.operation_table import DeclaredRank, OperationTable
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import COMPUTE, COUNTED, Phase
from bubbleviz.model.profile import DeclaredClock, Source
from bubbleviz.sources.operations.cells import Cells, format_cell, trim_texts

_PHASES = {phase.label.lower(): (phase,) for phase in Phase}
#: Matches one number, or the two numbers of a fused operation, as in ``7;3``.
_PAIR = re.compile(r"([0-9]{1,9})(?:\.0*)?(?:;([0-9]{1,9}))?")
#: Matches an iteration number, which may be long because some programs use a timestamp.
_STEP = re.compile(r"([0-9]{1,18})(?:\.0*)?")
#: Matches names that reports give to iterations without a range, such as ``after 3``.
_NEIGHBOR = re.compile(r"(after|before) -?[0-9]{1,18}(?: \(([0-9]{1,18})\))?")
#: Columns that, together with the times, identify an operation.
_IDENTITY = (
    *("rank", "iteration", "phase", "microbatch", "chunk", "sequence", "second_microbatch"),
    *("second_chunk", "occurrence"),
)
#: Multiplier of the hash function splitmix64.
_HASH_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)


@dataclass(frozen=True)
class _Spans:
    """Start and end of each operation on its device, in ns, or -1 if ``has_span`` is False."""

    start_ns: Ints
    end_ns: Ints
    has_span: Bools


def parse_iteration_number(name: str) -> int:
    """Return the iteration number in a name, or -1 for a non-number such as ``after 3``."""
    match = _STEP.fullmatch(name)
    return NONE if match is None else int(match[1])


def make_operation_table(cells: Cells, source: Source) -> OperationTable:
    """Convert the rows of a table to operations, one per row, in table order.

    If a row has no ``active_ns``, the duration of its operation on the device is used.

    Raises:
        NothingToAnalyzeError: The table has no rows.
        ProfileError: A row is not an operation, or contradicts another row.
    """
    if cells.rows == 0:
        raise NothingToAnalyzeError(
            f"{cells.path}: the table is empty; write one row per operation"
        )
    rank_index, places = _read_ranks(cells)
    iteration, iteration_names = _read_iterations(cells)
    spans = _Spans(*cells.spans())
    launched_ns = cells.times("launched_ns")
    operations = _read_identity(cells, rank_index, iteration, spans)
    # The device times of a recording are estimated from events, so they may be inaccurate.
    if source.format != "recording":
        is_launched = np.isin(operations.phase, COMPUTE) & (launched_ns != NONE) & spans.has_span
        cells.refuse_late_launches(is_launched, launched_ns, spans.start_ns)
    virtual_stage = cells.whole("virtual_stage")[0]
    if "chunk" in cells.names:
        _refuse_two_stages(cells, operations, virtual_stage)
    # If the table lacks the column "chunk", each rank's chunks are numbered by virtual stage.
    _refuse_repetition(cells, operations, spans)
    _refuse_ranks_without_iterations(cells, operations)
    length_ns = spans.end_ns - spans.start_ns
    active_ns, is_active_known = cells.whole("active_ns")
    operations = operations.replace_columns(
        start_ns=spans.start_ns,
        end_ns=spans.end_ns,
        has_span=spans.has_span.astype(np.int64),
        kernels=cells.whole("kernels")[0],
        # Assume that kernels keep the GPU busy, unless the table says otherwise.
        active_ns=np.where(is_active_known, active_ns, length_ns),
        busy_ns=length_ns,
        received_ns=cells.times("received_ns"),
        launched_ns=launched_ns,
        receive_start_ns=cells.times("receive_start_ns"),
        receive_launched_ns=cells.times("receive_launched_ns"),
    )
    return OperationTable(
        source=source,
        operations=operations,
        places=places,
        iterations=iteration_names,
        virtual_stage=virtual_stage,
        kind=cells.text("kind"),
        group=cells.text("group"),
        paired=not (cells.whole("paired")[0] == 0).any(),
        told=cells.names,
        waits=cells.intervals("waits"),
        unattributed=cells.intervals("unattributed"),
        exposed=cells.intervals("exposed"),
        overheads=cells.intervals("profiler"),
        collectives=cells.collectives(),
        pauses=cells.intervals("pauses"),
        notes=cells.notes,
    )


def _read_ranks(cells: Cells) -> tuple[Ints, tuple[DeclaredRank, ...]]:
    """Read the ranks in a table, and assign each row to a rank.

    Returns:
        rank_index: For each row, the index of its rank in ``ranks``.
        ranks: The ranks, sorted by rank number.

    Raises:
        ProfileError: A row has no rank, or two rows of the same rank contradict each other.
    """
    number, is_filled = cells.whole("rank")
    cells.refuse(~is_filled, "rank is empty; fill it in")
    numbers, rank_index = np.unique(number, return_inverse=True)
    rank_index = rank_index.reshape(-1).astype(np.int64)
    count = len(numbers)
    global_ranks = _read_rank_numbers(cells, rank_index, count, "global_rank")
    stages = _read_rank_numbers(cells, rank_index, count, "stage")
    pipelines = _read_rank_numbers(cells, rank_index, count, "pipeline")
    hosts = _read_rank_texts(cells, rank_index, count, "host")
    clocks = _read_clocks(cells, rank_index, count)
    if "global_rank" not in cells.names:
        global_ranks = numbers.tolist()
    if "pipeline" in cells.names:
        pipelines = [NONE if pipeline is None else pipeline for pipeline in pipelines]
    ranks = tuple(
        DeclaredRank(
            number=rank,
            global_rank=global_ranks[index],
            host=hosts[index],
            clock=clocks[index],
            stage=stages[index],
            pipeline=pipelines[index],
        )
        for index, rank in enumerate(numbers.tolist())
    )
    return rank_index, ranks


def _read_clocks(cells: Cells, rank_index: Ints, count: int) -> list[DeclaredClock | None]:
    """Return each rank's clock, or None for a rank that has no name in the column ``clock``.

    If the table has a column ``clock_uncertainty_ns``, a report wrote the table, and its clocks are
    already aligned.

    Args:
        cells: Cells in the table.
        rank_index: For each row, the index of its rank.
        count: Number of ranks.

    Raises:
        ProfileError: Two rows of the same rank have different clocks or uncertainties.
    """
    names = _read_rank_texts(cells, rank_index, count, "clock")
    uncertainties_ns = _read_rank_numbers(cells, rank_index, count, "clock_uncertainty_ns")
    is_aligned = "clock_uncertainty_ns" in cells.names
    return [
        None
        if name is None
        else DeclaredClock(name, aligned=is_aligned, uncertainty_ns=uncertainty_ns)
        for name, uncertainty_ns in zip(names, uncertainties_ns, strict=True)
    ]


def _read_rank_numbers(
    cells: Cells, rank_index: Ints, count: int, name: str
) -> Sequence[int | None]:
    """Return each rank's number in a column such as ``stage``, or None if it is unknown.

    Args:
        cells: Cells in the table.
        rank_index: For each row, the index of its rank.
        count: Number of ranks.
        name: Name of the column.

    Raises:
        ProfileError: Two rows of the same rank have different numbers.
    """
    values, _ = cells.whole(name)
    of_rank = _select_value_per_rank(cells, rank_index, count, name, values, str)
    return [None if value == NONE else value for value in of_rank]


def _read_rank_texts(cells: Cells, rank_index: Ints, count: int, name: str) -> Sequence[str | None]:
    """Return each rank's text in a column such as ``host``, or None if it is unknown.

    Arguments and errors are the same as for :func:`_read_rank_numbers`.
    """
    column = cells.text(name)
    of_rank = _select_value_per_rank(
        cells, rank_index, count, name, column.code, lambda code: format_cell(column.texts[code])
    )
    return [None if code == NONE else column.texts[code] for code in of_rank]


def _select_value_per_rank(
    cells: Cells,
    rank_index: Ints,
    count: int,
    name: str,
    values: Ints,
    format_value: Callable[[int], str],
) -> list[int]:
    """Reduce a column to one value per rank, or -1 if no row of the rank has a value.

    Args:
        cells: Cells in the table.
        rank_index: For each row, the index of its rank.
        count: Number of ranks.
        name: Name of the column, for messages.
        values: One value per row of the table, or -1 if the row has no value.
        format_value: Function that formats a value for the error message.

    Raises:
        ProfileError: Two rows of the same rank have different values.
    """
    rows = np.flatnonzero(values != NONE)
    if len(rows) == 0:
        return [NONE] * count
    _refuse_two(cells, name, rank_index[rows], rows, values[rows], format_value)
    of_rank: list[int] = scatter(count, rank_index[rows], values[rows]).tolist()
    return of_rank


def _refuse_two(
    cells: Cells,
    name: str,
    group: Ints,
    rows: Ints,
    values: Ints,
    format_value: Callable[[int], str],
) -> None:
    """Raise an error if two rows in the same group (a rank or a chunk) have different values.

    ``group``, ``rows`` and ``values`` have one entry for each row to compare.

    Args:
        cells: Cells in the table.
        name: Name of the column, for messages.
        group: Index of each row's rank or chunk.
        rows: Index of each row in the table.
        values: Value of the column in each row.
        format_value: Function that formats a value for the error message.

    Raises:
        ProfileError: Two rows of one rank or chunk have different values.
    """
    groups = grouping.group_rows(group)
    first = groups.first[groups.of_row]
    is_different: Bools = values != values[first]
    if not is_different.any():
        return
    index = int(is_different.argmax())
    first_index = int(first[index])
    row, first_row = int(rows[index]), int(rows[first_index])
    rank = cells.whole("rank")[0][row]
    value, first_value = format_value(int(values[index])), format_value(int(values[first_index]))
    unit = "rank and chunk" if name == "virtual_stage" else "rank"
    raise cells.refusal(
        row,
        f"rank {rank} has {name} {value} here but {first_value} in {cells.row_noun} "
        f"{first_row + 1}; use one {name} per {unit}",
    )


def _refuse_two_stages(cells: Cells, operations: Operations, virtual_stage: Ints) -> None:
    """Raise an error if any rank has a chunk with two virtual stages.

    Only forwards and backwards whose virtual stage is known are compared.

    Args:
        cells: Cells in the table.
        operations: The operations, one per row.
        virtual_stage: Virtual stage of each row, or -1 if unknown.

    Raises:
        ProfileError: A chunk has two virtual stages.
    """
    rows = np.flatnonzero(np.isin(operations.phase, COUNTED) & (virtual_stage != NONE))
    chunk = grouping.group_rows(operations.rank[rows], operations.chunk[rows]).of_row
    _refuse_two(cells, "virtual_stage", chunk, rows, virtual_stage[rows], str)


def _read_iterations(cells: Cells) -> tuple[Ints, tuple[str, ...]]:
    """Read the column ``iteration``.

    Returns:
        iteration: For each row, the index of its iteration in ``names``, or -1 if it has none.
        names: Iteration names, each a whole number or a name such as ``after 3``.

    Raises:
        ProfileError: A name is neither a whole number nor a name such as ``after 3``.
    """
    column = cells.text("iteration").drop_unused()
    names = []
    for code, text in enumerate(column.texts):
        step = _STEP.fullmatch(text)
        if step is None and _NEIGHBOR.fullmatch(text) is None:
            reason = f"iteration {format_cell(text)} is not a whole number; number the iterations"
            raise cells.refusal(int((column.code == code).argmax()), reason)
        names.append(text if step is None else str(int(step[1])))
    column = trim_texts(column.code, names)
    return column.code, tuple(column.texts)


def _read_identity(cells: Cells, rank_index: Ints, iteration: Ints, spans: _Spans) -> Operations:
    """Return all fields of the operations except their device times.

    If a row has no host time, the device time is used instead. A host end that precedes the host
    start is replaced with the host start.

    Args:
        cells: Cells in the table.
        rank_index: For each row, the index of its rank.
        iteration: For each row, the index of its iteration, or -1.
        spans: Device times of the operations.

    Raises:
        ProfileError: A row has no times at all, or contains an invalid phase or number.
    """
    phase = _read_phases(cells)
    microbatch, chunk = _read_pair(cells, "microbatch"), _read_pair(cells, "chunk")
    host_start_ns, host_end_ns = cells.times("host_start_ns"), cells.times("host_end_ns")
    cells.refuse(
        ~spans.has_span & (host_start_ns == NONE),
        "the operation has no times; fill them in, or remove the row",
    )
    host_start_ns = np.where(host_start_ns == NONE, spans.start_ns, host_start_ns)
    host_end_ns = np.where(host_end_ns == NONE, spans.end_ns, host_end_ns)
    # An operation without a name is named after its phase.
    names, labels = cells.text("name"), [phase.label for phase in Phase]
    name_id = np.where(names.has_text, names.code, len(names.texts) + phase)
    return Operations.make_without_work(
        rank=rank_index,
        iteration=iteration,
        phase=phase,
        **microbatch,
        **chunk,
        sequence=cells.whole("sequence")[0],
        occurrence=cells.whole("occurrence")[0],
        host_start_ns=host_start_ns,
        host_end_ns=np.maximum(host_start_ns, host_end_ns),
        cut=cells.whole("cut")[0],
        tokens=cells.whole("tokens")[0],
        prefix=cells.whole("prefix")[0],
        name_id=name_id,
        names=(*names.texts, *labels),
    )


def _read_phases(cells: Cells) -> Ints:
    """Return the phase of each row.

    Raises:
        ProfileError: A phase is missing or unknown.
    """
    column, labels = cells.text("phase"), [phase.label for phase in Phase]
    cells.refuse(~column.has_text, "phase is empty; fill it in")

    def explain(text: str) -> str:
        hint = texts.suggest_word(text, labels)
        return f"phase {format_cell(text)} is unknown{hint}; valid phases are {', '.join(labels)}"

    (phase,) = _parse_texts(cells, column, lambda text: _PHASES.get(text.lower()), explain, 1)
    return phase


def _read_pair(cells: Cells, name: str) -> dict[str, Ints]:
    """Read a column of pairs, such as ``microbatch``.

    A cell contains one number, or two numbers such as ``7;3``. The second number may instead be in
    the column ``second_<name>``, which takes precedence. Missing numbers are -1.

    Returns:
        The first and second number of each row, keyed by ``name`` and ``second_<name>``.

    Raises:
        ProfileError: A cell is not a number or pair of numbers.
    """
    if name in cells.numbers:
        first, second = cells.whole(name)[0], np.full(cells.rows, NONE, np.int64)
    else:
        first, second = _parse_texts(
            cells,
            cells.text(name),
            _parse_pair,
            lambda text: f"{name} {format_cell(text)} is not a whole number",
            2,
        )
    separate, is_filled = cells.whole(f"second_{name}")
    return {name: first, f"second_{name}": np.where(is_filled, separate, second)}


def _parse_pair(text: str) -> tuple[int, ...] | None:
    """Parse a cell such as ``7`` or ``7;3`` into two numbers, or return None if it is malformed.

    The second number is -1 if the cell has only one number. If the cell is ``-1``, both numbers are
    -1, which means unknown.
    """
    if text == "-1":
        return NONE, NONE
    match = _PAIR.fullmatch(text)
    return None if match is None else (int(match[1]), int(match[2] or NONE))


def _parse_texts(
    cells: Cells,
    column: CodedTexts,
    parse: Callable[[str], tuple[int, ...] | None],
    explain: Callable[[str], str],
    n_numbers: int,
) -> list[Ints]:
    """Parse the cells of a text column into numbers. Each distinct text is parsed once.

    Args:
        cells: Cells of the table, for errors.
        column: The column to parse.
        parse: Function that returns the numbers in a text, or None if the text is malformed.
        explain: Function that explains what is wrong with a malformed text.
        n_numbers: Number of values that ``parse`` returns per text.

    Returns:
        ``n_numbers`` arrays with one value per row. Empty cells have the value -1.

    Raises:
        ProfileError: A cell is malformed.
    """
    missing = (NONE,) * n_numbers
    numbers_of_text = []
    for code, text in enumerate(column.texts):
        numbers = parse(text)
        if numbers is None:
            # A malformed text is not an error if no cell uses it, as with an unused category.
            cells.refuse(column.code == code, explain(text))
        numbers_of_text.append(numbers or missing)
    # The last entry is for empty cells, whose code is -1.
    numbers_of_text.append(missing)
    return [np.array(n, np.int64)[column.code] for n in zip(*numbers_of_text, strict=True)]


def _refuse_repetition(cells: Cells, operations: Operations, spans: _Spans) -> None:
    """Raise an error if the table contains the same forward, backward or optimizer twice.

    Two rows are the same operation if they agree in all columns in ``_IDENTITY`` and in their start
    and end times. For forwards and backwards, the times are ignored if both rows have an iteration
    and an occurrence number. Rows without device times are not checked, and neither are forwards
    and backwards without a microbatch, optimizers of length 0, and communication: one kernel can
    move several tensors, each of which may have a row.

    Raises:
        ProfileError: Two rows are the same operation.
    """
    is_counted = np.isin(operations.phase, COUNTED)
    is_pass = is_counted & (operations.microbatch != NONE)
    is_optimizer = (operations.phase == Phase.OPTIMIZER) & (spans.end_ns > spans.start_ns)
    rows = np.flatnonzero((is_pass | is_optimizer) & spans.has_span)
    columns = [getattr(operations, name)[rows] for name in _IDENTITY]
    is_numbered = (operations.occurrence[rows] != NONE) & (operations.iteration[rows] != NONE)
    is_numbered &= is_counted[rows]
    columns += [
        np.where(is_numbered, NONE, times_ns[rows]) for times_ns in (spans.start_ns, spans.end_ns)
    ]
    if _has_distinct_hashes(columns):
        return
    groups = grouping.group_rows(*columns)
    first = groups.first[groups.of_row]
    is_repeated = first != np.arange(len(rows))
    if not is_repeated.any():
        return
    index = int(is_repeated.argmax())
    raise _make_repetition_error(cells, operations, int(rows[index]), int(rows[first[index]]))


def _make_repetition_error(
    cells: Cells, operations: Operations, row: int, first_row: int
) -> ProfileError:
    """Return the error for a row that repeats the operation in an earlier row."""
    phase, microbatch = Phase(int(operations.phase[row])).label, int(operations.microbatch[row])
    where = "" if microbatch == NONE else f" of microbatch {microbatch}"
    return cells.refusal(
        row,
        f"it repeats the {phase}{where} from {cells.row_noun} {first_row + 1}; list each operation "
        "only once",
    )


def _refuse_ranks_without_iterations(cells: Cells, operations: Operations) -> None:
    """Raise an error if some ranks have iterations, but a rank has none for any of its passes.

    Raises:
        ProfileError: No forward or backward of a rank has an iteration, but those of another have.
    """
    rows = np.flatnonzero(np.isin(operations.phase, COUNTED))
    ranks = grouping.group_rows(operations.rank[rows])
    n_named = np.bincount(ranks.of_row, operations.iteration[rows] != NONE)
    if (n_named > 0).all() or not n_named.any():
        return
    row = int(rows[n_named[ranks.of_row] == 0][0])
    raise cells.refusal(
        row,
        f"rank {cells.whole('rank')[0][row]} has no iteration in any row, but other ranks have "
        "iterations; fill in the column iteration for all ranks, or remove it",
    )


def _has_distinct_hashes(columns: Sequence[Ints]) -> bool:
    """Return True if the rows are certainly distinct because their hashes are distinct.

    If the result is False, the rows may still be distinct. One sort of the hashes is much faster
    than grouping by all columns.

    Args:
        columns: At least one column of int64 values, all of equal length.
    """
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        hashes = (hashes ^ column.view(np.uint64)) * _HASH_MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    hashes.sort()
    return not (hashes[1:] == hashes[:-1]).any()
