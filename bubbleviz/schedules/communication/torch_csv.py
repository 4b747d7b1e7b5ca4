"""PyTorch's CSV of a lowered plan: ``_load_csv(file, format="compute_comms")`` runs it.

::

    0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,...   rank 0 of 2
    1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,...       rank 1

Each transfer is a step of its own, and is waited for by the operation that needs it. Stages on one
rank hand over without one. Written for PyTorch 2.9 and later, which scales gradients where a row
has ``REDUCE_GRAD``.
"""

from __future__ import annotations

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


def read(text: str, name: str) -> LoweredPlan:
    """Return the lowered plan in a text.

    Raises:
        InputError: it is none; a sentence that names row and cell.
    """
    plan = torch_csv.read(text, name)
    first = min((int(match[4]) for match in _TRANSFER.finditer(text)), default=0)
    lines = (
        tuple(_steps(device, row, plan, first))
        for device, row in enumerate(torch_csv.rows_of(text))
    )
    return LoweredPlan(plan, tuple(lines))


def write(lowered: LoweredPlan) -> str:
    """Return the text of a lowered plan.

    Raises:
        UsageError: microbatches enter at both ends, or transfers start together or are waited for
            in places of their own, which the format cannot say.
    """
    name = lowered.plan.name
    torch_csv.check_writable(lowered.plan)
    if any(step.awaited or len(step.transfers) > 1 for line in lowered.lines for step in line):
        raise UsageError(
            f"PyTorch's CSV cannot say that transfers of {name} are batched or waited "
            "for in a place of their own; lower the plan for its runtime"
        )
    return torch_csv.text_of(
        [
            step.parameters
            or (str(step.transfers[0]) if step.transfers else torch_csv.pair_of(step.operations))
            for step in line
        ]
        for line in lowered.lines
    )


def _steps(device: int, row: list[str], plan: Plan, first: int) -> Iterator[Step]:
    """Yield the steps of a row.

    Args:
        device: whose row it is.
        row: its cells.
        plan: with the operations of the row, which are known.
        first: number of the file's first microbatch.
    """
    left: list[PlannedOperation] = list(plan.orders[device])
    for place, text in enumerate(row, 1):
        if not text or _WAIT.fullmatch(text):
            continue
        match = _TRANSFER.fullmatch(text)
        if match:
            stage, end, letter, microbatch = match.groups()
            phase, sends = Phase.F if letter == "F" else Phase.B, end == "SEND"
            at = int(stage) if sends else int(stage) - (1 if phase is Phase.F else -1)
            transfer = Transfer(Message(at, phase, int(microbatch) - first), sends)
            _check_ends(
                f"row {device + 1}, cell {place}: {one_line(text, 40)}", transfer, device, plan
            )
            yield Step(transfers=(transfer,))
        elif _PARAMETERS.fullmatch(text):
            yield Step(parameters=text)
        else:
            pair = 2 if left and left[0] in plan.together else 1
            yield Step(operations=tuple(left[:pair]))
            del left[:pair]


def _check_ends(cell: str, transfer: Transfer, device: int, plan: Plan) -> None:
    """Check that the transfer of a cell is between two ranks, and this is its own.

    Raises:
        InputError: it is not.
    """
    ends = transfer.virtual_stage, transfer.other_stage
    outside = next((end for end in ends if not 0 <= end < plan.virtual_stages), None)
    if outside is not None:
        raise InputError(f"{cell} has no other end, there is no stage {outside}")
    at, other = (plan.placement[end] for end in ends)
    if at != device:
        raise InputError(
            f"{cell} stands on rank {device}, and stage {ends[0]} is on rank {at}; write it there"
        )
    if at == other:
        raise InputError(f"{cell} stays on rank {at}, which has both stages; leave it out")


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
        MismatchError: the plan deadlocks; the sentence names the circle.
    """
    plan = read_plan(path)
    try:
        check_order(plan)
        text = Path(path).read_text(encoding="utf-8-sig") if path.lower().endswith(".csv") else ""
        if "SEND_" not in text and "RECV_" not in text:
            return plan
        lowered = read(text, plan.name)
        check_lowered(lowered, transport)
    except (InputError, MismatchError) as error:
        raise type(error)(f"{path}: {error}") from error
    return lowered
