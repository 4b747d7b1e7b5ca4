"""An open export of Nsight Systems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field

import numpy as np

from bubbleviz.conventions.globs import fitting
from bubbleviz.conventions.launching_calls import GRAPH_LAUNCHES, KERNEL_LAUNCHES
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import (
    IMPOSSIBLE_NS,
    Contents,
    NameCount,
    Profile,
    Ranges,
    impossible_times,
)
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.in_memory import no_calls, no_ranges
from bubbleviz.sources.nsys.call_log import ExportedCalls
from bubbleviz.sources.nsys.export import KERNEL, NVTX, RUNTIME, Export, opened
from bubbleviz.sources.nsys.gpu_work import (
    activities_of,
    ids_of,
    kernel_stretches,
    processes_of,
)
from bubbleviz.sources.nsys.memory import read_memory
from bubbleviz.sources.nsys.nccl_payloads import read_payloads
from bubbleviz.sources.nsys.range_log import ExportedRanges, SystemCalls
from bubbleviz.sources.nsys.ranges import (
    SAMPLED_ROWS,
    NameFilter,
    name_filter,
    read_ranges,
    sample_names,
)
from bubbleviz.sources.nsys.requirements import (
    check_ranges,
    check_recorded,
    missing_data,
    name_limitations,
    range_limitations,
    table_counts,
    unrecorded,
)
from bubbleviz.sources.nsys.scan import Scan, scan_of
from bubbleviz.sources.nsys.synchronisation import read_synchronisation
from bubbleviz.sources.nsys.target import (
    devices_of,
    overheads_of,
    source_of,
    target_limitations,
    threads_of,
)
from bubbleviz.timing import note_way, step

#: The queries for the first and last row of the large tables.
_BOUNDS = ("gpu_work/kernel_bounds", "ranges/bounds", "calls/bounds")


@frozen
class InspectedRanges:
    """The ranges that an inspection has read, for an analysis of the same open export."""

    names: NameFilter
    ranges: Ranges
    impossible: int

    def serves(self, globs: Sequence[str]) -> bool:
        """Return whether ranges of these names are among them, with times that hold."""
        return set(globs) <= set(self.names.globs) and not self.ranges.cut.any()

    def of(self, globs: Sequence[str]) -> Ranges:
        """Return the ranges of these names."""
        fits = np.array(fitting(globs, self.ranges.names), bool)
        return self.ranges.take(fits[self.ranges.name_id])


@frozen
class NsysFile:
    """An open export; see :class:`~bubbleviz.sources.readers.OpenFile`."""

    export: Export
    scan: Scan
    _inspected: list[InspectedRanges] = field(default_factory=list)

    def sample(self, globs: Sequence[str], rows: int = SAMPLED_ROWS, /) -> Mapping[str, int]:
        """Return how often names occur in a sample of the ranges, spread over the capture."""
        return sample_names(self.export, globs, rows)

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile.

        Args:
            globs: prefilters of the names of ranges.
            partial: read it all the same where it holds no calls, no ranges, or copies alone.

        Raises:
            ProfileError: it cannot be read.
            SchemaError: it lacks a column that is needed.
            NothingToAnalyseError: kernels, calls or ranges were not recorded.
        """
        export, scan = self.export, self.scan
        if not partial:
            check_recorded(export)
        earlier = next((seen for seen in self._inspected if seen.serves(globs)), None)
        with step("look up strings"):
            names = earlier.names if earlier else name_filter(export, globs)
        with step("read kernels") as rows:
            activities, notes = activities_of(export, scan, names.call_names)
            rows.count = len(activities)
        if not (len(activities) if partial else activities.kernels):
            raise _without_kernels(export, notes)
        calls = self._calls(names.call_names)
        if not partial:
            if calls is None:
                raise unrecorded(export, RUNTIME)
            scan.begin(calls.stretches())

        def last_ns() -> int:
            latest = 0 if partial else self._latest_call_ns()
            return max(int(activities.end_ns.max(initial=0)), latest)

        if earlier:
            ranges, impossible = earlier.of(globs), earlier.impossible
        else:
            ranges, impossible = self._ranges(names, last_ns)
        if not partial:
            if not len(ranges):
                check_ranges(export)
            notes = (
                *range_limitations(export, ranges),
                *target_limitations(export),
                *name_limitations(export, activities.names),
                *notes,
            )
        overheads, left_out = overheads_of(export)
        return Profile(
            source=source_of(export),
            activities=activities,
            calls=calls or no_calls(),
            ranges=ranges,
            every_range=ExportedRanges(export, scan),
            overheads=overheads,
            threads=threads_of(export),
            devices=devices_of(export),
            limitations=(
                *notes,
                *left_out,
                *impossible_times(export.path, {"ranges": impossible}),
            ),
            system_calls=SystemCalls(export) if export.has("calls/system") else None,
            payloads=lambda: read_payloads(export),
            payloads_described=export.has("ranges/payload_entries"),
            synchronisation=lambda: read_synchronisation(export, scan),
            memory=lambda: read_memory(export),
        )

    def _ranges(self, names: NameFilter, last_ns: Callable[[], int]) -> tuple[Ranges, int]:
        """Return the ranges of some names, if any; see :func:`read_ranges`."""
        if not names.globs or not self.export.has("ranges/named"):
            return no_ranges(), 0
        with step("read ranges") as rows:
            ranges, impossible = read_ranges(self.export, self.scan, names, last_ns)
            rows.count = len(ranges)
        return ranges, impossible

    def _calls(self, call_names: Mapping[int, str]) -> ExportedCalls | None:
        """Return the calls, if any can have launched something."""
        if not self.export.has("calls/all") or not self.export.rows("calls/any"):
            return None
        kernels, graphs = (tuple(ids_of(call_names, n)) for n in (KERNEL_LAUNCHES, GRAPH_LAUNCHES))
        return ExportedCalls(self.export, self.scan, kernels, graphs)

    def _latest_call_ns(self) -> int:
        rows = self.export.rows("calls/latest_end", {"latest": IMPOSSIBLE_NS - 1})
        return self.export.number(rows[0][0]) if rows else 0

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return the contents of the export, ranges of these names among them.

        Raises:
            ProfileError: the file is damaged.
        """
        export = self.export
        candidates: list[NameCount] = []
        if export.has("ranges/named"):
            names = name_filter(export, globs)
            ranges, impossible = read_ranges(export, self.scan, names, lambda: 0)
            self._inspected.append(InspectedRanges(names, ranges, impossible))
            counts = np.bincount(ranges.name_id, minlength=len(ranges.names)).tolist()
            candidates = [NameCount(*pair) for pair in zip(ranges.names, counts, strict=True)]
        tables = table_counts(export)
        missing, readable = missing_data(export, tables)
        return Contents(
            source=source_of(export),
            tables=tables,
            processes=processes_of(export, self.scan),
            devices=devices_of(export),
            candidates=tuple(candidates),
            ranges=next(table.rows or 0 for table in tables if table.table == NVTX),
            missing=missing,
            readable=readable,
            reader=export.reader(),
        )


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[NsysFile]:
    """Open an SQLite export, to be read by so many threads.

    Raises:
        ProfileError: it is being written, damaged, or no export.
    """
    with opened(path) as export, scanned(export, jobs, watch) as file:
        yield file


@contextmanager
def scanned(export: Export, jobs: int, watch: Watch) -> Iterator[NsysFile]:
    """Have so many threads read an open export."""
    with scan_of(export.database, export.direct, jobs, _rows(export), watch) as scan:
        # The names of ranges to read are known only after a while; kernels need none.
        scan.begin(kernel_stretches(export, scan))
        yield NsysFile(export, scan)
        note_way(export.reader(), export.path)


def _without_kernels(export: Export, notes: Sequence[Limitation]) -> NothingToAnalyseError:
    """Return the error of an export without kernels, or of which each was left out."""
    left_out = [
        f"{note.count} {note.what}"
        for note in notes
        if note.kind is LimitationKind.KERNELS_LEFT_OUT
    ]
    if not left_out:
        return unrecorded(export, KERNEL)
    return NothingToAnalyseError(
        f"{export.path}: no kernel has times that can be ({', '.join(left_out)}); profile again "
        "with: nsys profile -t cuda,nvtx"
    )


def _rows(export: Export) -> int:
    """Return the number of rows that an analysis reads."""
    bounds = (export.bounds(name) for name in _BOUNDS if export.has(name))
    return sum(last - first + 1 for first, last in bounds)
