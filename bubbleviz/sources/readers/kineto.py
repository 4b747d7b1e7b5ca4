"""PyTorch: the JSON that its profiler (Kineto) writes, ``export_chrome_trace`` or a handler."""

from __future__ import annotations

import re

from bubbleviz.sources.gzip_files import is_json
from bubbleviz.sources.readers import Reader, opened_by

#: Keys of the document, and categories, that no other profiler writes.
_MARKS = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|user_annotation|python_function|cuda_runtime|cuda_driver|'
    rb'gpu_mem(?:cpy|set)|kernel|ac2g|Operator|Runtime|Kernel)"'
)


READER = Reader(
    name="kineto",
    suffixes=(".pt.trace.json", ".pt.trace.json.gz", ".json.gz"),
    recognises=lambda head: is_json(head) and _MARKS.search(head) is not None,
    open_file=opened_by("bubbleviz.sources.kineto.profile:open_file"),
    decoded_whole=True,
    possible_suffixes=(".json",),
    # A trace that was filtered or merged by hand may hold none of them.
    is_possible=is_json,
)
