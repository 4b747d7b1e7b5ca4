"""An open file of operations, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bubbleviz.errors import NothingToAnalyseError
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

#: Columns that most tables should have, and the consequence if a table lacks them.
_EXPECTED_COLUMNS = (
    (
        "iteration",
        "no column iteration: iterations are inferred from repeated microbatches and steps",
    ),
    ("stage", "no column stage: stages are inferred from waiting times"),
    ("microbatch", "no column microbatch: microbatches are counted by order"),
    ("launched_ns", "no column launched_ns: late launches are unknown"),
)


@dataclass
class OpenTable:
    """A file of operations; see :class:`~bubbleviz.sources.readers.OpenOperations`.

    Attributes:
        path: Path of the file.
        read_table: Reads the table.
        expected_columns: Columns that most files should have, and the consequence if one is
            missing.
        facts: Returns further properties of the file, as pairs of name and value.
    """

    path: str
    read_table: Callable[[], OperationTable]
    expected_columns: Sequence[tuple[str, str]] = _EXPECTED_COLUMNS
    facts: Callable[[], Sequence[tuple[str, str]]] = tuple

    @cached_property
    def _table(self) -> OperationTable:
        return self.read_table()

    def operations(self) -> OperationTable:
        """Return the table.

        Raises:
            ProfileError: The file cannot be read, or contains no operations.
        """
        return self._table

    def sample(self, globs: Sequence[str], _rows: int = 0, /) -> Mapping[str, int]:
        """Return no names: the columns of a table say what its operations are."""
        del globs
        return {}

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Raise an error, because a table contains no kernels.

        Raises:
            ProfileError: Always. If the table does not contain operations, the message says why.
        """
        del globs, partial
        table = self.operations()
        raise NothingToAnalyseError(
            f"{self.path}: contains a {table.noun} without kernels, calls or ranges; use bubbleviz "
            f"analyze {texts.quote_for_shell(self.path)} for its bubbles"
        )

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return a summary of the table: operations per phase, ranks, and missing columns."""
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
    """Open a table. It is read on first use.

    Args:
        path: Path of the file.
        jobs: Number of threads, which is ignored.
        watch: Receives the fraction of the file that has been read.
        kind: Format: ``csv``, ``parquet``, ``arrow`` or ``traced``.
    """
    source = Source(
        path=path,
        # Host of ranks for which a table names none. Any number of tables is one run.
        host="table",
        host_known=False,
        format=kind,
        session_clock_ns=0,
        device="rank",
        # All tables share one clock, whatever hosts they name, unless they have a column clock.
        clock=DeclaredClock("tables"),
    )

    def read_cells() -> Cells:
        if kind == "traced":
            return read_traced(path, watch)
        return read_delimited(path, watch) if kind == "csv" else read_columns(path, watch, kind)

    yield OpenTable(path, lambda: make_operation_table(read_cells(), source))
