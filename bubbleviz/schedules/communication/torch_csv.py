"""PyTorch's CSV of a lowered plan: ``_load_csv(file, format="compute_comms")`` runs it.

::

    0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,...   rank 0 of 2
    1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,...       rank 1

Each transfer is a step of its own, and is waited for by the operation that needs it. Stages on one
rank hand over without one. Written for PyTorch 2.9 and later, which scales gradients where a row
has ``REDUCE_GRAD``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from bubbleviz.errors import InputError, MismatchError, UsageError
from bubbleviz.model.choices import CARRIERS, one_of
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import one_line
from bubbleviz.schedules.communication.lowered import (
    STREAMS,
    TRANSPORTS,
    LoweredPlan,
    Message,
    Step,
    Transfer,
    Transport,
)
from bubbleviz.schedules.communication.precedence import check_lowered, check_order
from bubbleviz.schedules.files import read_plan, torch_csv
from bubbleviz.schedules.plan import Plan, PlannedOperation

_TRANSFER = re.compile(r"([0-9]{1,6})(SEND|RECV)_(F|B)([0-9]{1,7})")
_PARAMETERS = re.compile(r"[0-9]{1,6}(?:UNSHARD|RESHARD|REDUCE_GRAD)")
_WAIT = re.compile(r"[0-9]{1,6}WAIT_.*")


def holds_communication(text: str) -> bool:
    """Return whether a text of PyTorch's CSV has sends or receives."""
    return "SEND_" in text or "RECV_" in text


def read(text: str, name: str) -> LoweredPlan:
    """Return the lowered plan in a text.

    Raises:
        InputError: it is none; a sentence that names row and cell.
    """
    plan = torch_csv.read(text, name)
    first = min(_numbers(text), default=0)
    rows = list(csv.reader(io.StringIO(text)))[: plan.stages]
    lines = []
    for number, (row, order) in enumerate(zip(rows, plan.orders, strict=True), 1):
        lines.append(tuple(_steps(number, row, order, plan, first)))
    return LoweredPlan(plan, tuple(lines))


def write(lowered: LoweredPlan) -> str:
    """Return the text of a lowered plan.

    Raises:
        UsageError: microbatches enter at both ends, or transfers start together or are waited for
            in places of their own, which the format cannot say.
    """
    plan = lowered.plan
    torch_csv.write(plan)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for line in lowered.lines:
        cells = []
        for step in line:
            if step.awaited or len(step.transfers) > 1:
                raise UsageError(
                    f"PyTorch's CSV cannot say that transfers of {plan.name} are batched or waited "
                    "for in a place of their own; lower the plan for its runtime"
                )
            cells.append(_cell(step))
        writer.writerow(cells)
    return out.getvalue()


def _cell(step: Step) -> str:
    if step.parameters:
        return step.parameters
    if step.transfers:
        return str(step.transfers[0])
    texts = [torch_csv.cell_of(operation) for operation in step.operations]
    return texts[0] if len(texts) == 1 else f"({';'.join(texts)})OVERLAP_F_B"


def _numbers(text: str) -> Iterator[int]:
    """Yield the numbers of the microbatches that are sent."""
    for match in _TRANSFER.finditer(text):
        yield int(match.group(4))


def _steps(
    number: int, row: list[str], order: tuple[PlannedOperation, ...], plan: Plan, first: int
) -> Iterator[Step]:
    """Yield the steps of a row; its operations are known.

    Args:
        number: of the row, from 1.
        row: its cells.
        order: its operations.
        plan: that they are of.
        first: number of the file's first microbatch.
    """
    left = list(order)
    for place, text in enumerate((cell.strip() for cell in row), 1):
        if not text or _WAIT.fullmatch(text):
            continue
        match = _TRANSFER.fullmatch(text)
        if match:
            transfer = _transfer(match, first)
            _check_ends(f"row {number}, cell {place}", text, transfer, number - 1, plan)
            yield Step(transfers=(transfer,))
        elif _PARAMETERS.fullmatch(text):
            yield Step(parameters=text)
        else:
            pair = 2 if left and left[0] in plan.together else 1
            yield Step(operations=tuple(left[:pair]))
            del left[:pair]


def _transfer(match: re.Match[str], first: int) -> Transfer:
    stage, end, letter, microbatch = match.groups()
    phase = Phase.F if letter == "F" else Phase.B
    sends = end == "SEND"
    step = 1 if phase is Phase.F else -1
    at = int(stage) if sends else int(stage) - step
    return Transfer(Message(at, phase, int(microbatch) - first), sends)


def _check_ends(place: str, text: str, transfer: Transfer, device: int, plan: Plan) -> None:
    """Check that a transfer is between two ranks, and this is its own.

    Raises:
        InputError: it is not.
    """
    shown = one_line(text, 40)
    ends = transfer.virtual_stage, transfer.other_stage
    outside = next((end for end in ends if not 0 <= end < plan.virtual_stages), None)
    if outside is not None:
        raise InputError(f"{place}: {shown} has no other end, there is no stage {outside}")
    at, other = (plan.placement[end] for end in ends)
    if at != device:
        raise InputError(
            f"{place}: {shown} stands on rank {device}, and stage {ends[0]} is on rank {at}; "
            "write it there"
        )
    if at == other:
        raise InputError(
            f"{place}: {shown} stays on rank {at}, which has both stages; leave it out"
        )


# Plans from files, refused where they would deadlock.


def transport_named(name: str | None) -> Transport:
    """Return the transport of that name; None stands for the one of GPUs.

    Raises:
        UsageError: there is none of that name.
    """
    one_of(name, CARRIERS, "--transport")
    return next((each for each in TRANSPORTS if each.name == name), STREAMS)


def read_checked(path: str, transport: Transport = STREAMS) -> Plan | LoweredPlan:
    """Return the plan in a file, which runs, with the communication that the file has, if any.

    Raises:
        InputError: the file cannot be read, or holds no plan.
        MismatchError: the plan deadlocks; the sentence names the cycle.
    """
    plan = read_plan(path)
    try:
        check_order(plan)
        lowered = read_lowered(path)
        if lowered is None:
            return plan
        check_lowered(lowered, transport)
    except MismatchError as error:
        raise MismatchError(f"{path}: {error}") from error
    return lowered


def read_lowered(path: str) -> LoweredPlan | None:
    """Return the lowered plan in a file that :func:`read_plan` reads; None without communication.

    Raises:
        InputError: its communication cannot be read.
    """
    file = Path(path)
    if file.suffix.lower() != ".csv":
        return None
    text = file.read_text(encoding="utf-8-sig")
    if not holds_communication(text):
        return None
    try:
        return read(text, one_line(file.name, 60))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
