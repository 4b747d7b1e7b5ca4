"""An open recording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cache

from bubbleviz.progress import Watch
from bubbleviz.sources.recordings.operations import table_of
from bubbleviz.sources.recordings.part_reader import RecordedSession, others_of, read_session
from bubbleviz.sources.tables.operations import OpenTable

#: What most recordings tell, and what to say where one does not.
_UNTOLD = (
    (
        "iteration",
        "no range names iterations: repeated microbatches and optimizer steps tell them apart",
    ),
    ("virtual_stage", "no range names a stage: waiting times tell them"),
    ("microbatch", "no range names a microbatch: they are counted by order"),
    ("launched_ns", "times are the host's, so nothing shows when it launched late"),
)


@contextmanager
def open_recording(path: str, watch: Watch) -> Iterator[OpenTable]:
    """Open a recording, all of its files; they are read when they are first asked for anything."""

    @cache
    def session() -> RecordedSession:
        return read_session(path, watch)

    yield OpenTable(
        path,
        lambda: table_of(session(), others_of(path)),
        _UNTOLD,
        lambda: tuple(_facts(session())),
    )


def _facts(session: RecordedSession) -> Iterator[tuple[str, str]]:
    """Yield what there is to say of a recording beside its operations."""
    header = session.header
    of = f" of {header.world_size}" if header.world_size > 0 else ""
    yield "rank", f"{header.rank}{of}, process {header.pid}"
    yield "host", session.host or "not recorded"
    device = "GPU" if header.on_gpu else "the host itself"
    yield "device", f"{device}, {session.device}" if session.device else device
    began = datetime.fromtimestamp(header.began_utc_ns // 10**9, timezone.utc)
    yield "began", f"{began:%Y-%m-%d %H:%M:%S} UTC"
    if session.run:
        yield "run", session.run
    if session.parts > 1:
        yield "files", f"{session.parts}"
    if header.every:
        yield "sampled", f"{header.iterations} of every {header.every} iterations"
