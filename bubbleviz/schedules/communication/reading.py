"""Plans from files, refused where they would deadlock."""

from __future__ import annotations

from pathlib import Path

from bubbleviz.errors import InputError, MismatchError, UsageError
from bubbleviz.model.texts import one_line, suggestion
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.communication.deadlock import check_lowered, check_order
from bubbleviz.schedules.communication.lowered import LoweredPlan
from bubbleviz.schedules.communication.transports import STREAMS, TRANSPORTS, Transport
from bubbleviz.schedules.files import read_plan
from bubbleviz.schedules.plan import Plan


def transport_named(name: str | None) -> Transport:
    """Return the transport of that name; None stands for the one of GPUs.

    Raises:
        UsageError: there is none of that name.
    """
    if name is None:
        return STREAMS
    known = {transport.name: transport for transport in TRANSPORTS}
    if name not in known:
        raise UsageError(
            f"--transport {one_line(name, 60)!r}: not one of {', '.join(known)}"
            f"{suggestion(name, tuple(known))}"
        )
    return known[name]


def read_checked(path: str, transport: Transport = STREAMS) -> Plan:
    """Return the plan in a file, which runs, with the communication that the file has, if any.

    Raises:
        InputError: the file cannot be read, or holds no plan.
        MismatchError: the plan deadlocks; the sentence names the cycle.
    """
    plan = read_plan(path)
    try:
        check_order(plan)
        lowered = read_lowered(path)
        if lowered is not None:
            check_lowered(lowered, transport)
    except MismatchError as error:
        raise MismatchError(f"{path}: {error}") from error
    return plan


def read_lowered(path: str) -> LoweredPlan | None:
    """Return the lowered plan in a file that :func:`read_plan` reads; None without communication.

    Raises:
        InputError: its communication cannot be read.
    """
    file = Path(path)
    if file.suffix.lower() != ".csv":
        return None
    text = file.read_text(encoding="utf-8-sig")
    if not torch_csv.holds_communication(text):
        return None
    try:
        return torch_csv.read(text, one_line(file.name, 60))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
