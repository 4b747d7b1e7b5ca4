"""Entry point of the command line: ``bubbleviz`` and ``python -m bubbleviz``.

All imports are in ``main``, because worker processes also import this module.
"""

from __future__ import annotations

import os
import sys

#: Minimum memory limits for numpy and scipy: (name in ``resource``, option of ``ulimit``, MiB).
_MIN_MIB = (("RLIMIT_AS", "-v", 512), ("RLIMIT_DATA", "-d", 256))

#: Number of new objects after which Python's garbage collector runs, about 300 times the default.
#: Each collection visits all objects. With the default, this took 5 % of a run's time and freed
#: little memory.
OBJECTS_BETWEEN_COLLECTIONS = 200_000


def main() -> int:
    """Run the command line, and return its exit code.

    If a memory limit is too low for numpy, only a message is printed, and the exit code is 1.
    Ctrl-C before the command line starts gives the exit code 130.
    """
    try:
        from bubbleviz.signals import exit_at_once

        # While modules are imported, Ctrl-C exits immediately.
        # A KeyboardInterrupt is not reliable, because a module can convert it to another exception.
        exit_at_once("bubbleviz: interrupted during startup\n")
        # Every OpenBLAS thread needs memory, and bubbleviz does not multiply matrices.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        if message := _check_memory_limits():
            sys.stderr.write(f"bubbleviz: {message}\n")
            return 1
        import gc

        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
        from bubbleviz.cli.app import main as run
        from bubbleviz.resources import keep_freed_memory

        keep_freed_memory()
    except KeyboardInterrupt:
        sys.stderr.write("bubbleviz: interrupted during startup\n")
        return 130
    code = run()
    # The process is about to end, so skip the final garbage collection, which took 4 % of a run's
    # time.
    gc.freeze()
    return code


def _check_memory_limits() -> str:
    """Return an error message if a memory limit is too low for numpy, or "" otherwise.

    Below the limits in ``_MIN_MIB``, numpy hangs or crashes. Windows has no such limits.
    """
    try:
        import resource
    except ImportError:  # Windows has no memory limits of this kind
        return ""
    for name, option, min_mib in _MIN_MIB:
        allowed, _ = resource.getrlimit(getattr(resource, name))
        if allowed != resource.RLIM_INFINITY and allowed < min_mib << 20:
            return (
                f"ulimit {option} allows {allowed >> 20} MiB, but bubbleviz needs {min_mib} MiB; "
                f"raise the limit to {min_mib << 10} or more"
            )
    return ""


if __name__ == "__main__":
    sys.exit(main())
