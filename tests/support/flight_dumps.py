"""Writes PyTorch flight recorder dumps (pickle or JSON), one per rank."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Entry = dict[str, Any]
#: The process groups of two stages that have two replicas each.
GROUPS = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
    **{str(n): {"desc": "mesh_pp", "ranks": f"[{n - 1}, {n + 1}]"} for n in (1, 2)},
    **{str(n): {"desc": "mesh_dp", "ranks": f"[{2 * n - 6}, {2 * n - 5}]"} for n in (3, 4)},
}


def make_entry(group: str, name: str, number: int, *times: float, **fields: Any) -> Entry:
    """Return the entry of one operation, with the field names of FlightRecorderDetail.hpp."""
    entry: Entry = {
        "record_id": 0,
        "process_group": (group, GROUPS[group]["desc"]),
        "is_p2p": " " in name,
        "collective_seq_id": number,
        "p2p_seq_id": number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 10**18 + number,
        "input_sizes": [[64, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[64, 4]],
        "state": "completed" if times else "scheduled",
        "time_discovered_completed_ns": 10**18 + int(times[0] * 1e6) if times else None,
    }
    return entry | dict(zip(["duration_ms"], times[1:], strict=False)) | fields


def write_dumps(folder: Path, ranks: Mapping[int, Sequence[Entry]], ending: str = "") -> str:
    """Write the dumps of ranks as pickles or ``.json`` files, and return the folder."""
    folder.mkdir(exist_ok=True)
    for rank, entries in ranks.items():
        document = {"version": "2.10", "pg_config": GROUPS, "entries": entries}
        content = json.dumps(document).encode() if ending else pickle.dumps(document, 2)
        (folder / f"nccl_trace_rank_{rank}{ending}").write_bytes(content)
    return str(folder)
