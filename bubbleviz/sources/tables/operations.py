"""Operations: the rows of a table as operations, or why they cannot be."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operation_table import OperationTable, ToldPlace
from bubbleviz.model.operations import (
    OperationKeys,
    OperationLaunches,
    OperationSpans,
    RankOperations,
)
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.model.profile import Source, ToldClock
from bubbleviz.model.texts import suggestion
from bubbleviz.sources.tables.cells import (
    Cells,
    refused,
    row_intervals,
    shown,
    spans,
    stripped,
    times,
    told_collectives,
    whole_numbers,
)

# Keys: what the texts of a table's cells say that an operation is.


_PHASES = {phase.label.lower(): phase for phase in Phase}
#: A number, or two of an operation that names two things.
_NUMBERS = re.compile(r"([0-9]{1,9})(?:\.0*)?(?:;([0-9]{1,9}))?")
#: The number of an iteration; training scripts may count more than steps in it.
_STEP = re.compile(r"([0-9]{1,18})(?:\.0*)?")
#: Iterations that no range names, beside one that some range does; reports write these.
_BESIDE = re.compile(r"(after|before) -?[0-9]{1,18}(?: \(([0-9]{1,18})\))?")


def phases(cells: Cells) -> Ints:
    """Return the code of each row's phase; in any case of its letters.

    Raises:
        ProfileError: a phase is unknown, or a cell is empty.
    """
    known = ", ".join(phase.label for phase in Phase)
    return _looked_up(
        cells,
        "phase",
        lambda text: _PHASES.get(text.lower()),
        lambda text: (
            f"the phase {shown(text)} is unknown{suggestion(text, [p.label for p in Phase])}; the "
            f"phases are {known}"
        ),
    )


def iterations(cells: Cells) -> tuple[Ints, tuple[str, ...]]:
    """Return the place of each row's iteration among their names, and these; -1 for none.

    Raises:
        ProfileError: one is no whole number.
    """
    column = cells.texts.get("iteration")
    if column is None:
        return np.full(cells.rows, NONE, np.int64), ()
    column = column.occurring()
    names = []
    for place, text in enumerate(column.texts):
        whole = _STEP.fullmatch(text)
        if whole is None and _BESIDE.fullmatch(text) is None:
            row = int((column.code == place).argmax())
            reason = f"the iteration {shown(text)} is no whole number; number the iterations"
            raise refused(cells.path, row, reason)
        names.append(text if whole is None else str(int(whole[1])))
    column = stripped(column.code, names)
    return column.code, tuple(column.texts)


def number_of_iteration(name: str) -> int:
    """Return the number of an iteration; -1 for one that has none, but a place beside another."""
    match = _STEP.fullmatch(name)
    return NONE if match is None else int(match[1])


def paired_numbers(cells: Cells, name: str) -> tuple[Ints, Ints]:
    """Return the number of each row, and its second one, of a column such as microbatches.

    Cells hold ``7``, or ``7;3``; a column ``second_NAME`` holds second ones, too. -1 for none.

    Raises:
        ProfileError: a cell holds something else.
    """

    def parsed(group: int) -> Callable[[str], int | None]:
        def number(text: str) -> int | None:
            if text == "-1":
                return NONE
            match = _NUMBERS.fullmatch(text)
            return None if match is None else int(match[group] or NONE)

        return number

    def reason(text: str) -> str:
        return f"the {name} {shown(text)} is no whole number"

    first = _looked_up(cells, name, parsed(1), reason, needed=False)
    second = _looked_up(cells, name, parsed(2), reason, needed=False)
    told, known = whole_numbers(cells, f"second_{name}", least=NONE)
    return first, np.where(known, told, second)


def names(cells: Cells, phase: Ints) -> tuple[Ints, tuple[str, ...]]:
    """Return the place of each row's name among the texts, and these.

    An operation without a name goes by its phase.
    """
    labels = [item.label for item in Phase]
    column = cells.texts.get("name")
    if column is None:
        return phase.copy(), tuple(labels)
    place = np.where(column.known, column.code, len(column.texts) + phase)
    return place, (*column.texts, *labels)


def _looked_up(
    cells: Cells,
    name: str,
    number: Callable[[str], int | None],
    reason: Callable[[str], str],
    *,
    needed: bool = True,
) -> Ints:
    """Return the number of each row's text; -1 for no text.

    Args:
        cells: of the table.
        name: of the column, which may be missing if it is not needed.
        number: of a text; None where it has none.
        reason: why such a text is refused.
        needed: whether no cell may be empty.

    Raises:
        ProfileError: a cell is refused.
    """
    column = cells.texts.get(name, CodedTexts(np.full(cells.rows, NONE, np.int64), ()))
    if needed and not column.known.all():
        raise refused(cells.path, int((~column.known).argmax()), f"{name} is empty; fill it")
    numbers = []
    for place, text in enumerate(column.texts):
        found = number(text)
        if found is None:
            rows = column.code == place
            # Categories need not occur.
            if rows.any():
                raise refused(cells.path, int(rows.argmax()), reason(text))
            found = NONE
        numbers.append(found)
    # The last place is that of no text.
    return np.array([*numbers, NONE], np.int64)[column.code]


# Ranks: what the rows of a table tell of the ranks that ran them, which must not contradict.


#: More ranks, and so stages and pipelines, than any run has.
_MOST_RANKS = 1_000_000
#: Up to about so many numbers of ranks are looked up in a table.
_FEW = 1 << 20


def places(cells: Cells) -> tuple[Ints, tuple[ToldPlace, ...]]:
    """Return the place of each row's rank among the ranks, and these in order of their numbers.

    Raises:
        ProfileError: a row has no rank, or two rows contradict each other.
    """
    number, known = whole_numbers(cells, "rank", below=_MOST_RANKS)
    if not known.all():
        raise refused(cells.path, int((~known).argmax()), "rank is empty; fill it")
    values, place = _distinct(number)
    count = len(values)
    global_rank = _of_ranks(cells, place, count, "global_rank")
    stage = _of_ranks(cells, place, count, "stage")
    pipeline = _of_ranks(cells, place, count, "pipeline")
    host, clock = (_texts_of_ranks(cells, place, count, name) for name in ("host", "clock"))
    uncertainty_ns = _of_ranks(cells, place, count, "clock_uncertainty_ns")
    told = [
        ToldPlace(
            number=value,
            global_rank=value if global_rank is None else _or_none(int(global_rank[at])),
            host=host[at],
            clock=_clock(clock[at], uncertainty_ns, at),
            stage=None if stage is None else _or_none(int(stage[at])),
            pipeline=None if pipeline is None else int(pipeline[at]),
        )
        for at, value in enumerate(values.tolist())
    ]
    return place, tuple(told)


def refuse_two_stages(cells: Cells, place: Ints, chunk: Ints, phase: Ints, stage: Ints) -> None:
    """Refuse a chunk of a rank that holds two virtual stages.

    Raises:
        ProfileError: there is one.
    """
    rows = np.flatnonzero(np.isin(phase, COUNTED) & (stage != NONE))
    group = groups_of(place[rows], chunk[rows]).of_row
    _refuse_two(cells, "virtual_stage", group, rows, stage[rows], str)


def _distinct(number: Ints) -> tuple[Ints, Ints]:
    """Return distinct numbers from 0, ascending, and the place of each row's among them."""
    if int(number.max(initial=0)) > len(number) + _FEW:
        values, place = np.unique(number, return_inverse=True)
        return values, place.reshape(-1).astype(np.int64)
    occurs = np.bincount(number) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[number]


