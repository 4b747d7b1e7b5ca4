"""Memory sizes are in bytes if they have a unit, and plain numbers otherwise."""

from __future__ import annotations

import pytest

from bubbleviz.errors import UsageError
from bubbleviz.model.memory_sizes import MemorySize, format_memory, parse_memory


@pytest.mark.parametrize(
    ("text", "amount", "in_bytes"),
    [
        ("80GB", 80e9, True),
        ("80 GiB", 80 * 2**30, True),
        ("1.5mb", 1.5e6, True),
        ("2kB", 2000, True),
        ("512B", 512, True),
        ("1TiB", 2**40, True),
        ("12", 12, False),
        ("0", 0, False),
        ("1e3", 1000, False),
    ],
)
def test_a_size_has_its_unit(text: str, amount: float, in_bytes: bool) -> None:
    assert parse_memory(text, "--memory-limit") == MemorySize(amount, in_bytes)


@pytest.mark.parametrize("text", ["", "GB", "-1", "nan", "inf", "1.2.3", "80XB", "8G", "1e31", "٣"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an amount of memory; pass a value such as 80GB"):
        parse_memory(text, "--memory-limit")


def test_a_size_is_formatted_for_people() -> None:
    sizes = [0, 999, 1000, 1.5e6, 80e9, 2e12, -3e9]

    assert [format_memory(size) for size in sizes] == [
        "0 B", "999 B", "1.00 kB", "1.50 MB", "80.00 GB", "2.00 TB", "-3.00 GB",
    ]  # fmt: skip
    assert format_memory(12.5, in_bytes=False) == "12.5"
