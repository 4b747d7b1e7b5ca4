"""Start a recording, either from a script or through environment variables."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from bubbleviz.annotate.ranges import append_recorder, get_recorder
from bubbleviz.annotate.recorder import Recorder
from bubbleviz.errors import UsageError

#: Environment variables that correspond to the arguments ``folder``, ``every`` and ``iterations``
#: of `record`.
FOLDER_VARIABLE = "BUBBLEVIZ_RECORD"
EVERY_VARIABLE = "BUBBLEVIZ_RECORD_EVERY"
ITERATIONS_VARIABLE = "BUBBLEVIZ_RECORD_ITERATIONS"
#: Default maximum total size of a rank's files, in bytes.
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
    """Record the times of this process's ranges to files, without a profiler.

    After ``annotate.record("run/")``, the command ``bubbleviz analyze run/`` reads the files of all
    ranks. If a recording to the same folder is already running, it continues and is returned. A
    running recording to another folder is stopped.

    Args:
        folder: Folder for the files, which is created when the first iteration ends.
        every: Length of a cycle in iterations. Only the first ``iterations`` iterations of each
            cycle are recorded. If ``every`` is 0, all iterations are recorded.
        iterations: Number of iterations to record per cycle.
        limit_bytes: Maximum total size of this rank's files. When the limit is reached, the oldest
            iterations are deleted.
        rank: Rank of this process. Needed only if neither torch.distributed nor the launcher
            provides the rank.
        world_size: Number of processes. Ignored unless ``rank`` is given.

    Returns:
        The running recording. A recording ends when ``stop()`` is called, at the end of a ``with``
        block, or when the process exits.

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
            raise UsageError(
                f"annotate.record: {word}={number!r} must be an integer of at least {minimum}"
            )
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
    """Start a recording if the environment variable BUBBLEVIZ_RECORD names a folder.

    All iterations are recorded unless BUBBLEVIZ_RECORD_EVERY is set. If a variable has an invalid
    value, a warning is logged instead of an error being raised, and no recording is started.
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
        problem = f"{EVERY_VARIABLE} and {ITERATIONS_VARIABLE} must be integers ({error})"
    if problem:
        logging.getLogger("bubbleviz.annotate").warning("nothing is recorded: %s", problem)
