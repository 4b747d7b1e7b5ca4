"""Small runs with NCCL: event files, and profiles of rings, steps and payloads."""

from __future__ import annotations

from pathlib import Path

from bubbleviz.analyses.nccl.analysis import Communication
from tests.support.nccl_event_files import Op, Plugin

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
EXACT = (0, 0)


def list_columns(communication: Communication, *names: str) -> list[tuple[int, ...]]:
    table = communication.operations
    return list(zip(*(getattr(table, name).tolist() for name in names), strict=True))


def write_file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def write_ring(folder: Path, count: int = 12, ranks: int = 2, delay_ns: int = 40_000) -> list[str]:
    """Write one file of all-reduces per rank. Rank r begins r * ``delay_ns`` later than rank 0."""
    paths = []
    for rank in range(ranks):
        file = Plugin(pid=100 + rank, begin=7_000 * rank, gpu=10**18 + 5**9 * rank, lag=EXACT)
        for number in range(count):
            start = 1_000_000 * (number + 1) + number**2 * 1_000
            op = Op("AllReduce", start + delay_ns * rank, start + 500_000, rank, sequence=number)
            file.add(op)
        paths.append(write_file(folder, f"trace-host-{rank}.txt", file.text()))
    return paths
