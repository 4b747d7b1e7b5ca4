"""Special values for damaging files of every format."""

from __future__ import annotations

import random
from typing import Any, TypeAlias

Random: TypeAlias = random.Random

#: Bytes with a special meaning in headers, sizes and types.
NASTY_BYTES = (0, 1, 2, 5, 9, 10, 11, 12, 13, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
#: Whole numbers at the limits of types, and impossible times.
INTEGERS = (
    *(0, 1, -1, 2, 7, 255, 256, 1 << 16, 1 << 31, -(1 << 31), 1 << 32, 10**12, 1 << 53),
    *(-(10**15), 10**18, (1 << 63) - 1, -(1 << 63)),
)
#: Whole numbers that do not fit into 64 bits.
HUGE_INTEGERS = (1 << 63, (1 << 64) - 1, -(1 << 63) - 1, 10**30, 10**400)
FLOATS = (0.0, -0.0, 0.5, -1.5, 1e-300, 1e18, 1e300, -1e300, float("inf"), float("nan"))
TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "12.5",
    "1e999",
    "NaN",
    "None",
    "true",
    "x" * 5_000,
    "F0.0.0",
    "nccl",
    "one\ntwo\r\nthree\x85\u2028four",
    "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "\x00",
    "\u202eleft",
    "<script>alert(1)</script>",
    "=1+1",
    "\uff1d1+1",
    "%s {0} [red]bold[/red]",
    "日本 😀 é",
    "../../x",
)


def draw_number(chance: Random) -> int | float:
    """Return a number that is at the limit of a type, or of any size."""
    probability = chance.random()
    if probability < 0.6:
        return chance.choice(INTEGERS)
    if probability < 0.75:
        return chance.choice(FLOATS)
    return chance.getrandbits(chance.choice([3, 8, 16, 31, 48, 62])) * chance.choice([1, -1])


def draw_text(chance: Random) -> str:
    """Return a text that is empty, long or hostile, or that is a number."""
    return chance.choice(TEXTS)


def draw_value(chance: Random) -> Any:
    """Return a value of any JSON type."""
    choice = chance.randrange(10)
    if choice < 4:
        return draw_number(chance)
    if choice < 7:
        return draw_text(chance)
    if choice == 7:
        return chance.choice(HUGE_INTEGERS)
    nested: Any = []
    for _ in range(chance.choice([1, 3, 200])):
        nested = [nested]
    return chance.choice([None, True, False, [], {}, [1, 2], {"a": 1}, nested])
