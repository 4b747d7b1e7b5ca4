"""XLA's trace JSON: the ``*.trace.json.gz`` that JAX and TensorBoard write beside the xplane file.

It is made of the same planes, without UTC and the number of programs; as written by
``jax.profiler``, it holds at most a million events. The xplane file is to be preferred.
"""

from __future__ import annotations

import re

from bubbleviz.sources.gzip_files import is_json
from bubbleviz.sources.readers import Reader, opened_by
from bubbleviz.sources.xla import FOLDER

#: The precision of times, and names of processes, as XLA's profiler writes them.
_MARKS = re.compile(rb'"highres-ticks"|"args"\s*:\s*\{\s*"name"\s*:\s*"/(?:device|host):')


READER = Reader(
    name="xla-trace",
    suffixes=(".trace.json.gz", ".trace.json"),
    recognises=lambda head: is_json(head) and _MARKS.search(head) is not None,
    open_file=opened_by("bubbleviz.sources.xla.trace_json:open_file"),
    decoded_whole=True,
    superseded_by=(".xplane.pb",),
    folder=FOLDER,
)
