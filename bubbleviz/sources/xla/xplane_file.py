"""An open xplane file of XLA's profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bubbleviz.errors import ProfileError
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Source
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import GZIP
from bubbleviz.sources.xla.collector import PlaneCollector
from bubbleviz.sources.xla.file_content import FileContent, ShortenedError
from bubbleviz.sources.xla.profile import XlaFile, XlaProfile, profile_of
from bubbleviz.sources.xla.wire import MalformedError, Walk
from bubbleviz.sources.xla.xspace import planes_of
from bubbleviz.sources.xla.xspace_planes import collect, profiled_process, session_clock

_AGAIN = "copy it again, or record again with jax.profiler.trace"


def _load(path: str, walk: Walk, watch: Watch) -> XlaProfile:
    """Read a file.

    Raises:
        ProfileError: it cannot be decoded.
    """
    collector = PlaneCollector()
    try:
        planes, hosts = planes_of(walk)
        clock = session_clock(planes)
        for number, plane in enumerate(planes):
            collect(walk, plane, clock.base_ns, collector)
            watch((number + 1) / len(planes))
    except ShortenedError as error:
        raise ProfileError(f"{path}: {error}; wait until it is written, and run again") from error
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from error
    except MalformedError as error:
        raise ProfileError(
            f"{path}: damaged, or not a profile of XLA ({error}); {_AGAIN}"
        ) from error
    host = hosts[0] if hosts else ""
    source = Source(
        path=path,
        host=host or Path(path).name,
        host_known=bool(host),
        format="xplane",
        nsys_version=None,
        schema_version=None,
        session_utc_ns=clock.utc_ns,
        session_clock_ns=None,
    )
    limitations = tuple(_limitations(path, cut=walk.cut, timed=clock.utc_ns is not None))
    process = profiled_process(planes)
    return profile_of(source, collector.planes(), process, limitations, cut=walk.cut)


def _limitations(path: str, *, cut: bool, timed: bool) -> Iterator[Limitation]:
    if cut:
        reason = f"{path}: the file ends within an event or a name; {_AGAIN}"
        yield Limitation("the end of the profile", reason)
    if not timed:
        reason = f"{path}: the UTC of its time 0 was not recorded"
        yield Limitation("the start of the session, which aligns profiles", reason)


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[XlaFile]:
    """Open a file; it is read by one thread.

    Raises:
        ProfileError: it cannot be opened.
    """
    del jobs
    try:
        file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed below, as its errors differ
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error
    with file:
        content = FileContent(file)
        if content[:2] == GZIP:
            raise ProfileError(f"{path}: gzipped xplane files cannot be read; unpack it (gunzip)")
        yield XlaFile(partial(_load, path, Walk(content), watch))
