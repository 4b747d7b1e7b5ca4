"""Fleets: read profiles one after another, in several processes, or on a Dask cluster."""

from __future__ import annotations

import pickle
from typing import Any

from bubbleviz._version import __version__
from bubbleviz.errors import MismatchError


def run_pickled(call: bytes) -> Any:
    """Run a pickled task on a worker, after checking the version of bubbleviz.

    The check is needed because the worker may have joined after the versions were compared.

    The scheduler imports the module of this function when it forwards a task, and a worker imports
    it between two heartbeats. The import must be fast, so the function is in the package module,
    which imports little. All other modules that a task needs are imported in a thread.

    Args:
        call: Pickled tuple of the client's version, a function, and its argument.

    Raises:
        MismatchError: The worker has a different version of bubbleviz.
    """
    version, work, argument = pickle.loads(call)
    if version != __version__:
        raise MismatchError(
            f"--dask: a worker that joined during the run has bubbleviz {__version__}, not "
            f"{version}; install the same version everywhere"
        )
    return work(argument)
