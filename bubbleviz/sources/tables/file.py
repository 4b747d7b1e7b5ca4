"""An open table of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.operation_table import OperationTable
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import Contents, NameCount, Profile, Source, TableCount, ToldClock
from bubbleviz.model.texts import shell_word
from bubbleviz.progress import Watch
from bubbleviz.sources.tables.cells import Cells
from bubbleviz.sources.tables.operations import operation_table

#: Tables share one clock, whatever hosts they name, unless their column ``clock`` says otherwise.
_ONE_CLOCK = ToldClock("tables")


#: What stands for the host of ranks that a table names none for: any number of tables is one run.
_UNKNOWN_HOST = "table"
#: Columns of which most tables should have some, and what to say without them.
_UNTOLD = (
    (
        "iteration",
        "no column iteration: iterations are told apart by repeated microbatches and steps",
    ),
    ("stage", "no column stage: stages are worked out by waiting times"),
    ("microbatch", "no column microbatch: microbatches are counted by order"),
    ("launched_ns", "no column launched_ns: nothing shows when the host launched late"),
)


@dataclass
class OpenTable:
    """A file of operations; see :class:`~bubbleviz.sources.readers.OpenOperations`.

    Attributes:
        path: of the file.
        read_table: reads it.
        untold: columns of which most should have some, and what to say without them.
        facts: returns what else there is to say of the file, as words and what they are of.
    """

    path: str
    read_table: Callable[[], OperationTable]
    untold: Sequence[tuple[str, str]] = _UNTOLD
    facts: Callable[[], Sequence[tuple[str, str]]] = tuple

    @cached_property
    def _table(self) -> OperationTable:
        return self.read_table()

    def operations(self) -> OperationTable:
        """Return the table.

        Raises:
            ProfileError: it cannot be read, or holds no operations.
        """
        return self._table

    def sample(self, globs: Sequence[str], _rows: int = 0, /) -> Mapping[str, int]:
        """Return no names: a table says what its operations are."""
        del globs
        return {}

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Refuse: a table holds no kernels.

        Raises:
            ProfileError: always; it says what is wrong with a table that is none of operations.
        """
        del globs, partial
        table = self.operations()
        raise NothingToAnalyseError(
            f"{self.path}: a {table.noun}, which holds no kernels, calls or ranges; "
            f"bubbleviz analyze {shell_word(self.path)} gives its bubbles"
        )

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return how many operations of each phase the table holds."""
        del globs
        table = self._table
        operations = table.operations
        counts = np.bincount(operations.phase, minlength=len(Phase)).tolist()
        return Contents(
            source=table.source,
            tables=(
                TableCount("operations", "rows", len(operations)),
                TableCount("ranks", "rank", len(table.places)),
                TableCount("iterations", "iteration", len(table.iterations) or None),
            ),
            processes=tuple(place.number for place in table.places),
            devices=(),
            candidates=tuple(
                NameCount(phase.label, counts[phase]) for phase in Phase if counts[phase]
            ),
            ranges=len(operations),
            missing=tuple(sentence for name, sentence in self.untold if name not in table.told),
            readable=True,
            facts=tuple(self.facts()),
            noun=table.noun,
        )


@contextmanager
def open_table(
    path: str, kind: str, watch: Watch, read_cells: Callable[[str, Watch], Cells]
) -> Iterator[OpenTable]:
    """Open a table; it is read when it is first asked for anything."""
    source = Source(
        path=path,
        host=_UNKNOWN_HOST,
        host_known=False,
        format=kind,
        nsys_version=None,
        schema_version=None,
        session_utc_ns=None,
        session_clock_ns=0,
        device="rank",
        clock=_ONE_CLOCK,
    )
    yield OpenTable(path, lambda: operation_table(read_cells(path, watch), source))
