"""Records synthetic operations with the recorder of one tree. The tree's Python runs this script.

``python recording.py OPERATIONS FOLDER`` writes one recording per JSON file in OPERATIONS, each
into the subfolder of FOLDER with the same name. :func:`scripts.comparing.inputs.write_operations`
describes the JSON. Clocks, hosts and process ids are artificial, so the same tree always writes the
same bytes.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

#: UTC and the monotonic clock of the first host at the first nanosecond of the run, in ns.
_UTC_NS, _UPTIME_NS = 1_760_000_000_000_000_000, 5_000_000_000_000


def main() -> None:
    """Write all recordings."""
    sys.path.pop(0)
    operations, folder = Path(sys.argv[1]), Path(sys.argv[2])
    for file in sorted(operations.glob("*.json")):
        for rank in json.loads(file.read_text(encoding="utf-8")):
            _record_rank(rank, folder / file.stem)


def _record_rank(rank: dict[str, Any], folder: Path) -> None:
    """Record the operations of a rank, with a simulated clock.

    This changes the host name and the process id of the current process.

    Args:
        rank: The rank, its host, its clock, and the operations of its iterations.
        folder: Folder of the recording.
    """
    from bubbleviz.annotate.recorder import Recorder

    now_ns = 0

    def monotonic() -> int:
        return now_ns + _UPTIME_NS + int(rank["uptime_ns"])

    def utc() -> int:
        return now_ns + _UTC_NS + int(rank["clock_error_ns"])

    # The recorder looks up the host name and the process id when it writes its first iteration.
    socket.gethostname = lambda: str(rank["host"])
    os.getpid = lambda: 4_000 + int(rank["rank"])
    recorder = Recorder(
        folder,
        limit_bytes=1 << 24,
        place=(rank["rank"], rank["world_size"]),
        monotonic=monotonic,
        utc=utc,
    )
    for iteration in rank["iterations"]:
        now_ns = iteration["operations"][0][0]
        opened_iteration = recorder.open("", iteration=iteration["number"])
        for start_ns, end_ns, name in iteration["operations"]:
            now_ns = start_ns
            opened = recorder.open(name)
            now_ns = end_ns
            recorder.close(opened)
        recorder.close(opened_iteration)
    recorder.stop()


if __name__ == "__main__":
    main()
