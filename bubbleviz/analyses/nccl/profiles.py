"""Profiles: NCCL's kernels in each, and the operations that they carry out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.analyses.idle.evidence import IdleOptions
from bubbleviz.analyses.idle.ranks import window_extent
from bubbleviz.analyses.nccl.collectives import operations_of_pytorch, sizes_of
from bubbleviz.analyses.nccl.communications import Communicator, KernelOperations
from bubbleviz.analyses.nccl.kernel_names import parse_kernel_name
from bubbleviz.analyses.nccl.kernels import Kernels, kernels_of
from bubbleviz.analyses.nccl.nvtx_operations import (
    GLOBS,
    communicator_sizes,
    operations_of_ranges,
)
from bubbleviz.conventions.collective_operations import OPERATION_GLOBS
from bubbleviz.conventions.host_activities import default_activities
from bubbleviz.conventions.kinds import Kinds, default_kinds
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret.added_communication import with_added_communication
from bubbleviz.interpret.linking.linker import link_by_thread
from bubbleviz.interpret.other_commands import other_commands
from bubbleviz.interpret.record import opened_profile, renamed_limitations
from bubbleviz.interpret.told_operations import (
    ToldOperations,
    sound_collectives,
    told_operations,
    with_told_operations,
)
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.process_groups import Collectives
from bubbleviz.model.profile import Profile, Source
from bubbleviz.model.values import frozen
from bubbleviz.model.window import Window
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.readers import OpenFile

#: What records what kernels carry out, by the API of the calls that launch them.
_RECORD_RANGES = {
    "CUDA": "record NVTX ranges, and with --cuda-graph-trace=node where CUDA graphs are used",
    "HIP": "record RCCL's calls with rocprofv3 --rccl-trace beside HIP's",
}


@frozen
class NcclProfile:
    """The kernels and operations of NCCL in a profile.

    Attributes:
        source: the profile.
        kernels: that ran.
        operations: that they carry out.
        ranks: number of ranks of each communicator.
        without_kernels: calls whose kernels were not found.
        limitations: what could not be read, and why.
        others: a clause on the commands that tell something of it without communication.
        window_ns: start and end (exclusive) of the window of iterations to analyse; None for none.
    """

    source: Source
    kernels: Kernels
    operations: KernelOperations
    ranks: tuple[tuple[Communicator, int], ...]
    without_kernels: int
    limitations: tuple[Limitation, ...]
    others: str
    window_ns: tuple[int, int] | None = None


def read_nccl_profile(
    path: str,
    jobs: int = 1,
    watch: Watch = unwatched,
    *,
    kinds: Kinds | None = None,
    keep_export: bool = False,
    window: Window | None = None,
) -> NcclProfile:
    """Return NCCL's kernels of a profile, with the operations of its ranges.

    Args:
        path: of the profile.
        jobs: threads that read it.
        watch: receives how much of it has been read.
        kinds: lists of what kernels are, with the user's additions; None without any.
        keep_export: leave an export made of a ``.nsys-rep`` report beside it.
        window: of iterations, to find on the profile's clock.

    Raises:
        ProfileError: it cannot be read.
        InputError: it holds no iteration of the window.
    """
    with opened_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
        profile = _of_file(file, path, window, kinds or default_kinds())
    # A temporary export goes by its report's name.
    return replace(
        profile,
        source=replace(profile.source, path=path),
        limitations=renamed_limitations(profile.limitations, export, path),
    )


def _of_file(file: OpenFile, path: str, window: Window | None, kinds: Kinds) -> NcclProfile:
    profile = file.read((*GLOBS, *OPERATION_GLOBS), partial=True)
    nccl_profile = _nccl_profile(profile, kinds)
    if len(nccl_profile.kernels) == 0:
        others = other_commands(profile, path, file.sample(("*hlo_op=*",)))
        nccl_profile = replace(nccl_profile, others=others)
    if window is None:
        return nccl_profile
    options = IdleOptions(0, None, default_activities(), kinds)
    try:
        window_ns = window_extent(profile, window, options)
    except ProfileError as error:
        # Without this profile's iterations another one's would be taken.
        raise InputError(str(error)) from error
    return replace(nccl_profile, window_ns=window_ns)


def _nccl_profile(profile: Profile, kinds: Kinds) -> NcclProfile:
    payloads, notes = (None, ()) if profile.payloads is None else profile.payloads()
    if payloads is not None and len(payloads) == 0:
        payloads = None
    profile = with_added_communication(profile, kinds)
    ranges = profile.ranges
    of_nccl = np.array([not name.startswith("nccl:") for name in ranges.names], bool)
    ranges = ranges.take(of_nccl[ranges.name_id])
    linked = link_by_thread(profile, ranges)
    lost = (*profile.limitations, *linked.limitations(profile.source, profile.limitations))
    if profile.collectives is not None:
        collectives = sound_collectives(profile.collectives, linked.sound)
        told = told_operations(collectives, profile.ranges, linked, profile)
        found = kernels_of(linked.activities, kinds)
        return _of_pytorch(profile, collectives, told, lost, *found)
    kernels, rows = kernels_of(linked.activities, kinds)
    range_of_kernel = linked.links.range[rows].astype(np.int64)
    operations, without = operations_of_ranges(ranges, kernels, range_of_kernel, payloads)
    bare = int(((range_of_kernel == NONE) & kernels.of_nccl).sum())
    outside = Limitation(
        "kernels of NCCL outside its ranges",
        f"{profile.source.path}: only their names are known; {_RECORD_RANGES[profile.source.api]}",
        bare,
    )
    return NcclProfile(
        source=profile.source,
        kernels=kernels,
        operations=operations,
        ranks=communicator_sizes(payloads),
        without_kernels=without,
        limitations=(
            *lost,
            *(notes if len(rows) else ()),
            *([outside] if bare else []),
        ),
        others="",
    )


def _of_pytorch(
    profile: Profile,
    collectives: Collectives,
    told: ToldOperations,
    lost: Sequence[Limitation],
    kernels: Kernels,
    rows: Ints,
) -> NcclProfile:
    """Return the profile of a PyTorch trace.

    Args:
        profile: as read.
        collectives: that its kernels carry out.
        told: what ranges tell of the operations of others.
        lost: what could not be read of it.
        kernels: those of NCCL.
        rows: their activities.
    """
    names = tuple(parse_kernel_name(name)[0] for name in kernels.names)
    known = with_told_operations(collectives, told)
    operations = operations_of_pytorch(known, rows, kernels.name, names)
    bare = int((~np.isin(rows, collectives.kernel) & kernels.of_nccl).sum())
    reason = (
        f"{profile.source.path}: only their names and ranges are known; PyTorch records "
        "collectives that it launches itself, not those in CUDA graphs or in batches "
        "other than of sends"
    )
    note = Limitation("kernels of NCCL without a recorded collective", reason, bare)
    return NcclProfile(
        source=profile.source,
        kernels=kernels,
        operations=operations,
        ranks=sizes_of(collectives),
        without_kernels=0,
        limitations=(*lost, *([note] if bare else [])),
        others="",
    )
