"""The command line: ``bubbleviz``, and ``python -m bubbleviz``.

Imports wait until ``main`` is called: worker processes import this module, too.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    # No code here multiplies matrices, and every thread of OpenBLAS takes memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from bubbleviz.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("bubbleviz: interrupted before the start\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
