"""PyTorch traces of planted data-parallel runs, in which one rank is late for a known reason.

The fields are those that PyTorch's profiler writes (pytorch/kineto,
libkineto/src/output_json.cpp, and torch/csrc/profiler/kineto_shim.cpp). Backwards are launched by
a thread of their own, inside the ranges of autograd's functions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.data_parallel_runs import Step, plant_steps

_KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"
#: Time from a launch to the start of its kernel, in us.
_LATENCY_US = 5


def write_rank_traces(
    folder: Path,
    late_part: str,
    *,
    ranks: int = 4,
    steps: int = 5,
    captures: Sequence[range] = (),
) -> Path:
    """Write one trace per rank and capture, and return the folder.

    Args:
        folder: Directory of the traces.
        late_part: Part of the step in which rank 1 is late; see :func:`.plant_steps`.
        ranks: Number of ranks.
        steps: Number of steps.
        captures: Steps that each capture contains. By default, one capture contains all steps.
    """
    folder.mkdir(exist_ok=True)
    planted = list(plant_steps(late_part, ranks=ranks, steps=steps))
    for rank in range(ranks):
        traces = [_Trace(rank, ranks) for _ in captures or (range(steps),)]
        begin_ns = 1_000_000_000
        for step in (step for step in planted if step.rank == rank):
            for trace, capture in zip(traces, captures or (range(steps),), strict=True):
                if step.number in capture:
                    trace.add_step(step, begin_ns)
            begin_ns = step.end_ns
        names = (
            [f"rank{rank}"]
            if not captures
            else [
                f"rank{rank}.{1_700_000_000_000_000_000 + number}"
                for number in range(len(captures))
            ]
        )
        for trace, name in zip(traces, names, strict=True):
            trace.write(folder / f"{name}.pt.trace.json")
    return folder


class _Trace:
    """The trace of one rank. Times are in us."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._events: list[dict[str, Any]] = []
        self._correlation = 0

    def add_step(self, step: Step, begin_ns: int) -> None:
        """Add one step, which begins with data loading."""
        begin, forward, backward, enter, leave, end = (
            time_ns / 1e3
            for time_ns in (
                begin_ns,
                step.forward_ns,
                step.backward_ns,
                step.enter_ns,
                step.leave_ns,
                step.end_ns,
            )
        )
        main, autograd = 100 + self._rank, 900 + self._rank
        self._add_range("user_annotation", f"ProfilerStep#{step.number}", begin, end, main)
        self._add_range("user_annotation", _LOADER, begin, forward - _LATENCY_US, main)
        self._add_kernel("gemm_forward", forward, backward, main)
        self._add_range("cpu_op", _BACKWARD, backward - _LATENCY_US, backward + 50, autograd)
        self._add_kernel("gemm_backward", backward, enter, autograd)
        self._add_kernel(_KERNEL, enter, leave, autograd, launched=backward + 20)
        name = "Optimizer.step#AdamW.step"
        self._add_range("user_annotation", name, leave - _LATENCY_US, leave, main)
        self._add_kernel("multi_tensor_apply_kernel", leave, end, main)

    def _add_range(self, cat: str, name: str, start: float, end: float, tid: int) -> None:
        self._events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 100 + self._rank,
                "tid": tid,
                "ts": start,
                "dur": round(end - start, 3),
            }
        )

    def _add_kernel(
        self, name: str, start: float, end: float, tid: int, launched: float | None = None
    ) -> None:
        """Add a kernel and the call that launches it. NCCL kernels run on a stream of their own."""
        self._correlation += 1
        launch = start - _LATENCY_US if launched is None else launched
        is_nccl = name == _KERNEL
        arguments = {
            "External id": 1_000 + self._correlation,
            "device": self._rank,
            "stream": 20 if is_nccl else 7,
            "correlation": self._correlation,
        }
        if is_nccl:
            arguments |= self._describe_collective()
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
        kernel = {"ph": "X", "cat": "kernel", "name": name}
        self._events += [
            {
                **call,
                "pid": 100 + self._rank,
                "tid": tid,
                "ts": launch,
                "dur": 2,
                "args": {"correlation": self._correlation},
            },
            {
                **kernel,
                "pid": self._rank,
                "tid": arguments["stream"],
                "ts": start,
                "dur": round(end - start, 3),
                "args": arguments,
            },
        ]

    def _describe_collective(self) -> dict[str, Any]:
        return {
            "Collective name": "allreduce",
            "In msg nelems": 1_000,
            "Out msg nelems": 1_000,
            "Group size": self._ranks,
            "dtype": "Float",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self._ranks))),
        }

    def write(self, path: Path) -> None:
        """Write the trace."""
        document = {
            "schemaVersion": 1,
            "host_name": "node0",
            "distributedInfo": {
                "backend": "nccl",
                "rank": self._rank,
                "world_size": self._ranks,
            },
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "traceEvents": self._events,
        }
        path.write_text(json.dumps(document), encoding="utf-8")
