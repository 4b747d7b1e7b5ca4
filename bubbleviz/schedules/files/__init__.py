"""Plans as files: each module here reads and writes one format.

Adding one is adding a module with a ``FORMAT`` constant.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bubbleviz.errors import InputError
from bubbleviz.model.files import read_bounded
from bubbleviz.model.texts import one_line
from bubbleviz.model.values import frozen
from bubbleviz.registry import discover
from bubbleviz.schedules.plan import Plan

#: A larger file is no plan; one of 5 million operations has 50 MB.
_MOST_BYTES = 1 << 28


@frozen
class PlanFormat:
    """A file format that holds the order of operations.

    Attributes:
        suffix: that its files end with, with the dot.
        read: plan of (text, name of the plan); it raises :class:`bubbleviz.errors.InputError`
            with a sentence that names row and cell, and not the file.
        write: text of a plan; it raises :class:`bubbleviz.errors.UsageError` for plans that the
            format cannot hold.
    """

    suffix: str
    read: Callable[[str, str], Plan]
    write: Callable[[Plan], str]


def plan_formats() -> tuple[PlanFormat, ...]:
    """Return every format, in order of the module names."""
    return discover(__name__, "FORMAT", PlanFormat)


def read_plan(path: str) -> Plan:
    """Return the plan in a file; its name is the file's.

    Raises:
        InputError: the file cannot be read, has no known suffix, or holds no plan.
    """
    by_suffix = {known.suffix: known for known in plan_formats()}
    known = by_suffix.get(Path(path).suffix.lower())
    if known is None:
        raise InputError(
            f"{path}: no plan format has this suffix; give a file that ends with "
            f"{' or '.join(by_suffix)}"
        )
    raw = read_bounded(path, _MOST_BYTES, "a plan", "give the file of one iteration's order")
    try:
        return known.read(raw.decode("utf-8-sig"), one_line(Path(path).name, 60))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not text in UTF-8 (byte {error.start}); write the plan again"
        ) from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
