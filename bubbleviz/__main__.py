"""The command line: ``bubbleviz``, and ``python -m bubbleviz``.

Nothing is imported before it is called: processes that are started to help import this module too.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    # No matrix is multiplied here, and every thread of OpenBLAS takes memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from bubbleviz.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("bubbleviz: ended by a signal before anything was done\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
