"""Limitations of a table: what it leaves open, or has twice."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.interpret.tables.keys import KeyedRows
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operation_table import OperationTable
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE, COUNTED

#: What no table tells, and what one without launches does not tell either.
_NO_KERNELS = (
    "a {noun} holds none, so gaps between kernels inside operations are unknown, and "
    "so is what hosts did instead of launching"
)
_NO_LAUNCHES = "; without {launches}, no idle time is found to be a host's"


def limitations_of(table: OperationTable, rows: KeyedRows) -> tuple[Limitation, ...]:
    """Return the limitations of a table.

    Args:
        table: as read.
        rows: its operations, with keys.
    """
    path = table.source.path
    reason = _NO_KERNELS.format(noun=table.noun)
    if "launched_ns" not in table.told:
        is_table = table.noun.startswith("table")
        reason += _NO_LAUNCHES.format(launches="a column launched_ns" if is_table else "launches")
    return (
        # Of any number of tables once, and so without a path.
        Limitation("kernels", reason),
        *table.notes,
        *(
            Limitation(what, f"{path}: {reason}", count, kind)
            for what, reason, count, kind in _candidates(rows)
            if count
        ),
    )


def _candidates(rows: KeyedRows) -> Iterator[tuple[str, str, int, LimitationKind]]:
    operations, other = rows.operations, LimitationKind.OTHER
    compute = among(operations.phase, COMPUTE)
    counted = among(operations.phase, COUNTED)
    yield (
        "operations without any GPU work",
        "their rows have no start and no end, so they have no device time",
        int((compute & (operations.has_span == 0) & (operations.cut == 0)).sum()),
        other,
    )
    yield (
        "microbatch numbers are inferred",
        "the table gives none, so they are counted by order within an iteration",
        int(rows.unnumbered.any()),
        LimitationKind.MICROBATCHES_INFERRED,
    )
    yield (
        "operations cut by the end of the capture",
        "the table says so",
        int((operations.cut > 0).sum()),
        other,
    )
    repeated = counted & (operations.occurrence > 0) & (operations.microbatch >= 0)
    yield (
        "repeated operations",
        "the same microbatch, chunk and phase occur again in one iteration",
        int(repeated.sum()),
        other,
    )
