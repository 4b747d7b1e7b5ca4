"""Profiles: NCCL's kernels in each, and the operations that they carry out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.analyses.idle.evidence import IdleOptions, window_extent
from bubbleviz.analyses.nccl.communications import Communications, Communicator
from bubbleviz.analyses.nccl.kernels import Kernels, kernels_of
from bubbleviz.analyses.nccl.nvtx_operations import GLOBS, operations_of_ranges
from bubbleviz.analyses.nccl.pytorch_operations import operations_of_pytorch
from bubbleviz.conventions import host_activities
from bubbleviz.conventions import kinds as naming
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret import collectives as interpreted
from bubbleviz.interpret import communication, linking, record
from bubbleviz.interpret.start_skew import RecordedDevice, find_recorded_devices
from bubbleviz.model.columns import NONE
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Profile, Source
from bubbleviz.model.window import Window
from bubbleviz.progress import Watch, unwatched

_OF_XLA = "XLA tells no more; give NCCL's event files, too, or a profile of nsys"
#: What records what kernels carry out, by the format, else by the API of the launching calls.
_RECORD_RANGES = {
    "xplane": _OF_XLA,
    "xla-trace": _OF_XLA,
    "CUDA": "record NVTX ranges, and with --cuda-graph-trace=node where CUDA graphs are used",
    "HIP": "record RCCL's calls with rocprofv3 --rccl-trace beside HIP's",
}


@dataclass(frozen=True)
class NcclProfile:
    """The kernels and operations of NCCL in a profile.

    Attributes:
        source: the profile.
        kernels: that ran.
        operations: that they carry out; their kernels and places are rows of ``kernels``.
        sizes: number of ranks of each communicator.
        limitations: what could not be read, and why.
        others: a clause on the commands that tell something of it without communication.
        window_ns: start and end (exclusive) of the window of iterations to analyse; None for none.
        recorded: When the recording of each device began.
    """

    source: Source
    kernels: Kernels
    operations: Communications
    sizes: Mapping[Communicator, int]
    limitations: tuple[Limitation, ...]
    others: str
    window_ns: tuple[int, int] | None = None
    recorded: tuple[RecordedDevice, ...] = ()


def read_profile(
    path: str,
    jobs: int = 1,
    watch: Watch = unwatched,
    *,
    kinds: naming.Kinds,
    keep_export: bool = False,
    window: Window | None = None,
) -> NcclProfile:
    """Return NCCL's kernels of a profile, with the operations of its ranges.

    Args:
        path: of the profile.
        jobs: threads that read it.
        watch: receives how much of it has been read.
        kinds: lists of what kernels are, with the user's additions.
        keep_export: leave an export made of a ``.nsys-rep`` report beside it.
        window: of iterations, to find on the profile's clock.

    Raises:
        ProfileError: it cannot be read.
        InputError: it holds no iteration of the window.
    """
    with record.open_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
        whole = file.read((*GLOBS, *naming.OPERATION_GLOBS), partial=True)
        profile = _nccl_profile(whole, kinds)
        if len(profile.kernels) == 0:
            others = record.suggest_other_commands(whole, path, file.sample(("*hlo_op=*",)))
            profile = replace(profile, others=others)
        if window is not None:
            options = IdleOptions(0, None, host_activities.default_activities(), kinds)
            try:
                profile = replace(profile, window_ns=window_extent(whole, window, options))
            except ProfileError as error:
                # Without this profile's iterations another one's would be taken.
                raise InputError(str(error)) from error
    # A temporary export goes by its report's name.
    return replace(
        profile,
        source=replace(profile.source, path=path),
        limitations=record.rename_limitations(profile.limitations, export, path),
    )


def _nccl_profile(profile: Profile, kinds: naming.Kinds) -> NcclProfile:
    payloads, notes = (None, ()) if profile.payloads is None else profile.payloads()
    if payloads is not None and len(payloads) == 0:
        payloads = None
    profile = communication.add_communication(profile, kinds)
    path = profile.source.path
    ranges = profile.ranges
    own = np.array([not name.startswith("nccl:") for name in ranges.names], bool)
    ranges = ranges.take(own[ranges.name_id])
    linked = linking.link(profile, ranges)
    activities = linked.profile.activities
    kernels, rows = kernels_of(activities, kinds, profile.source.host)
    of_nccl = np.array([naming.is_nccl(name) for name in kernels.names], bool)[kernels.name]
    sizes: dict[Communicator, int] = {}
    without = 0
    if profile.collectives is not None:
        collectives = interpreted.select_collectives(profile.collectives, linked.sound)
        known = interpreted.add_collectives(
            collectives, *interpreted.find_operations_of_kernels(collectives, linked)
        )
        operations = operations_of_pytorch(known, kernels, rows)
        sizes = {group: group.size for group in collectives.groups if group.size}
        notes = ()
        bare = int((~np.isin(rows, collectives.kernel) & of_nccl).sum())
        where = "without a recorded collective"
        why = (
            "PyTorch records collectives that it launches itself, not those in CUDA graphs or in "
            "batches other than of sends"
        )
    else:
        range_of_kernel = linked.work.range[rows].astype(np.int64)
        operations, without = operations_of_ranges(ranges, kernels, range_of_kernel, payloads)
        if payloads is not None:
            sized = payloads.take((payloads.communicator >= 0) & (payloads.ranks > 0))
            known_as = (payloads.communicators[row] for row in sized.communicator.tolist())
            sizes.update(zip(known_as, sized.ranks.tolist(), strict=True))
        bare = int(((range_of_kernel == NONE) & of_nccl).sum())
        source, where = profile.source, "outside its ranges"
        why = _RECORD_RANGES.get(source.format) or _RECORD_RANGES[source.api]
    unknown = (
        Limitation(f"kernels of NCCL {where}", f"{path}: only their names are known; {why}", bare),
        Limitation(
            "calls of NCCL without kernels",
            f"{path}: in CUDA graphs, or outside the capture",
            without,
        ),
    )
    return NcclProfile(
        source=profile.source,
        kernels=kernels,
        operations=operations,
        sizes=sizes,
        limitations=(
            *profile.limitations,
            *linked.limitations,
            *(notes if len(rows) else ()),
            *(note for note in unknown if note.count),
        ),
        others="",
        recorded=find_recorded_devices(linked, activities, kinds),
    )
