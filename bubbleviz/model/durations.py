"""Parse times with a unit, such as ``120ms`` or ``1.5s``."""

from __future__ import annotations

import re

from bubbleviz.errors import UsageError

#: Pattern of a time: a decimal number and a unit, in two groups.
TIME_PATTERN = r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ns|us|µs|ms|s)\s*"
#: Maximum time of an option, in ns. It fits into 64 bits.
_MAX_NS = 10**18
_UNIT_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def convert_to_ns(number: str, unit: str) -> int:
    """Convert a decimal number with a unit to ns exactly, without floating-point arithmetic.

    Fractions of a nanosecond are cut off.

    Args:
        number: Digits, with at most 9 digits after a decimal point.
        unit: The unit: ns, us, µs, ms or s.
    """
    whole_units, _, fraction = number.partition(".")
    unit_ns = _UNIT_NS[unit]
    return int(whole_units) * unit_ns + int(fraction.ljust(9, "0")) * unit_ns // 10**9


def parse_duration(text: str, option: str) -> int:
    """Parse a time such as ``120ms``, and return it in ns.

    Args:
        text: The time. It must be greater than 0.
        option: Name of the option that contains the time, for messages.

    Raises:
        UsageError: The text is not a time, or the time is 0 or longer than 1,000,000,000 s.
    """
    match = re.fullmatch(TIME_PATTERN, text)
    if match is not None and (time_ns := convert_to_ns(match[1], match[2])) > 0:
        if time_ns > _MAX_NS:
            raise UsageError(f"{option} {text[:60]!r}: must be at most {_MAX_NS // 10**9:,} s")
        return time_ns
    number = text.strip()
    is_unit_missing = re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,9})?", number) is not None
    has_value = is_unit_missing and float(number) > 0
    hint = f"; did you mean {number}ms?" if has_value else ""
    raise UsageError(
        f"{option} {text[:60]!r}: must be a time greater than 0 with a unit (ns, us, ms, s), e.g. "
        f"120ms{hint}"
    )
