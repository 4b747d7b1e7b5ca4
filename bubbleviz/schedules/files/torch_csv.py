"""PyTorch's CSV: one row per rank, one cell an operation, no header, an empty cell is idle.

::

    0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B      rank 0 of 2, DualPipeV

A cell is ``{stage}{operation}{microbatch}``: F, I (backward for the input), W and B (backward
fused), and communication, which is no part of an order. ``torch.distributed.pipelining.schedules``
writes and reads it (``_dump_csv``, ``_load_csv``). In old files B is the backward for the input
and BW the fused one: B is that for the input where the file has a BW, or the B's own W.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import counted, one_line
from bubbleviz.model.values import frozen
from bubbleviz.schedules.files import PlanFormat
from bubbleviz.schedules.plan import Plan, PlannedOperation

_CELL = re.compile(r"([0-9]{1,6})(F|I|BW|B|W)([0-9]{1,7})")
#: What is no compute. Some have no microbatch.
_BESIDE = re.compile(
    r"[0-9]{1,6}(?:WAIT_)?"
    r"(?:SEND_F|SEND_B|RECV_F|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)(?:[0-9]{1,7})?"
)
_OVERLAP = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
_PHASES = {"F": Phase.F, "I": Phase.B, "B": Phase.BW, "BW": Phase.BW, "W": Phase.W}
_LETTERS = {Phase.F: "F", Phase.B: "I", Phase.BW: "B", Phase.W: "W"}
_FORM = "a cell is 0F3, 0I3, 0W3 or 0B3 (stage, operation, microbatch), or (0F3;1B2)OVERLAP_F_B"
#: What a stage owes each microbatch: a forward, and one of these.
_BACKWARDS = ({Phase.BW}, {Phase.B, Phase.W})
_MOST_STAGES, _MOST_CELLS = 100_000, 20_000_000


@frozen
class _Cell:
    """An operation of the file, and where it stands; row and cell are counted from 1."""

    row: int
    cell: int
    text: str
    operation: PlannedOperation
    beside_next: bool = False

    @property
    def place(self) -> str:
        return f"row {self.row}, cell {self.cell}"

    @property
    def key(self) -> tuple[int, int]:
        """Stage and microbatch."""
        return self.operation.virtual_stage, self.operation.microbatch

    @property
    def phase(self) -> Phase:
        return self.operation.phase

    def changed(self, phase: Phase, microbatch: int) -> _Cell:
        operation = PlannedOperation(self.operation.virtual_stage, phase, microbatch)
        return replace(self, operation=operation)


def read(text: str, name: str) -> Plan:
    """Return the plan in a text.

    Raises:
        InputError: it is none; a sentence that names row and cell.
    """
    rows = [list(_cells(number, row)) for number, row in enumerate(rows_of(text), 1)]
    if not any(rows):
        raise InputError("no operation is in it; write one row per rank, as PyTorch does")
    old = any("BW" in cell.text for row in rows for cell in row)
    rows = [_split(row, old=old) for row in rows]
    _refuse_repetition(rows)
    placement = _placement(rows)
    rows, microbatches = _from_zero(rows)
    _refuse_disorder(rows)
    _refuse_gaps(rows, microbatches)
    return Plan(
        name,
        len(rows),
        microbatches,
        len(placement) // len(rows),
        placement,
        tuple(tuple(cell.operation for cell in row) for row in rows),
        together=frozenset(c.operation for row in rows for c in row if c.beside_next),
    )


def write(plan: Plan) -> str:
    """Return the text of a plan.

    Raises:
        UsageError: microbatches enter at both ends: the format has one number for a microbatch.
    """
    check_writable(plan)
    rows = []
    for order in plan.orders:
        steps: list[list[PlannedOperation]] = [[]]
        for operation in order:
            steps[-1].append(operation)
            if operation not in plan.together:
                steps.append([])
        rows.append([pair_of(step) for step in steps if step])
    return text_of(rows)


def check_writable(plan: Plan) -> None:
    """Check that the format can hold a plan.

    Raises:
        UsageError: it cannot.
    """
    if plan.replicas > 1:
        raise UsageError(
            f"PyTorch's CSV cannot tell the directions of {plan.name} apart; write one pipeline's"
        )


def cell_of(operation: PlannedOperation) -> str:
    """Return the cell of an operation."""
    return f"{operation.virtual_stage}{_LETTERS[operation.phase]}{operation.microbatch}"


def pair_of(operations: Sequence[PlannedOperation]) -> str:
    """Return the cell of an operation, or of two that run together."""
    texts = ";".join(map(cell_of, operations))
    return texts if len(operations) == 1 else f"({texts})OVERLAP_F_B"


def text_of(rows: Iterable[Sequence[str]]) -> str:
    """Return the text of these cells."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of each row; empty rows at the end are none.

    Raises:
        InputError: the text is not CSV, or has too many cells.
    """
    if "\0" in text:
        raise InputError("it holds a NUL character; write the plan again, as text")
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text))]
    except csv.Error as error:
        raise InputError(
            f"not CSV ({error}); write one row per rank, cells with commas between"
        ) from error
    if sum(len(row) for row in rows) > _MOST_CELLS:
        raise InputError(f"more than {_MOST_CELLS:,} cells; give the order of one iteration")
    while rows and not any(rows[-1]):
        rows.pop()
    return rows


def _cells(number: int, row: list[str]) -> Iterator[_Cell]:
    """Yield the operations of a row."""
    if not any(row):
        raise InputError(f"row {number} is empty; write one row per rank, each with its operations")
    for place, text in enumerate(row, 1):
        pair = _OVERLAP.fullmatch(text)
        if pair is None:
            if text and not _BESIDE.fullmatch(text):
                yield _cell(number, place, text)
            continue
        both = [_cell(number, place, part.strip()) for part in pair.groups()]
        forward, backward = sorted(both, key=lambda cell: cell.phase is not Phase.F)
        if forward.phase is not Phase.F or backward.phase not in (Phase.B, Phase.BW):
            raise InputError(
                f"row {number}, cell {place}: {one_line(text, 60)!r} is no forward beside a "
                f"backward; {_FORM}"
            )
        yield replace(forward, beside_next=True)
        yield backward


def _cell(number: int, place: int, text: str) -> _Cell:
    match = _CELL.fullmatch(text)
    if match is None:
        raise InputError(
            f"row {number}, cell {place}: {one_line(text, 40)!r} is no operation; {_FORM}"
        )
    stage, letters, microbatch = match.groups()
    if int(stage) >= _MOST_STAGES:
        raise InputError(f"row {number}, cell {place}: no model has a stage {stage}; {_FORM}")
    operation = PlannedOperation(int(stage), _PHASES[letters], int(microbatch))
    return _Cell(number, place, text, operation)


def _split(row: list[_Cell], *, old: bool) -> list[_Cell]:
    """Return a row in which each B that is for the input alone says so."""
    weights = {cell.key for cell in row if cell.phase is Phase.W}
    return [
        cell.changed(Phase.B, cell.operation.microbatch)
        if cell.phase is Phase.BW and (cell.key in weights or (old and "BW" not in cell.text))
        else cell
        for cell in row
    ]


def _refuse_repetition(rows: list[list[_Cell]]) -> None:
    seen: dict[tuple[tuple[int, int], Phase], _Cell] = {}
    for cell in (cell for row in rows for cell in row):
        kind = Phase.BW if cell.phase is Phase.B else cell.phase
        first = seen.setdefault((cell.key, kind), cell)
        if first is not cell:
            raise InputError(
                f"{cell.place}: {cell.text} is {first.text} in {first.place} again; write each "
                "operation once"
            )


def _placement(rows: list[list[_Cell]]) -> tuple[int, ...]:
    """Return the device of each stage."""
    holder: dict[int, int] = {}
    for cell in (cell for row in rows for cell in row):
        row = holder.setdefault(cell.operation.virtual_stage, cell.row)
        if row != cell.row:
            raise InputError(
                f"{cell.place}: stage {cell.operation.virtual_stage} is on the rank of row "
                f"{row} already; a stage has one rank"
            )
    absent = next((stage for stage in range(len(holder)) if stage not in holder), None)
    if absent is not None:
        raise InputError(f"no row has stage {absent}, of {max(holder) + 1}; write all of them")
    stages = Counter(holder.values())
    odd = next((n for n in range(1, len(rows) + 1) if stages[n] != stages[1]), None)
    if odd is not None:
        raise InputError(
            f"row {odd} has {counted(stages[odd], 'stage')} and row 1 has {stages[1]}; "
            "write as many on each"
        )
    return tuple(holder[stage] - 1 for stage in range(len(holder)))


def _from_zero(rows: list[list[_Cell]]) -> tuple[list[list[_Cell]], int]:
    """Return the rows with microbatches counted from 0, and how many there are.

    The last rank of PyTorch's single-stage 1F1B numbers its forwards 1 to m, its backwards 0 to
    m-1.
    """
    moved: list[list[tuple[_Cell, int]]] = []
    for row in rows:
        forward = {c.operation.microbatch for c in row if c.phase is Phase.F}
        other = {c.operation.microbatch for c in row if c.phase is not Phase.F}
        slip = 1 if forward and forward == {number + 1 for number in other} else 0
        moved.append(
            [(c, c.operation.microbatch - (slip if c.phase is Phase.F else 0)) for c in row]
        )
    numbers = sorted({number for row in moved for _, number in row})
    place = {number: index for index, number in enumerate(numbers)}
    return [[c.changed(c.phase, place[n]) for c, n in row] for row in moved], len(place)


def _refuse_gaps(rows: list[list[_Cell]], microbatches: int) -> None:
    """Refuse where a stage lacks an operation of a microbatch; numbers are those from 0."""
    for number, row in enumerate(rows, 1):
        phases_of: dict[tuple[int, int], set[Phase]] = {}
        for cell in row:
            phases_of.setdefault(cell.key, set()).add(cell.phase)
        for key in product(sorted({stage for stage, _ in phases_of}), range(microbatches)):
            phases = phases_of.get(key, set())
            if Phase.F not in phases:
                lacking = "the forward"
            elif phases - {Phase.F} in _BACKWARDS:
                continue
            else:
                lacking = "the weight gradient (W)" if Phase.B in phases else "the backward"
            raise InputError(
                f"row {number}: stage {key[0]} lacks {lacking} of microbatch "
                f"{key[1]} (counted from 0); write all operations of an iteration"
            )


def _refuse_disorder(rows: list[list[_Cell]]) -> None:
    """Refuse a backward before its forward, or a W before its backward."""
    steps = {Phase.F: 0, Phase.B: 1, Phase.BW: 1, Phase.W: 2}
    for row in rows:
        seen: dict[tuple[int, int], int] = {}
        for cell in row:
            step = steps[cell.phase]
            if step < seen.get(cell.key, step):
                raise InputError(
                    f"{cell.place}: {cell.text} comes after what needs it; write F, then B, then W"
                )
            seen[cell.key] = step


FORMAT = PlanFormat(".csv", read, write)