def _clock(name: str | None, uncertainty_ns: Ints | None, at: int) -> ToldClock | None:
    """Return the clock of a rank; None for the one that all tables share."""
    if name is None:
        return None
    if uncertainty_ns is None:
        return ToldClock(name)
    return ToldClock(name, aligned=True, uncertainty_ns=_or_none(int(uncertainty_ns[at])))


def _or_none(number: int) -> int | None:
    return None if number == NONE else number


def _of_ranks(cells: Cells, place: Ints, count: int, name: str) -> Ints | None:
    """Return the number of each rank in a column; -1 none, and None without the column."""
    if name not in cells.numbers:
        return None
    below = 1 << 62 if name == "clock_uncertainty_ns" else _MOST_RANKS
    values, known = whole_numbers(cells, name, least=NONE, below=below)
    rows = np.flatnonzero(known & (values != NONE))
    _refuse_two(cells, name, place[rows], rows, values[rows], str)
    result = np.full(count, NONE, np.int64)
    result[place[rows]] = values[rows]
    return result


def _texts_of_ranks(cells: Cells, place: Ints, count: int, name: str) -> list[str | None]:
    """Return the text of each rank in a column; None for none."""
    if name not in cells.texts:
        return [None] * count
    column = cells.texts[name]
    rows = np.flatnonzero(column.known)
    codes = column.code[rows]
    _refuse_two(cells, name, place[rows], rows, codes, lambda code: shown(column.texts[code]))
    result: list[str | None] = [None] * count
    code_of = np.full(count, NONE, np.int64)
    code_of[place[rows]] = codes
    for at, code in enumerate(code_of.tolist()):
        result[at] = None if code == NONE else column.texts[code]
    return result


def _refuse_two(
    cells: Cells,
    name: str,
    group: Ints,
    rows: Ints,
    values: Ints,
    told: Callable[[int], str],
) -> None:
    """Refuse rows of one group that hold two values.

    Args:
        cells: of the table.
        name: of the column.
        group: of each of the rows.
        rows: of the table.
        values: of these.
        told: returns one of these as a message shows it.
    """
    if len(rows) == 0:
        return
    first = np.zeros(int(group.max()) + 1, np.int64)
    # The first of each group is the last to be set.
    first[group[::-1]] = np.arange(len(group))[::-1]
    other: Bools = values != values[first[group]]
    if not other.any():
        return
    at = int(other.argmax())
    before = int(first[group[at]])
    number, _ = whole_numbers(cells, "rank")
    raise refused(
        cells.path,
        int(rows[at]),
        f"rank {number[rows[at]]} has {name} {told(int(values[at]))} here, and "
        f"{told(int(values[before]))} in row {rows[before] + 1}; give each rank "
        + ("and chunk one" if name == "virtual_stage" else "one"),
    )


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
