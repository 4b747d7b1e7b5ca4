"""Memory sizes, such as ``80GB``, ``16GiB``, or a plain number in a unit of the user's choice."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass

from bubbleviz.errors import UsageError

_FORM = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(?:([kKmMgGtT]i?)?([bB]))?\s*\Z", re.ASCII)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
#: Maximum number in a memory size. Larger numbers are rejected as meaningless.
_MAX_AMOUNT = 1e30


@dataclass(frozen=True)
class MemorySize:
    """An amount of memory, in bytes or in a unit that only the user knows.

    Attributes:
        amount: Number of bytes, or of the user's own units.
        in_bytes: Whether the amount is in bytes.
    """

    amount: float
    in_bytes: bool


def parse_memory(text: str, option: str) -> MemorySize:
    """Parse a memory size such as ``80GB``, ``80GiB`` or a plain number.

    A number followed by "B" or "b" is in bytes. The "B" may have a prefix: "k", "M", "G" and "T"
    are powers of 1000, and "ki", "Mi", "Gi" and "Ti" are powers of 1024. A number without "B" is in
    the user's own unit.

    Args:
        text: Text entered by the user.
        option: Command-line option that takes the text, used in messages.

    Raises:
        UsageError: The text is not a valid memory size.
    """
    form = _FORM.match(text)
    try:
        amount = float(form.group(1)) if form else math.nan
    except ValueError:  # 1.2.3
        amount = math.nan
    if form is None or not 0 <= amount <= _MAX_AMOUNT:
        raise UsageError(
            f"{option} {text}: not an amount of memory; pass a value such as 80GB or 64GiB, or a "
            "plain number in the same unit as the activations"
        )
    prefix, byte = form.group(2) or "", form.group(3)
    base = 1024 if prefix.endswith("i") else 1000
    return MemorySize(amount * base ** _POWER[prefix[:1].lower()], byte is not None)


def format_memory(amount: float, *, in_bytes: bool = True) -> str:
    """Format an amount of memory, such as ``12.30 GB``.

    Bytes are formatted in the largest unit that gives at least 1: TB, GB, MB or kB (powers of
    1000), or else B. Amounts in other units are formatted with four significant digits
    and without a unit.
    """
    if not in_bytes:
        return f"{amount:,.4g}"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(amount) >= size:
            return f"{amount / size:,.2f} {unit}"
    return f"{amount:,.0f} B"


def describe_fit(limit_bytes: float | None) -> str:
    """Describe the amount of memory that a schedule fits in, for example ``fits in 80.00 GB``.

    Args:
        limit_bytes: Memory per device, or None for the amount of memory that the run used.
    """
    memory = "the same memory" if limit_bytes is None else format_memory(limit_bytes)
    return f"fits in {memory}"


def parse_bytes(text: str, option: str) -> float:
    """Parse an amount of memory with a unit, and return the number of bytes.

    Args:
        text: Text entered by the user.
        option: Command-line option that takes the text, used in messages.

    Raises:
        UsageError: The text is not a valid memory size, or has no unit.
    """
    size = None
    with suppress(UsageError):
        size = parse_memory(text, option)
    if size is None or not size.in_bytes:
        raise UsageError(f"{option} {text}: must be an amount of memory with a unit, such as 80GB")
    return size.amount
