"""The command line: ``bubbleviz``, and ``python -m bubbleviz``.

Imports wait until ``main`` is called: worker processes import this module, too.
"""

from __future__ import annotations

import os
import sys

#: What numpy and scipy take before anything is read, in MiB, by limit and by option of ulimit.
_LEAST_MIB = (("RLIMIT_AS", "-v", 512), ("RLIMIT_DATA", "-d", 256))

#: How many objects more are made before garbage is looked for: 300 times Python's own threshold.
#: What a run keeps is looked through each time, which took 5 % of a run; little of it is garbage.
OBJECTS_BETWEEN_COLLECTIONS = 200_000


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from bubbleviz.signals import exit_at_once

        # What loads may turn an exception into one of its own.
        exit_at_once("bubbleviz: interrupted before the start\n")
        # No code here multiplies matrices, and every thread of OpenBLAS takes memory.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        if complaint := _too_little_memory():
            sys.stderr.write(f"bubbleviz: {complaint}\n")
            return 1
        import gc

        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
        from bubbleviz.cli.app import main as run
        from bubbleviz.resources import keep_freed_memory

        keep_freed_memory()
    except KeyboardInterrupt:
        sys.stderr.write("bubbleviz: interrupted before the start\n")
        return 130
    code = run()
    # What is left goes with the process; to look through it for garbage took 4 % of a run.
    gc.freeze()
    return code


def _too_little_memory() -> str:
    """Return the complaint about a limit of memory in which numpy hangs or dies; "" for none."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return ""
    for name, option, least in _LEAST_MIB:
        allowed, _ = resource.getrlimit(getattr(resource, name))
        if allowed != resource.RLIM_INFINITY and allowed < least << 20:
            return (
                f"ulimit {option} allows {allowed >> 20} MiB, and {least} are needed; raise it to "
                f"{least << 10} or more"
            )
    return ""


if __name__ == "__main__":
    sys.exit(main())
