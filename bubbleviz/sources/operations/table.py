"""Operations from the rows of a table, or an error that says why a row is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model import grouping, texts
from bubbleviz.model import operations as model
from bubbleviz.model.columns import NONE, Bools, Ints, scattered
from bubbleviz.model.operation_table import OperationTable, ToldPlace
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.model.profile import Source, ToldClock
from bubbleviz.sources.operations.cells import Cells, shown, stripped

_PHASES = {phase.label.lower(): (phase,) for phase in Phase}
#: A number, or two of an operation that names two things.
_NUMBERS = re.compile(r"([0-9]{1,9})(?:\.0*)?(?:;([0-9]{1,9}))?")
#: The number of an iteration; training scripts may count more than steps in it.
_STEP = re.compile(r"([0-9]{1,18})(?:\.0*)?")
#: Iterations that no range names, beside one that some range does; reports write these.
_BESIDE = re.compile(r"(after|before) -?[0-9]{1,18}(?: \(([0-9]{1,18})\))?")
#: What an operation is, its times apart.
_WHAT = (
    *("rank", "iteration", "phase", "microbatch", "chunk", "sequence", "second_microbatch"),
    *("second_chunk", "occurrence"),
)
#: A multiplier that mixes bits (that of splitmix64).
_ODD = np.uint64(0xBF58476D1CE4E5B9)


def number_of_iteration(name: str) -> int:
    """Return the number of an iteration; -1 for one that has none, but a place beside another."""
    match = _STEP.fullmatch(name)
    return NONE if match is None else int(match[1])


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
    place, places = _places(cells)
    iteration, iteration_names = _iterations(cells)
    start_ns, end_ns, spanned = span = cells.spans()
    keys = _keys(cells, place, iteration, span)
    virtual_stage = cells.whole("virtual_stage")[0]
    if "chunk" in cells.names:
        # Otherwise the chunks of a rank are numbered by its virtual stages.
        rows = np.flatnonzero(np.isin(keys.phase, COUNTED) & (virtual_stage != NONE))
        chunk = grouping.groups_of(place[rows], keys.chunk[rows]).of_row
        _refuse_two(cells, "virtual_stage", chunk, rows, virtual_stage[rows], str)
    _refuse_twice(cells, keys, span)
    length_ns = end_ns - start_ns
    active_ns, known = cells.whole("active_ns")
    # As far as is told, kernels kept the GPU busy throughout.
    operations = keys.changed(
        start_ns=start_ns,
        end_ns=end_ns,
        has_span=spanned.astype(np.int64),
        kernels=cells.whole("kernels")[0],
        active_ns=np.where(known, active_ns, length_ns),
        busy_ns=length_ns,
        received_ns=cells.times("received_ns"),
        launched_ns=cells.times("launched_ns"),
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


def _places(cells: Cells) -> tuple[Ints, tuple[ToldPlace, ...]]:
    """Return the place of each row's rank among the ranks, and these in order of their numbers.

    Raises:
        ProfileError: a row has no rank, or two rows contradict each other.
    """
    number, known = cells.whole("rank")
    cells.refuse(~known, "rank is empty; fill it")
    values, place = np.unique(number, return_inverse=True)
    place = place.reshape(-1).astype(np.int64)
    columns = ("global_rank", "stage", "pipeline", "host", "clock", "clock_uncertainty_ns")
    global_rank, stage, pipeline, host, clock, uncertainty_ns = (
        _of_ranks(cells, place, len(values), name) for name in columns
    )
    aligned = "clock_uncertainty_ns" in cells.names
    told = []
    for at, rank in enumerate(values.tolist()):
        # It may be told, but as unknown.
        own_pipeline = pipeline[at]
        if own_pipeline is None and "pipeline" in cells.names:
            own_pipeline = NONE
        own_clock = None
        if clock[at] is not None:
            own_clock = ToldClock(clock[at], aligned=aligned, uncertainty_ns=uncertainty_ns[at])
        told.append(
            ToldPlace(
                number=rank,
                global_rank=global_rank[at] if "global_rank" in cells.names else rank,
                host=host[at],
                clock=own_clock,
                stage=stage[at],
                pipeline=own_pipeline,
            )
        )
    return place, tuple(told)


def _of_ranks(cells: Cells, place: Ints, count: int, name: str) -> list[Any]:
    """Return what a column tells of each rank, None for nothing."""
    if name not in cells.names:
        return [None] * count
    value: Callable[[int], Any] = int
    if name in cells.texts:
        column = cells.texts[name]
        values, value = column.code, column.texts.__getitem__
    else:
        values, _ = cells.whole(name)
    rows = np.flatnonzero(values != NONE)
    told = str if value is int else lambda code: shown(value(code))
    _refuse_two(cells, name, place[rows], rows, values[rows], told)
    of_rank = scattered(count, place[rows], values[rows])
    return [None if known == NONE else value(known) for known in of_rank.tolist()]


def _refuse_two(
    cells: Cells, name: str, group: Ints, rows: Ints, values: Ints, told: Callable[[int], str]
) -> None:
    """Refuse rows of one group that hold two values.

    Args:
        cells: of the table.
        name: of the column.
        group: of each of the rows.
        rows: of the table.
        values: of these.
        told: returns one of these as a message shows it.

    Raises:
        ProfileError: there are two such rows.
    """
    groups = grouping.groups_of(group)
    first = groups.first[groups.of_row]
    other: Bools = values != values[first]
    if not other.any():
        return
    at = int(other.argmax())
    before = int(first[at])
    number, _ = cells.whole("rank")
    raise cells.refusal(
        int(rows[at]),
        f"rank {number[rows[at]]} has {name} {told(int(values[at]))} here, and "
        f"{told(int(values[before]))} in {cells.row_noun} {rows[before] + 1}; give each rank "
        + ("and chunk one" if name == "virtual_stage" else "one"),
    )


def _iterations(cells: Cells) -> tuple[Ints, tuple[str, ...]]:
    """Return the place of each row's iteration among their names, and these; -1 for none.

    Raises:
        ProfileError: one is not a whole number.
    """
    column = cells.text("iteration").occurring()
    names = []
    for place, text in enumerate(column.texts):
        whole = _STEP.fullmatch(text)
        if whole is None and _BESIDE.fullmatch(text) is None:
            reason = f"the iteration {shown(text)} is not a whole number; number the iterations"
            raise cells.refusal(int((column.code == place).argmax()), reason)
        names.append(text if whole is None else str(int(whole[1])))
    column = stripped(column.code, names)
    return column.code, tuple(column.texts)


def _keys(
    cells: Cells, place: Ints, iteration: Ints, span: tuple[Ints, Ints, Bools]
) -> model.Operations:
    """Return what the operations are; ``occurrence`` is -1 where the table does not tell it.

    Raises:
        ProfileError: a row cannot be an operation.
    """
    start_ns, end_ns, spanned = span
    labels = [phase.label for phase in Phase]

    def unknown_phase(text: str) -> str:
        near = texts.suggestion(text, labels)
        return f"the phase {shown(text)} is unknown{near}; the phases are {', '.join(labels)}"

    def no_number(text: str) -> str:
        return f"the {name} {shown(text)} is not a whole number"

    cells.refuse(~cells.text("phase").known, "phase is empty; fill it")
    (phase,) = _looked_up(
        cells.text("phase"), cells, lambda text: _PHASES.get(text.lower()), unknown_phase, 1
    )
    numbers: dict[str, Ints] = {}
    for name in ("microbatch", "chunk"):
        if name in cells.numbers:
            first, second = cells.whole(name)[0], np.full(cells.rows, NONE, np.int64)
        else:
            first, second = _looked_up(cells.text(name), cells, _numbers_of, no_number, 2)
        told, known = cells.whole(f"second_{name}")
        numbers |= {name: first, f"second_{name}": np.where(known, told, second)}
    # An operation without a name goes by its phase.
    names = cells.text("name")
    name_id = np.where(names.known, names.code, len(names.texts) + phase)
    host_start_ns, host_end_ns = cells.times("host_start_ns"), cells.times("host_end_ns")
    cells.refuse(
        ~spanned & (host_start_ns == NONE),
        "it has no times at all; fill them, or leave the row out",
    )
    host_start_ns = np.where(host_start_ns == NONE, start_ns, host_start_ns)
    host_end_ns = np.where(host_end_ns == NONE, end_ns, host_end_ns)
    return model.Operations.without_work(
        rank=place,
        iteration=iteration,
        phase=phase,
        **numbers,
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


def _numbers_of(text: str) -> tuple[int, ...] | None:
    """Return the number in a cell, and its second one, ``7;3``; -1 for none."""
    if text == "-1":
        return NONE, NONE
    match = _NUMBERS.fullmatch(text)
    return None if match is None else (int(match[1]), int(match[2] or NONE))


def _looked_up(
    column: grouping.CodedTexts,
    cells: Cells,
    meaning: Callable[[str], tuple[int, ...] | None],
    reason: Callable[[str], str],
    width: int,
) -> list[Ints]:
    """Return the numbers that the text of each row means; -1 for no text.

    Args:
        column: of texts.
        cells: of the table.
        meaning: so many numbers of a text; None where it means nothing.
        reason: why such a text is refused.
        width: how many numbers a text means.

    Raises:
        ProfileError: a cell is refused.
    """
    none = (NONE,) * width
    numbers = []
    for place, text in enumerate(column.texts):
        found = meaning(text)
        if found is None:
            # Categories need not occur.
            cells.refuse(column.code == place, reason(text))
        numbers.append(found or none)
    # The last place is that of no text.
    return [np.array(n, np.int64)[column.code] for n in zip(*numbers, none, strict=True)]


def _refuse_twice(cells: Cells, keys: model.Operations, span: tuple[Ints, Ints, Bools]) -> None:
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
    # All rows surely differ where a mixture of their columns does, which one sort shows.
    mixed = np.zeros(len(rows), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.view(np.uint64)) * _ODD
        mixed ^= mixed >> np.uint64(29)
    mixed.sort()
    if not (mixed[1:] == mixed[:-1]).any():
        return
    groups = grouping.groups_of(*columns)
    again = groups.first[groups.of_row] != np.arange(len(rows))
    if not again.any():
        return
    at = int(again.argmax())
    first, row = int(rows[groups.first[groups.of_row[at]]]), int(rows[at])
    what = f"{Phase(int(keys.phase[row])).label} of microbatch {keys.microbatch[row]}"
    raise cells.refusal(
        row,
        f"it holds the {what} that {cells.row_noun} {first + 1} holds, too; give each operation "
        "once",
    )
