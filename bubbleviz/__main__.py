"""``python -m bubbleviz`` is the command line."""

import sys

from bubbleviz.cli import main

sys.exit(main())
