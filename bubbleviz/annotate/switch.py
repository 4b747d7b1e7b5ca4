"""Switch: functions that turn a recording on, in a script or by environment variables."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from bubbleviz.annotate.ranges import attach, current_recorder
from bubbleviz.annotate.recorder import Recorder
from bubbleviz.errors import UsageError

#: The folder; and what :func:`record` takes besides.
FOLDER, EVERY, ITERATIONS = (
    "BUBBLEVIZ_RECORD",
    "BUBBLEVIZ_RECORD_EVERY",
    "BUBBLEVIZ_RECORD_ITERATIONS",
)
#: Bytes that the files of a rank take at most, unless another limit is given.
_LIMIT_BYTES = 256 << 20


def record(
    folder: str | os.PathLike[str],
    *,
    every: int = 0,
    iterations: int = 2,
    limit_bytes: int = _LIMIT_BYTES,
    rank: int | None = None,
    world_size: int | None = None,
) -> Recorder:
    """Record when the ranges of this process run, without a profiler: ``annotate.record("run/")``.

    ``bubbleviz analyze run/`` reads the files, one a rank. A recording to the same folder that runs
    already goes on; one to another folder ends.

    Args:
        folder: where the files are; made when the first iteration is over.
        every: of so many iterations only some are recorded; 0 for all.
        iterations: how many of these.
        limit_bytes: what the files of this rank hold at most; the oldest iterations make room.
        rank: number of this process, where neither torch.distributed nor the launcher tells it.
        world_size: how many processes there are, likewise.

    Returns:
        The recording; ``stop()`` ends it, and so does leaving ``with`` or the process.

    Raises:
        UsageError: a number is not valid.
    """
    given: dict[str, Any] = {"every": every, "iterations": iterations, "limit_bytes": limit_bytes}
    for word, number in given.items():
        least = int(word != "every")
        if not isinstance(number, int) or number < least:
            raise UsageError(f"annotate.record: {word}={number!r} must be a number from {least}")
    running = current_recorder()
    if running is not None and running.active and running.folder == Path(folder):
        return running
    place = None if rank is None else (rank, -1 if world_size is None else world_size)
    recorder = Recorder(
        Path(folder), every=every, iterations=iterations, limit_bytes=limit_bytes, place=place
    )
    if before := attach(recorder):
        before.stop()
    return recorder


def record_as_environment_says() -> None:
    """Record where a variable of the environment names a folder; nothing is raised."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    said: object = None
    try:
        every, iterations = (
            int(os.environ.get(name, default))
            for name, default in ((EVERY, "0"), (ITERATIONS, "2"))
        )
        record(folder, every=every, iterations=iterations)
    except UsageError as error:
        said = error
    except ValueError as error:
        said = f"{EVERY} and {ITERATIONS} must be numbers ({error})"
    if said:
        logging.getLogger("bubbleviz.annotate").warning("nothing is recorded: %s", said)
