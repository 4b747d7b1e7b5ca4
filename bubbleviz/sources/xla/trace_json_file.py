"""An open trace JSON of XLA's profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bubbleviz.errors import ProfileError
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Source
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.trace_events.file import TraceFile, opened_trace
from bubbleviz.sources.xla.collector import PlaneCollector
from bubbleviz.sources.xla.profile import XlaFile, XlaProfile, profile_of
from bubbleviz.sources.xla.trace_json_planes import ExactXlaEvent, TraceJsonPlanes, XlaEvent


def _load(file: TraceFile[XlaEvent, ExactXlaEvent]) -> XlaProfile:
    """Read a trace.

    Raises:
        ProfileError: it is not XLA's.
    """
    collector = PlaneCollector()
    trace = TraceJsonPlanes(collector)
    for events in file.blocks():
        trace.add(events)
    if not trace.planes:
        raise ProfileError(
            f"{file.path}: cut short before the first process of XLA; copy it again"
            if file.cut
            else f"{file.path}: no process has a name that XLA gives; give the file that the "
            "profiler wrote"
        )
    source = Source(
        path=file.path,
        host=Path(file.path).name,
        host_known=False,
        format="xla-trace",
        nsys_version=None,
        schema_version=None,
        session_utc_ns=None,
        session_clock_ns=None,
    )
    limitations = tuple(_limitations(file, trace.strays))
    return profile_of(source, collector.planes(), 0, limitations, cut=file.cut)


def _limitations(file: TraceFile[XlaEvent, ExactXlaEvent], strays: int) -> Iterator[Limitation]:
    yield from file.limitations()
    yield Limitation(
        "the hostname and the start of the session, which align profiles",
        f"{file.path}: the format has none; the .xplane.pb of the same run has them",
    )
    if strays:
        reason = f"{file.path}: nothing shows where they ran; they are left out"
        yield Limitation("events of processes without a name", reason, strays)


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[XlaFile]:
    """Open a trace; it is read by one thread.

    Raises:
        ProfileError: it cannot be opened.
    """
    del jobs
    with opened_trace(path, XlaEvent, ExactXlaEvent, watch) as file:
        yield XlaFile(partial(_load, file))
