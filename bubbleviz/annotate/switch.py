"""Functions that start a recording, from a script or by environment variables."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from bubbleviz.annotate.ranges import append_recorder, get_recorder
from bubbleviz.annotate.recorder import Recorder
from bubbleviz.errors import UsageError

#: Environment variables: the folder, and two more arguments of :func:`record`.
FOLDER_VARIABLE = "BUBBLEVIZ_RECORD"
EVERY_VARIABLE = "BUBBLEVIZ_RECORD_EVERY"
ITERATIONS_VARIABLE = "BUBBLEVIZ_RECORD_ITERATIONS"
#: Default maximum size of the files of a rank.
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
    """Record the times of this process's ranges without a profiler: ``annotate.record("run/")``.

    ``bubbleviz analyze run/`` reads the files, one per rank. If a recording to the same folder is
    already running, it continues; a recording to another folder ends.

    Args:
        folder: Folder of the files; created when the first iteration ends.
        every: Length of a cycle of iterations, of which only the first ``iterations`` are recorded,
            or 0 to record all.
        iterations: Number of iterations recorded per cycle.
        limit_bytes: Maximum size of this rank's files; the oldest iterations are deleted.
        rank: Rank of this process, if neither torch.distributed nor the launcher provides it.
        world_size: Number of processes, if neither provides it.

    Returns:
        The recording. It ends with ``stop()``, at the end of a ``with`` block, or with the process.

    Raises:
        UsageError: A number is invalid.
    """
    arguments: dict[str, Any] = {
        "every": every,
        "iterations": iterations,
        "limit_bytes": limit_bytes,
    }
    for word, number in arguments.items():
        minimum = int(word != "every")
        if not isinstance(number, int) or number < minimum:
            raise UsageError(f"annotate.record: {word}={number!r} must be a number from {minimum}")
    running = get_recorder()
    if running is not None and running.active and running.folder == Path(folder):
        return running
    rank_and_size = None if rank is None else (rank, -1 if world_size is None else world_size)
    recorder = Recorder(
        Path(folder),
        every=every,
        iterations=iterations,
        limit_bytes=limit_bytes,
        place=rank_and_size,
    )
    if previous := append_recorder(recorder):
        previous.stop()
    return recorder


def record_from_environment() -> None:
    """Start recording if the environment variable names a folder.

    By default, all iterations are recorded. Invalid values are logged as a warning, not raised, and
    nothing is recorded.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    problem: object = None
    try:
        every, iterations = (
            int(os.environ.get(name, default))
            for name, default in ((EVERY_VARIABLE, "0"), (ITERATIONS_VARIABLE, "2"))
        )
        record(folder, every=every, iterations=iterations)
    except UsageError as error:
        problem = error
    except ValueError as error:
        problem = f"{EVERY_VARIABLE} and {ITERATIONS_VARIABLE} must be numbers ({error})"
    if problem:
        logging.getLogger("bubbleviz.annotate").warning("nothing is recorded: %s", problem)
