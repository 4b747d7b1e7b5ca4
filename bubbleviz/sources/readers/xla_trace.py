"""XLA's trace JSON: the ``*.trace.json.gz`` that JAX and TensorBoard write beside the xplane file.

It is made of the same planes, without UTC and the number of programs; as written by
``jax.profiler``, it holds at most a million events. The xplane file is to be preferred.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bubbleviz.errors import ProfileError
from bubbleviz.model.operations import Limitation
from bubbleviz.model.profile import Source
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.readers import Reader
from bubbleviz.sources.trace_events.file import TraceFile, is_json, opened_trace
from bubbleviz.sources.xla.collector import PlaneCollector
from bubbleviz.sources.xla.names import FOLDER
from bubbleviz.sources.xla.profile import XlaFile, XlaProfile, profile_of
from bubbleviz.sources.xla.trace_json_planes import ExactXlaEvent, TraceJsonPlanes, XlaEvent

#: The precision of times, and names of processes, as XLA's profiler writes them.
_MARKS = re.compile(rb'"highres-ticks"|"args"\s*:\s*\{\s*"name"\s*:\s*"/(?:device|host):')


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
            f"{file.path}: no process has a name that XLA gives; give the file that the profiler "
            "wrote"
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


READER = Reader(
    name="xla-trace",
    suffixes=(".trace.json.gz", ".trace.json"),
    recognises=lambda head: is_json(head) and _MARKS.search(head) is not None,
    open_file=open_file,
    superseded_by=(".xplane.pb",),
    folder=FOLDER,
)
