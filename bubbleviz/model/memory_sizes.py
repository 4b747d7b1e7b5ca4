"""Memory sizes: ``80GB`` and ``16GiB`` as bytes, plain numbers as whatever unit their user has."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass

from bubbleviz.errors import UsageError

_FORM = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(?:([kKmMgGtT]i?)?([bB]))?\s*\Z", re.ASCII)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
#: In any unit, no device has more.
_MAX_AMOUNT = 1e30


@dataclass(frozen=True)
class MemorySize:
    """An amount of memory.

    Attributes:
        amount: in bytes, or in a unit of the user's own.
        in_bytes: whether it is bytes.
    """

    amount: float
    in_bytes: bool


def parse_memory(text: str, option: str) -> MemorySize:
    """Return an amount of memory: ``80GB`` (10^9 bytes), ``80GiB`` (2^30), or a plain number.

    Args:
        text: what the user wrote.
        option: where, for the message.

    Raises:
        UsageError: it is not an amount of memory.
    """
    form = _FORM.match(text)
    try:
        amount = float(form.group(1)) if form else math.nan
    except ValueError:  # 1.2.3
        amount = math.nan
    if form is None or not 0 <= amount <= _MAX_AMOUNT:
        raise UsageError(
            f"{option} {text}: not an amount of memory; give one such as 80GB, 64GiB, or a plain "
            "number in the unit of the activations"
        )
    prefix, byte = form.group(2) or "", form.group(3)
    base = 1024 if prefix.endswith("i") else 1000
    return MemorySize(amount * base ** _POWER[prefix[:1].lower()], byte is not None)


def format_memory(amount: float, *, in_bytes: bool = True) -> str:
    """Return an amount of memory for people: ``12.3 GB``, or a plain number of other units."""
    if not in_bytes:
        return f"{amount:,.4g}"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(amount) >= size:
            return f"{amount / size:,.2f} {unit}"
    return f"{amount:,.0f} B"


def describe_fit(limit_bytes: float | None) -> str:
    """Return what a schedule fits in: ``fits in 80.00 GB``, or the memory that the run took.

    Args:
        limit_bytes: Memory of a device, or None if schedules are compared with the run.
    """
    memory = "the same memory" if limit_bytes is None else format_memory(limit_bytes)
    return f"fits in {memory}"


def parse_bytes(text: str, option: str) -> float:
    """Return an amount of memory in bytes.

    Raises:
        UsageError: it is not an amount of memory, or has no unit.
    """
    size = None
    with suppress(UsageError):
        size = parse_memory(text, option)
    if size is None or not size.in_bytes:
        raise UsageError(f"{option} {text}: no amount of bytes; give one with its unit, as 80GB")
    return size.amount
