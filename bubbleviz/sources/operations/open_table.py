"""Represents an open operation file in any of the supported formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bubbleviz.errors import NothingToAnalyzeError
from bubbleviz.model import texts
from bubbleviz.model.operation_table import OperationTable
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import Contents, DeclaredClock, Profile, Source
from bubbleviz.progress import Watch
from bubbleviz.sources.operations.arrow import read_columns
from bubbleviz.sources.operations.cells import Cells
from bubbleviz.sources.operations.csv import read_delimited
from bubbleviz.sources.operations.table import make_operation_table
from bubbleviz.sources.operations.traced import read_traced

#: Columns that most tables should have. Each is paired with the message to show if it is missing.
_EXPECTED_COLUMNS = (
    (
        "iteration",
        "there is no column iteration, so iterations are inferred from repeated microbatches and "
        "optimizer steps",
    ),
    ("stage", "there is no column stage, so stages are inferred from waiting times"),
    ("microbatch", "there is no column microbatch, so microbatches are numbered in order"),
    ("launched_ns", "there is no column launched_ns, so late launches are unknown"),
)


@dataclass
class OpenTable:
    """An open operation file, see :class:`~bubbleviz.sources.readers.OpenOperations`.

    Attributes:
        path: Path to the file.
        read_table: Function that reads the file, called once, on first use.
        expected_columns: Columns that most files should have. Each is paired with the message to
            show if the column is missing.
        facts: Function that returns further properties of the file, as (name, value) pairs.
    """

    path: str
    read_table: Callable[[], OperationTable]
    expected_columns: Sequence[tuple[str, str]] = _EXPECTED_COLUMNS
    facts: Callable[[], Sequence[tuple[str, str]]] = tuple

    @cached_property
    def _table(self) -> OperationTable:
        return self.read_table()

    def operations(self) -> OperationTable:
        """Return the table of operations, reading the file on first use.

        Raises:
            ProfileError: The file cannot be read, or contains no operations.
        """
        return self._table

    def sample(self, globs: Sequence[str], _rows: int = 0, /) -> Mapping[str, int]:
        """Return an empty mapping, because a table describes its operations in columns."""
        del globs
        return {}

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Raise an error, because a table contains no kernels.

        Raises:
            ProfileError: Always raised. If the file cannot be read as operations, the message gives
                the reason.
        """
        del globs, partial
        table = self.operations()
        raise NothingToAnalyzeError(
            f"{self.path}: contains a {table.noun} without kernels, calls or ranges; to measure "
            f"bubbles, run bubbleviz analyze {texts.quote_for_shell(self.path)}"
        )

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Summarize the file: operation counts per phase, ranks, missing columns, and facts."""
        del globs
        table = self._table
        operations = table.operations
        counts = np.bincount(operations.phase, minlength=len(Phase)).tolist()
        return Contents(
            source=table.source,
            tables={
                "operations": len(operations),
                "ranks": len(table.places),
                "iterations": len(table.iterations) or None,
            },
            processes=tuple(place.number for place in table.places),
            devices=(),
            candidates={phase.label: counts[phase] for phase in Phase if counts[phase]},
            ranges=len(operations),
            missing=tuple(
                sentence for name, sentence in self.expected_columns if name not in table.told
            ),
            readable=True,
            facts=tuple(self.facts()),
            noun=table.noun,
        )


@contextmanager
def open_table(path: str, jobs: int, watch: Watch, kind: str) -> Iterator[OpenTable]:  # noqa: ARG001 - pyarrow has threads of its own
    """Open an operation file. The file is read on first use.

    Args:
        path: Path to the file.
        jobs: Ignored, because pyarrow manages its own threads.
        watch: Progress callback, called with the fraction of the file that has been read.
        kind: File format: ``csv``, ``parquet``, ``arrow`` or ``traced``.
    """
    source = Source(
        path=path,
        # Host of the ranks whose host is not in the table. All tables without hosts therefore form
        # a single run.
        host="table",
        host_known=False,
        format=kind,
        session_clock_ns=0,
        device="rank",
        # Clock shared by all tables without a column "clock", even if they come from different
        # hosts.
        clock=DeclaredClock("tables"),
    )

    def read_cells() -> Cells:
        if kind == "traced":
            return read_traced(path, watch)
        return read_delimited(path, watch) if kind == "csv" else read_columns(path, watch, kind)

    yield OpenTable(path, lambda: make_operation_table(read_cells(), source))
