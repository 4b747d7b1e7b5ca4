"""The order in which people list names."""

from __future__ import annotations

import re


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts ``rank2`` before ``rank10``."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"([0-9]+)", text)
        if part
    )
