"""An open file of ROCm's profilers; it is decoded as a whole, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from bubbleviz.conventions.globs import fitting
from bubbleviz.conventions.kinds import COPIES, GRAPH_LAUNCHES, KERNEL_LAUNCHES
from bubbleviz.errors import NothingToAnalyseError, ProfileError
from bubbleviz.model import profile
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import counted, encodable
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.activities_builder import ActivitiesBuilder
from bubbleviz.sources.in_memory import InMemoryCalls, InMemoryRanges
from bubbleviz.sources.rocm.database_parts import ROCPROF_AGAIN, RPD_AGAIN
from bubbleviz.sources.rocm.rocpd import RocmRecording, joined_columns, read_rocpd, read_rpd
from bubbleviz.timing import step

#: What records more, by format.
_AGAIN = {"rocpd": ROCPROF_AGAIN, "rpd": RPD_AGAIN}
#: What an inspection counts, and the tables that hold it, by format.
_COUNTED = {
    "rocpd": ("rocpd_kernel_dispatch", "rocpd_memory_copy", "rocpd_region", "rocpd_region"),
    "rpd": ("rocpd_op", "rocpd_op", "rocpd_api", "rocpd_api"),
}
_WHAT = ("kernels", "copies and fills", "HIP API calls", "ROCTx ranges")


@dataclass
class RocmFile:
    """An open file; see :class:`~bubbleviz.sources.readers.OpenFile`."""

    path: str
    _recording: RocmRecording

    @cached_property
    def _zero_ns(self) -> int:
        """A nanosecond before the first event of the file began, on the node's clock."""
        tables = self._recording
        blocks = (*tables.calls, *tables.kernels, *tables.copies, *tables.ranges)
        starts = [block[0][block[0] > 0] for block in blocks]
        return min((int(start_ns.min()) for start_ns in starts if len(start_ns)), default=1) - 1

    @cached_property
    def _work(self) -> tuple[profile.Activities, tuple[Limitation, ...]]:
        """Work of devices, and what is not known of it."""
        tables = self._recording
        blocks = (*tables.kernels, *tables.copies)
        builder = ActivitiesBuilder(sum(block.shape[1] for block in blocks))
        try:
            for kernels in tables.kernels:
                builder.add_kernels(self._since_start(kernels))
            for copies in tables.copies:
                builder.add_copies(self._since_start(copies))
        except ValueError as error:
            raise ProfileError(
                f"{self.path}: is damaged or was edited ({error}); {_AGAIN[self._recording.format]}"
            ) from error
        names = [encodable(name) for name in tables.kernel_names.values]
        orphans = builder.without_process()
        processes = distinct(self._calls.calls.thread >> 24).tolist() if orphans else ()
        activities = builder.activities(
            lambda numbers: tuple(names[number] for number in numbers.tolist()), processes
        )
        notes = (*profile.untimed_work(self.path, builder.untimed),)
        notes += profile.impossible_times(self.path, builder.impossible)
        if orphans:
            reason = f"{self.path} does not record it"
            reason += "; the only process that made calls is taken" if len(processes) == 1 else ""
            notes += (Limitation("the process of kernels", reason, orphans, LimitationKind.COSTS),)
        return activities, notes

    def _since_start(self, block: Ints) -> Ints:
        """Return a block with times since the file's first event; 0 stays, which is no time.

        Work with a start of 0 or less, and an end, ends before it starts.
        """
        times = block[:2] - self._zero_ns
        times[0, block[0] <= 0] = 0
        times[1, block[0] <= 0] = NONE
        times[:, (block[:2] == 0).all(axis=0)] = 0
        return np.vstack((times, block[2:]))

    @cached_property
    def _calls(self) -> InMemoryCalls:
        tables = self._recording
        block = joined_columns(tables.calls, 5)
        block = block[:, self._sound(block)]
        block = block[:, np.lexsort((block[0], block[2]))]
        calls = profile.Calls(
            row=np.arange(block.shape[1]),
            start_ns=block[0] - self._zero_ns,
            end_ns=block[1] - self._zero_ns,
            thread=block[2].copy(),
            correlation_id=profile.correlations(block[3]),
        )
        names = tuple(map(encodable, tables.call_names.values))
        return InMemoryCalls(calls, block[4].astype(np.int32), names)

    @cached_property
    def _ranges(self) -> profile.Ranges:
        tables = self._recording
        block = joined_columns(tables.ranges, 5)
        block = block[:, self._sound(block)]
        return profile.Ranges(
            start_ns=block[0] - self._zero_ns,
            end_ns=block[1] - self._zero_ns,
            thread=block[2].copy(),
            end_thread=np.full(block.shape[1], NONE, np.int64),
            start_end=block[3] != 0,
            cut=np.zeros(block.shape[1], bool),
            name_id=block[4].copy(),
            names=tuple(map(encodable, tables.range_names.values)),
        )

    @staticmethod
    def _sound(block: Ints) -> Ints:
        """Return the rows of calls or ranges whose times can be."""
        keep = profile.possible(block[0], block[1])
        timed = block[0] > 0
        return np.flatnonzero(timed if keep is None else timed & keep)

    def sample(self, globs: Sequence[str], _rows: int = 0, /) -> Mapping[str, int]:
        """Return how often names of ranges occur."""
        ranges = self._ranges
        counts = np.bincount(ranges.name_id, minlength=len(ranges.names)).tolist()
        fits = fitting(globs, ranges.names)
        return {n: c for n, c, fit in zip(ranges.names, counts, fits, strict=True) if fit and c}

    def read(self, globs: Sequence[str], *, partial: bool = False) -> profile.Profile:
        """Return the profile.

        Args:
            globs: prefilters of the ranges that are wanted by name.
            partial: read it even if it holds no calls, no ranges, or copies alone.

        Raises:
            ProfileError: it cannot be read.
            NothingToAnalyseError: kernels, calls or ranges were not recorded.
        """
        work, notes = self._work
        if lacking := self._lacking(partial=partial):
            raise NothingToAnalyseError(f"{self.path}: {lacking}")
        ranges = self._ranges
        fits = np.array(fitting(globs, ranges.names), bool)
        tables = self._recording
        none = np.empty(0, np.int64)
        return profile.Profile(
            source=self._source,
            activities=work,
            calls=self._calls,
            ranges=ranges.take(fits[ranges.name_id]),
            every_range=InMemoryRanges(ranges),
            overheads=profile.Overheads(none, none.copy(), none.copy()),
            threads=tuple(tables.threads),
            devices=self._devices,
            limitations=(*notes, *self._losses(partial=partial)),
        )

    def _lacking(self, *, partial: bool) -> str:
        """Return what was not recorded that is needed, and what to do; "" where nothing is."""
        work, notes = self._work
        calls, again = len(self._calls.calls), _AGAIN[self._recording.format]
        if not (len(work) if partial else work.kernels):
            left_out = [
                f"{note.count} {note.what}"
                for note in notes
                if note.kind is LimitationKind.KERNELS_LEFT_OUT
            ]
            but = f", but {counted(calls, 'HIP API call')}" if calls else ""
            reason = f"no kernels were recorded{but}"
            if left_out:
                reason = f"no kernel has times that can be ({', '.join(left_out)})"
            return f"{reason}; {again}"
        if partial or (calls and len(self._ranges)):
            return ""
        if not calls:
            reason = "no HIP API calls were recorded, so kernels cannot be linked to ranges"
            return f"{reason}; {again}"
        if self._recording.nameless:
            return (
                "no range is named, since the events of the ROCTx ranges that were recorded hold "
                f"no texts (rocpd_event.extdata); {again}"
            )
        return (
            f"no ROCTx ranges were recorded; {again}, with ranges switched on in the "
            "training framework"
        )

    def _losses(self, *, partial: bool) -> tuple[Limitation, ...]:
        """Return what the file lacks, and kinds of work of which calls were recorded alone."""
        tables, path, work = self._recording, self.path, self._work[0]
        notes = list(tables.limitations)
        for what, where, count in (
            ("names of ranges", "no text for them", tables.nameless),
            (
                "names of calls, and maybe of ranges",
                "none for them in rocpd_string",
                tables.unnamed_calls,
            ),
        ):
            if count:
                lost = LimitationKind.RANGE_NAMES_LOST
                notes.append(Limitation(what, f"{path} has {where}", count, lost))
        left_out = {
            "HIP API calls": _rows(tables.calls) - len(self._calls.calls),
            "ranges": _rows(tables.ranges) - len(self._ranges),
        }
        notes += profile.impossible_times(path, left_out)
        in_tables = _COUNTED[tables.format]
        for what, table, recorded, make, beginnings, kind in (
            (
                *(profile.KERNELS, in_tables[0], work.kernels or not partial, "launch"),
                *((*KERNEL_LAUNCHES, *GRAPH_LAUNCHES), LimitationKind.COSTS),
            ),
            ("copies", in_tables[1], tables.copied, "make", COPIES, LimitationKind.OTHER),
        ):
            if not recorded and any(name.startswith(beginnings) for name in self._calls.texts):
                reason = f"{path} holds calls that {make} some, but none in {table}"
                notes.append(Limitation(what, reason, kind=kind))
        return tuple(notes)

    @property
    def _source(self) -> profile.Source:
        recording = self._recording
        return profile.Source(
            path=self.path,
            host=encodable(recording.host or Path(self.path).name),
            host_known=recording.host is not None,
            format=recording.format,
            nsys_version=None,
            schema_version=recording.schema_version,
            session_utc_ns=None,
            session_clock_ns=self._zero_ns,
            machine=recording.machine,
            api="HIP",
        )

    @property
    def _devices(self) -> tuple[profile.Device, ...]:
        devices = (replace(d, name=encodable(d.name)) for d in self._recording.devices)
        return tuple(sorted(set(devices), key=lambda d: (d.pid or 0, d.device_id, d.name)))

    def inspect(self, globs: Sequence[str]) -> profile.Contents:
        """Return the contents of the file, ranges of these names among them."""
        names = self.sample(globs)
        tables, ranges = self._recording, self._ranges
        counts = [*map(_rows, (tables.kernels, tables.copies, tables.calls))]
        counts.append(len(ranges) + tables.nameless)
        lacking = self._lacking(partial=False)
        return profile.Contents(
            source=self._source,
            tables=dict(zip(_WHAT, counts, strict=True)),
            processes=tuple(distinct(self._work[0].ranks[:, 0]).tolist()),
            devices=self._devices,
            candidates=dict(sorted(names.items())),
            ranges=len(ranges),
            missing=(lacking,) if lacking else (),
            readable=not lacking,
        )


def _rows(blocks: Sequence[Ints]) -> int:
    return sum(block.shape[1] for block in blocks)


@contextmanager
def _open(
    path: str, read: Callable[[str, Watch], RocmRecording], watch: Watch
) -> Iterator[RocmFile]:
    with step("read tables") as rows:
        recording = read(path, watch)
        rows.count = _rows((*recording.kernels, *recording.calls))
    yield RocmFile(path, recording)


def open_rocpd(
    path: str,
    jobs: int = 1,  # noqa: ARG001 - one thread reads it
    watch: Watch = unwatched,
) -> AbstractContextManager[RocmFile]:
    """Open a file of ``rocprofv3``."""
    return _open(path, read_rocpd, watch)


def open_rpd(
    path: str,
    jobs: int = 1,  # noqa: ARG001 - one thread reads it
    watch: Watch = unwatched,
) -> AbstractContextManager[RocmFile]:
    """Open a file of rocmProfileData."""
    return _open(path, read_rpd, watch)
