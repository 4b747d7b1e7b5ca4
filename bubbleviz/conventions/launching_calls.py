"""Launching calls: how the names begin of CUDA and HIP API calls that have work on a device."""

from __future__ import annotations

import re

#: Calls that make one kernel each.
KERNEL_LAUNCHES = tuple(
    f"{api}Launch{what}"
    for api in ("cuda", "cu", "hip", "hipModule", "hipExt", "hipExtModule", "hipHccModule")
    for what in ("Kernel", "CooperativeKernel")
)
#: Calls that launch all the work of a graph.
GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
#: Calls that copies come from.
COPIES = ("cudaMemcpy", "cuMemcpy", "hipMemcpy")
#: Calls that memsets come from.
MEMSETS = ("cudaMemset", "cuMemset", "hipMemset")
#: All of these: calls whose work may not be recorded.
WORK_CALLS = (*KERNEL_LAUNCHES, *GRAPH_LAUNCHES, *COPIES, *MEMSETS)


# Collective operations: NCCL's names of what PyTorch and ranges call them.


#: What PyTorch adds to an operation's name for the way it was called (ProcessGroupNCCL.cpp).
_ADDED = re.compile(r"^_|_(?:base|coalesced|oop|sparse|into_tensor|tensor|barrier)(?=_|$)")
_NAMES = {
    "allreduce": "AllReduce",
    "all_reduce": "AllReduce",
    "allgather": "AllGather",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_to_all": "AlltoAll",
    "alltoall": "AlltoAll",
    "all_to_allv": "AlltoAllv",
    "gather": "Gather",
    "scatter": "Scatter",
    "send": "Send",
    "recv": "Recv",
}
_OPERATIONS = frozenset(_NAMES.values())
#: Ranges around the launch of one operation: PyTorch's, ``nccl:send 0->1``, and NCCL's own of those
#: operations whose kernels are named after sends and receives.
_RANGE = re.compile(r"nccl:(?P<pytorch>\w+)(?: .*)?|nccl(?P<own>All[Tt]oAllv?|Gather|Scatter)")
#: What is tried first on the names of ranges.
OPERATION_GLOBS = ("nccl:*", "ncclAll[Tt]oAll*", "ncclGather*", "ncclScatter*")
_OWN = {"AllToAll": "AlltoAll", "AllToAllv": "AlltoAllv"}


def operation_of(name: str) -> str:
    """Return NCCL's name of an operation of PyTorch, or of itself; "" where it has none."""
    return name if name in _OPERATIONS else _NAMES.get(_ADDED.sub("", name), "")


def operation_of_range(name: str) -> str:
    """Return the operation that a range around a launch names; "" where it names none."""
    match = _RANGE.fullmatch(name)
    if match is None:
        return ""
    own = match["own"]
    return operation_of(match["pytorch"]) if own is None else _OWN.get(own, own)
