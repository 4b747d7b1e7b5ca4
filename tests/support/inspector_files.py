"""Writes files of NCCL Inspector, as ``inspector_json.cc`` in NVIDIA/nccl does.

Times are nanoseconds on a true clock, which is UTC. Older versions write a header and metadata in
each object; since v4.3, only the object with ``dump_stats`` has them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Start of the true clock, in us of UTC.
BEGIN_US = 1_750_000_000_000_000
#: Keys of the bytes and of the duration that differ between collectives and sends.
_PREFIXES = {True: "p2p", False: "coll"}


@dataclass(frozen=True)
class Call:
    """A communication operation of one rank.

    Attributes:
        name: Name of the operation, such as ``AllReduce``.
        sequence: Number of the operation.
        start_ns: Start of the kernel on the true clock.
        end_ns: End of the kernel on the true clock.
        peer: Peer of a send or receive, or None for a collective.
        size: Number of bytes.
        source: How the duration was measured.
    """

    name: str
    sequence: int
    start_ns: int
    end_ns: int
    peer: int | None = None
    size: int = 1 << 22
    source: str = "kernel_gpu"


@dataclass
class Inspector:
    """Builder of the file of one process.

    Attributes:
        host: Hostname.
        pid: Process id.
        rank: Rank in the communicator.
        size: Number of ranks in the communicator.
        communicator: Hash of the communicator.
        name: Name of the communicator, or "" if the version writes none.
        version: Version of the format.
        is_verbose: Whether the times of kernels are written.
        clock_ns: Offset of the host's clock from the true clock.
    """

    host: str = "node0"
    pid: int = 100
    rank: int = 0
    size: int = 2
    communicator: int = 0x7F8C496AE9F661
    name: str = ""
    version: str = "v4.3"
    is_verbose: bool = False
    clock_ns: int = 0
    lines: list[str] = field(default_factory=list)

    def add_dump(self, calls: Sequence[Call], dropped: int = 0, dropped_p2p: int = 0) -> Inspector:
        """Write a dump of the communicator: its counts, its collectives, its sends and receives."""
        collectives = [call for call in calls if call.peer is None]
        sends = [call for call in calls if call.peer is not None]
        if self.version != "v4.0":
            stats = {
                "coll_records": len(collectives),
                "coll_dropped_total": dropped,
                "coll_dropped_since_last_dump": dropped,
                "p2p_records": len(sends),
                "p2p_dropped_total": dropped_p2p,
                "p2p_dropped_since_last_dump": dropped_p2p,
            }
            self._write({**self._make_context(), "dump_stats": stats})
        context = {} if self.version >= "v4.3" else self._make_context()
        for call in (*collectives, *sends):
            prefix = _PREFIXES[call.peer is not None]
            self._write({**context, f"{prefix}_perf": self._make_record(call, prefix)})
        return self

    def write(self, folder: Path) -> str:
        """Write the file under the name that the inspector gives it, and return its path."""
        folder.mkdir(exist_ok=True)
        path = folder / f"{self.host}-pid{self.pid}.log"
        path.write_text("".join(self.lines), encoding="utf-8")
        return str(path)

    def _write(self, record: dict[str, Any]) -> None:
        # Slashes in texts are written with a backslash.
        self.lines.append(json.dumps(record, separators=(",", ":")).replace("/", "\\/") + "\n")

    def _make_context(self) -> dict[str, Any]:
        name = {"comm_name": self.name} if self.name else {}
        return {
            "header": {
                "id": f"0x{self.communicator:x}",
                **name,
                "rank": self.rank,
                "n_ranks": self.size,
                "nnodes": 1,
            },
            "metadata": {
                "inspector_output_format_version": self.version,
                "git_rev": "",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": BEGIN_US + 10**9,
                "hostname": self.host,
                "pid": self.pid,
            },
        }

    def _make_record(self, call: Call, prefix: str) -> dict[str, Any]:
        algorithms = {"coll_algo": "RING", "coll_proto": "LL128"}
        length_us = (call.end_ns - call.start_ns) // 1000
        return {
            prefix: call.name,
            **(algorithms if prefix == "coll" and self.version >= "v4.2" else {}),
            f"{prefix}_sn": call.sequence,
            **({} if call.peer is None else {"p2p_peer": call.peer}),
            f"{prefix}_msg_size_bytes": call.size,
            f"{prefix}_exec_time_us": length_us,
            f"{prefix}_timing_source": call.source,
            f"{prefix}_algobw_gbs": 1.0,
            f"{prefix}_busbw_gbs": 1.0,
            **(self._make_traces(call, prefix) if self.is_verbose else {}),
        }

    def _make_traces(self, call: Call, prefix: str) -> dict[str, Any]:
        """Return the times at which the host saw the operation, on two channels."""
        start_us, end_us = (
            BEGIN_US + (ns + self.clock_ns) // 1000 for ns in (call.start_ns, call.end_ns)
        )
        channels = [
            {
                "channel_id": channel,
                "kernel_start_ts": start_us + 3 + channel,
                "kernel_stop_ts": end_us - 1 + channel,
                "kernel_record_ts": end_us,
            }
            for channel in range(2)
        ]
        return {
            "event_trace_sn": {f"{prefix}_start_sn": 1, f"{prefix}_stop_sn": 2},
            "event_trace_ts": {
                f"{prefix}_start_ts": start_us - 50,
                f"{prefix}_stop_ts": start_us - 40,
                "kernel_events": channels,
            },
        }
