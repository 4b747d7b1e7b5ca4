"""Launching calls: how the names begin of CUDA and HIP API calls that have work on a device."""

from __future__ import annotations

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
