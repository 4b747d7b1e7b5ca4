"""Plans from files, refused where they would deadlock."""

from __future__ import annotations

from pathlib import Path

from bubbleviz.errors import InputError, MismatchError
from bubbleviz.model.choices import CARRIERS, one_of
from bubbleviz.model.texts import one_line
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
    if not torch_csv.holds_communication(text):
        return None
    try:
        return torch_csv.read(text, one_line(file.name, 60))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
