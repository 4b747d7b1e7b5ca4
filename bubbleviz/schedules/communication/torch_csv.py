"""PyTorch's CSV format for plans: one row per rank, one cell per operation, no header row.

::

    0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B      rank 0 of 2, DualPipeV
    0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,...   rank 0 of 2, with communication

A cell is ``{stage}{operation}{microbatch}``, or empty if the rank is idle. The operation is F, I
(the input gradient only), W, B (fused backward), or a transfer.
``torch.distributed.pipelining.schedules`` writes and reads this format (``_dump_csv``,
``_load_csv``). In old files, B computes only the input gradient, and BW is the fused backward. A B
is read as computing only the input gradient in two cases: the file contains any BW, or it contains
a W of the same stage and microbatch.

Both variants of the format can be read (``compute_only`` and ``compute_comms``). Only operations
are written, because PyTorch adds the communication when it loads a file. In a file with
communication, each transfer is a separate step, and an operation waits for the transfers of its
inputs. There are no transfers between stages on the same rank. Cells for parameters and gradients,
such as ``0UNSHARD``, are ignored.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from bubbleviz.errors import InputError, MismatchError, UsageError
from bubbleviz.model import choices, files
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import format_count, to_one_line
from bubbleviz.schedules.communication import lowered as model
from bubbleviz.schedules.communication.deadlocks import check_lowered, check_order
from bubbleviz.schedules.communication.transports import STREAMS, TRANSPORTS, Transport
from bubbleviz.schedules.plan import Plan, PlannedOperation

_CELL = re.compile(r"([0-9]{1,6})(F|I|BW|B|W)([0-9]{1,7})")
#: Matches a cell that is not a computation. The cell may have no microbatch.
_NO_COMPUTE = re.compile(
    r"[0-9]{1,6}(?:WAIT_)?"
    r"(?:SEND_F|SEND_B|RECV_F|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)(?:[0-9]{1,7})?"
)
_TRANSFER = re.compile(r"([0-9]{1,6})(SEND|RECV)_(F|B)([0-9]{1,7})")
_OVERLAP = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
_PHASES = {"F": Phase.F, "I": Phase.B, "B": Phase.BW, "BW": Phase.BW, "W": Phase.W}
_FORM = "write cells as 0F3, 0I3, 0W3, 0B3 (stage, operation, microbatch) or (0F3;1B2)OVERLAP_F_B"
#: Valid sets of backward phases. On every stage, each microbatch needs an F and one of the sets.
_BACKWARDS = ({Phase.BW}, {Phase.B, Phase.W})
#: Position of each phase in the order F, B, W.
_STEPS = {Phase.F: 0, Phase.B: 1, Phase.BW: 1, Phase.W: 2}
_MAX_STAGES, _MAX_CELLS = 100_000, 20_000_000
#: Maximum file size in bytes. A plan with 5 million operations takes 50 MB.
_MAX_BYTES = 1 << 28


@dataclass
class _Cell:
    """An operation in the file and its position. Row and cell numbers start at 1."""

    row: int
    cell: int
    text: str
    stage: int
    phase: Phase
    microbatch: int
    overlaps_next: bool = False

    @property
    def position(self) -> str:
        return f"row {self.row}, cell {self.cell}"

    @property
    def key(self) -> tuple[int, int]:
        return self.stage, self.microbatch

    @property
    def operation(self) -> PlannedOperation:
        return PlannedOperation(self.stage, self.phase, self.microbatch)


#: Contents of a row: its operations, and all other cells as (column, text) pairs.
_Line = list[_Cell | tuple[int, str]]


def read(text: str, name: str) -> model.LoweredPlan:
    """Parse the text of a plan, including its transfers.

    Raises:
        InputError: The text is not a plan. The error message names the row and the cell.
    """
    lines = [list(_parse_items(number, row)) for number, row in enumerate(_read_rows(text), 1)]
    rows = [[cell for cell in line if isinstance(cell, _Cell)] for line in lines]
    if not any(rows):
        raise InputError("contains no operations; write one row per rank, as PyTorch does")
    _find_input_backwards(rows)
    placement = _find_placement(rows)
    microbatches = _count_from_zero(rows)
    _check_operations(rows, microbatches)
    plan = Plan(
        name,
        len(rows),
        microbatches,
        len(placement) // len(rows),
        placement,
        tuple(tuple(cell.operation for cell in row) for row in rows),
        together=frozenset(c.operation for row in rows for c in row if c.overlaps_next),
    )
    transfer_matches = (match for line in lines for cell in line if not isinstance(cell, _Cell)
              if (match := _TRANSFER.fullmatch(cell[1])))  # fmt: skip
    first = min((int(match[4]) for match in transfer_matches), default=0)
    steps = (tuple(_parse_steps(device, line, plan, first)) for device, line in enumerate(lines))
    return model.LoweredPlan(plan, tuple(steps))


def _find_input_backwards(rows: list[list[_Cell]]) -> None:
    """Find the backwards that compute only the input gradient, and change their phase from BW to B.

    A backward has phase B if its rank also has a W of the same stage and microbatch. In old files,
    which contain BW, a backward that is written as B also has phase B (see the module docstring).

    Args:
        rows: Operations of each rank, modified in place.
    """
    is_old = any("BW" in cell.text for row in rows for cell in row)
    for row in rows:
        weights = {cell.key for cell in row if cell.phase is Phase.W}
        for cell in row:
            for_input = cell.key in weights or (is_old and "BW" not in cell.text)
            cell.phase = Phase.B if cell.phase is Phase.BW and for_input else cell.phase


def write(plan: Plan) -> str:
    """Return the text of a plan in the form that ``_load_csv(file, format="compute_only")`` reads.

    Raises:
        UsageError: Microbatches enter the pipeline at both ends, which cannot be represented in
            this format.
    """
    if plan.replicas > 1:
        raise UsageError(
            f"PyTorch's CSV format cannot represent the two directions of {plan.name}; write the "
            "order of a single direction"
        )
    out = io.StringIO()
    rows = ([_format_cell(step.operations) for step in line] for line in model.list_steps(plan))
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _format_cell(operations: tuple[PlannedOperation, ...]) -> str:
    texts = ";".join(map(model.get_cell, operations))
    return texts if len(operations) == 1 else f"({texts})OVERLAP_F_B"


def _read_rows(text: str) -> list[list[str]]:
    """Return the cells of each row, without any empty rows at the end.

    Raises:
        InputError: The text is not CSV, or has too many cells.
    """
    if "\0" in text:
        raise InputError("contains a NUL character; save the plan as a text file")
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text))]
    except csv.Error as error:
        raise InputError(
            f"not a valid CSV file ({error}); write one row per rank, with cells separated by "
            "commas"
        ) from error
    if sum(len(row) for row in rows) > _MAX_CELLS:
        raise InputError(
            f"contains more than {_MAX_CELLS:,} cells; use a file with a single iteration"
        )
    while rows and not any(rows[-1]):
        rows.pop()
    return rows


def _parse_items(row_number: int, row: list[str]) -> Iterator[_Cell | tuple[int, str]]:
    """Yield the operations in a row, and the row's other cells as (column, text) pairs.

    Column numbers start at 1. Empty cells are skipped. The forward of an overlapped pair comes
    before its backward.

    Raises:
        InputError: The row is empty, or a cell is not an operation.
    """
    if not any(row):
        raise InputError(
            f"row {row_number} is empty; write one row per rank, containing the rank's operations"
        )
    for column, text in enumerate(row, 1):
        pair = _OVERLAP.fullmatch(text)
        if _NO_COMPUTE.fullmatch(text):
            yield column, text
        elif pair is None and text:
            yield _parse_cell(row_number, column, text)
        elif pair is not None:
            cells = [_parse_cell(row_number, column, part.strip()) for part in pair.groups()]
            forward, backward = sorted(cells, key=lambda cell: cell.phase is not Phase.F)
            if forward.phase is not Phase.F or backward.phase not in (Phase.B, Phase.BW):
                raise InputError(
                    f"row {row_number}, cell {column}: {to_one_line(text, 60)!r} is not a forward "
                    f"overlapped with a backward; {_FORM}"
                )
            forward.overlaps_next = True
            yield from (forward, backward)


def _parse_cell(row_number: int, column: int, text: str) -> _Cell:
    """Parse an operation such as ``0F3``.

    Raises:
        InputError: The text is not an operation, or its stage is out of range.
    """
    match = _CELL.fullmatch(text)
    if match is None:
        raise InputError(
            f"row {row_number}, cell {column}: {to_one_line(text, 40)!r} is not an operation; "
            f"{_FORM}"
        )
    stage, letters, microbatch = match.groups()
    if int(stage) >= _MAX_STAGES:
        raise InputError(
            f"row {row_number}, cell {column}: stage {stage} is out of range; the largest possible "
            f"stage is {_MAX_STAGES - 1:,}"
        )
    return _Cell(row_number, column, text, int(stage), _PHASES[letters], int(microbatch))


def _find_placement(rows: list[list[_Cell]]) -> tuple[int, ...]:
    """Return the device index of each stage. Row n of the file belongs to device n - 1.

    Raises:
        InputError: A stage is in several rows or in none, or the rows have different numbers of
            stages.
    """
    row_of_stage: dict[int, int] = {}
    for cell in (cell for row in rows for cell in row):
        row = row_of_stage.setdefault(cell.stage, cell.row)
        if row != cell.row:
            raise InputError(
                f"{cell.position}: stage {cell.stage} is already in row {row}; "
                "keep all operations of a stage in one row"
            )
    absent = next((stage for stage in range(len(row_of_stage)) if stage not in row_of_stage), None)
    if absent is not None:
        raise InputError(
            f"no row contains stage {absent} of {max(row_of_stage) + 1}; list all stages"
        )
    stages = Counter(row_of_stage.values())
    odd = next((n for n in range(1, len(rows) + 1) if stages[n] != stages[1]), None)
    if odd is not None:
        raise InputError(
            f"row {odd} has {format_count(stages[odd], 'stage')}, but row 1 has {stages[1]}; "
            "every row needs the same number of stages"
        )
    return tuple(row_of_stage[stage] - 1 for stage in range(len(row_of_stage)))


def _count_from_zero(rows: list[list[_Cell]]) -> int:
    """Renumber the microbatches in all cells from 0, in place, and return how many there are.

    The last rank of PyTorch's single-stage 1F1B numbers its forwards from 1 to m, but its backwards
    from 0 to m-1. The forwards in this row are renumbered first, so that they also start at 0.
    """
    for row in rows:
        forward = {cell.microbatch for cell in row if cell.phase is Phase.F}
        other = {cell.microbatch for cell in row if cell.phase is not Phase.F}
        if forward and forward == {number + 1 for number in other}:
            for cell in row:
                cell.microbatch -= cell.phase is Phase.F
    numbers = sorted({cell.microbatch for row in rows for cell in row})
    new_number = {number: index for index, number in enumerate(numbers)}
    for cell in (cell for row in rows for cell in row):
        cell.microbatch = new_number[cell.microbatch]
    return len(new_number)


def _check_operations(rows: list[list[_Cell]], microbatches: int) -> None:
    """Check that each stage runs the F and the backward of every microbatch exactly once, in order.

    A backward is one BW, or a B followed by a W.

    Raises:
        InputError: An operation is missing, repeated, or out of order.
    """
    for number, row in enumerate(rows, 1):
        ran: dict[tuple[int, int], dict[int, _Cell]] = {}
        for cell in row:
            step, earlier = _STEPS[cell.phase], ran.setdefault(cell.key, {})
            if step in earlier:
                first = earlier[step]
                raise InputError(
                    f"{cell.position}: {cell.text} repeats {first.text} in {first.position}; "
                    "list each operation only once"
                )
            if step < max(earlier, default=0):
                raise InputError(
                    f"{cell.position}: {cell.text} comes after an operation that needs it; "
                    "within a microbatch, the order is F, B, W"
                )
            earlier[step] = cell
        for key in product(sorted({stage for stage, _ in ran}), range(microbatches)):
            phases = {cell.phase for cell in ran.get(key, {}).values()}
            if Phase.F not in phases:
                missing_operation = "the forward"
            elif phases - {Phase.F} in _BACKWARDS:
                continue
            else:
                missing_operation = (
                    "the weight gradient (W)" if Phase.B in phases else "the backward"
                )
            raise InputError(
                f"row {number}: {missing_operation} of microbatch {key[1]} (counted from 0) is "
                f"missing on stage {key[0]}; list all operations of an iteration"
            )


def _parse_steps(device: int, line: _Line, plan: Plan, first: int) -> Iterator[model.Step]:
    """Yield the steps that a row contains.

    Cells for parameters and gradients, such as ``0UNSHARD``, are skipped.

    Args:
        device: Device index of the row.
        line: Operations in the row, and the row's other cells as (column, text) pairs.
        plan: The plan, without communication.
        first: Smallest microbatch number among the transfers in the file.

    Raises:
        InputError: A transfer stays within one rank, goes to a stage that does not exist, or is
            listed on the wrong rank.
    """
    forward: tuple[PlannedOperation, ...] = ()
    for item in line:
        if isinstance(item, _Cell):
            operations = (*forward, item.operation)
            forward = operations if item.overlaps_next else ()
            if not item.overlaps_next:
                yield model.Step(operations=operations)
        elif match := _TRANSFER.fullmatch(item[1]):
            transfer = _parse_transfer(match, first)
            cell = f"row {device + 1}, cell {item[0]}: {to_one_line(item[1], 40)}"
            stages = transfer.virtual_stage, transfer.other_stage
            invalid_stage = next(
                (end for end in stages if not 0 <= end < plan.virtual_stages), None
            )
            if invalid_stage is not None:
                raise InputError(
                    f"{cell} involves stage {invalid_stage}, which does not exist; remove the cell"
                )
            local_rank, peer_rank = (plan.placement[end] for end in stages)
            if local_rank != device:
                raise InputError(
                    f"{cell} is on rank {device}, but stage {stages[0]} is on rank {local_rank}; "
                    "move the cell to that rank"
                )
            if local_rank == peer_rank:
                raise InputError(
                    f"{cell} stays on rank {local_rank}, which has both stages; remove the cell"
                )
            yield model.Step(transfers=(transfer,))


def _parse_transfer(match: re.Match[str], first: int) -> model.Transfer:
    """Build the transfer for a cell such as ``1SEND_F0`` or ``1RECV_B0``.

    Args:
        match: A match of ``_TRANSFER``.
        first: Smallest microbatch number among the transfers in the file, which becomes microbatch
            0.
    """
    stage, sends = int(match[1]), match[2] == "SEND"
    phase = Phase.F if match[3] == "F" else Phase.B
    sending_stage = stage if sends else stage - (1 if phase is Phase.F else -1)
    return model.Transfer(model.Message(sending_stage, phase, int(match[4]) - first), sends)


def find_transport(name: str | None) -> Transport:
    """Find a transport by name. If the name is None, the transport is ``streams``, as on GPUs.

    Raises:
        UsageError: No transport has this name.
    """
    choices.check_choice(name, choices.CARRIERS, "--transport")
    return next((each for each in TRANSPORTS if each.name == name), STREAMS)


def read_file(path: str) -> model.LoweredPlan:
    """Read a plan from a file. The plan is named after the file.

    Raises:
        InputError: The file cannot be read, has another suffix, or contains no plan.
    """
    if Path(path).suffix.lower() != ".csv":
        raise InputError(f"{path}: not a plan file; plans are read from .csv files")
    raw = files.read_bounded(path, _MAX_BYTES, "a plan", "use a file with a single iteration")
    try:
        return read(raw.decode("utf-8-sig"), to_one_line(Path(path).name, 60))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text (byte {error.start}); save the plan as UTF-8"
        ) from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_checked(path: str, transport: Transport = STREAMS) -> model.LoweredPlan:
    """Read a plan and check that it does not deadlock.

    Raises:
        InputError: The file cannot be read, or contains no plan.
        MismatchError: The plan deadlocks. The error message describes the cycle.
    """
    lowered = read_file(path)
    try:
        check_order(lowered.plan)
        if lowered.communicates:
            check_lowered(lowered, transport)
    except MismatchError as error:
        raise MismatchError(f"{path}: {error}") from error
    return lowered
