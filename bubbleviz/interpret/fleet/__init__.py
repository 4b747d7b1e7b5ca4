"""The fleet: profiles interpreted one after another, by many processes, or by a Dask cluster."""

from __future__ import annotations

import pickle
from typing import Any

from bubbleviz._version import __version__
from bubbleviz.errors import MismatchError


def unpickled(call: bytes) -> Any:
    """Do the work of a task, on a worker that may have joined after versions were compared.

    It is here, where nothing else is, since a scheduler loads the module of what it passes on, and
    a worker does so between two heartbeats; what the work needs is loaded in a thread.

    Args:
        call: pickled (version of who asks, work, argument).

    Raises:
        MismatchError: this is another version.
    """
    version, work, argument = pickle.loads(call)
    if version != __version__:
        raise MismatchError(
            f"--dask: a worker that joined during the run has bubbleviz {__version__}, not "
            f"{version}; install the same version everywhere"
        )
    return work(argument)
