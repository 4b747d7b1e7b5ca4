"""Reads NCCL kernels from a profile, and finds the operations that they carry out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bubbleviz.analyses.nccl.communications import Communications, Communicator
from bubbleviz.analyses.nccl.kernels import Kernels, select_kernels
from bubbleviz.analyses.nccl.nvtx_operations import GLOBS, collect_range_operations
from bubbleviz.analyses.nccl.pytorch_operations import collect_pytorch_operations
from bubbleviz.analyses.nccl.step_parts import (
    PART_GLOBS,
    DeviceSteps,
    find_device_steps,
    is_part_name,
)
from bubbleviz.conventions import kinds as naming
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret import collectives as interpreted
from bubbleviz.interpret import communication, linking, record
from bubbleviz.interpret.device_captures import DeviceCapture, number_devices
from bubbleviz.interpret.process_steps import find_extent
from bubbleviz.interpret.start_skew import RecordedDevice, find_recorded_devices
from bubbleviz.model.collectives import Collectives
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.payloads import Payloads
from bubbleviz.model.profile import Profile, Ranges, Source
from bubbleviz.model.window import Window
from bubbleviz.progress import Watch, unwatched

_XLA_HINT = "XLA does not record more; add NCCL event files, or record a profile with nsys"
#: Hints on how to record which operations the kernels carry out, keyed by profile format. For
#: formats not listed, the key is the API of the launching calls.
_RECORD_RANGES = {
    "xplane": _XLA_HINT,
    "xla-trace": _XLA_HINT,
    "CUDA": "record NVTX ranges, and use --cuda-graph-trace=node if the program uses CUDA graphs",
    "HIP": "record RCCL calls as well as HIP calls (rocprofv3 --rccl-trace)",
}
#: Remedy if a window of iterations is given, but no ranges in the profile are recognized as steps.
#: The command has no option for step names.
_NO_STEPS_REMEDY = "select by time, such as bubbleviz nccl --window time:1.5s-3s"


@dataclass(frozen=True)
class NcclProfile:
    """The communication kernels and operations of a profile.

    Attributes:
        source: The profile.
        kernels: Communication kernels.
        operations: Communication operations. The column ``kernel`` contains rows of ``kernels``,
            and the column ``gpu`` contains indices into ``kernels.places``.
        sizes: Number of ranks in each communicator.
        limitations: What could not be read, and why.
        alternatives: If the profile contains no communication, a clause that names other commands
            that can read the profile. Otherwise "".
        window_ns: Start and end (exclusive) of the iterations to analyze, or None for the complete
            profile.
        recorded: For each device, when its recording started, and its first and its longest
            communication kernel.
        steps: Steps of the processes, and how the devices spent them.
    """

    source: Source
    kernels: Kernels
    operations: Communications
    sizes: Mapping[Communicator, int]
    limitations: tuple[Limitation, ...]
    alternatives: str
    window_ns: tuple[int, int] | None = None
    recorded: tuple[RecordedDevice, ...] = ()
    steps: DeviceSteps | None = None


def read_profile(
    path: str,
    jobs: int = 1,
    watch: Watch = unwatched,
    *,
    kinds: naming.Kinds,
    keep_export: bool = False,
    window: Window | None = None,
) -> NcclProfile:
    """Read the communication kernels and operations of a profile.

    Args:
        path: Path to the profile.
        jobs: Number of threads used to read the profile.
        watch: Callback that receives the progress of reading the profile.
        kinds: Kernel lists, with the user's additions.
        keep_export: Whether to keep the file exported from a ``.nsys-rep`` report, next to the
            report.
        window: Iterations for which to determine the start and end on the profile's clock, or None.

    Raises:
        ProfileError: The profile cannot be read.
        InputError: The profile contains none of the window's iterations.
    """
    with record.open_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
        globs = (*GLOBS, *naming.OPERATION_GLOBS, *PART_GLOBS)
        full_profile = file.read(globs, partial=True)
        profile = _make_nccl_profile(full_profile, kinds)
        if len(profile.kernels) == 0:
            alternatives = record.suggest_other_commands(
                full_profile, path, file.sample(("*hlo_op=*",))
            )
            profile = replace(profile, alternatives=alternatives)
        if window is not None:
            steps = {} if profile.steps is None else profile.steps.steps
            try:
                window_ns = find_extent(full_profile, window, steps, _NO_STEPS_REMEDY)
                profile = replace(profile, window_ns=window_ns)
            except ProfileError as error:
                # If this profile were skipped, another profile would number the iterations.
                raise InputError(str(error)) from error
    # The file that was read may be a temporary export, so the path to the report is restored.
    return replace(
        profile,
        source=replace(profile.source, path=path),
        limitations=record.rename_limitations(profile.limitations, export, path),
    )


def number_gpus(profiles: Sequence[NcclProfile]) -> Ints:
    """Number the distinct GPUs of all profiles, because several profiles may contain a GPU.

    Returns:
        Number of each GPU, in the order of the profiles' ``kernels.places``.
    """
    captures = []
    for profile in profiles:
        kernels, source = profile.kernels, profile.source
        spans = group_extents(
            kernels.gpu_index, len(kernels.places), kernels.start_ns, kernels.end_ns
        )
        ran = np.bincount(kernels.gpu_index, minlength=len(kernels.places)) > 0
        for index, (pid, gpu, host) in enumerate(kernels.places):
            span_ns = None
            if ran[index] and source.host_known and source.session_utc_ns is not None:
                start_ns, end_ns = (int(bound[index]) + source.session_utc_ns for bound in spans)
                span_ns = start_ns, end_ns
            captures.append(DeviceCapture(host, pid, gpu, span_ns))
    return np.array(number_devices(captures), np.int64)


def _make_nccl_profile(profile: Profile, kinds: naming.Kinds) -> NcclProfile:
    """Select the communication kernels in a profile, and find the operations they carry out.

    The operations are the collectives that PyTorch recorded. If PyTorch recorded none, NCCL's own
    ranges are used.
    """
    payloads, payload_notes = (None, ()) if profile.payloads is None else profile.payloads()
    if payloads is not None and len(payloads) == 0:
        payloads = None
    profile = communication.add_communication(profile, kinds)
    is_from_api = [
        not name.startswith("nccl:") and not is_part_name(name) for name in profile.ranges.names
    ]
    ranges = profile.ranges.take(np.array(is_from_api, bool)[profile.ranges.name_id])
    linked = linking.link(profile, ranges)
    activities = linked.profile.activities
    kernels, rows = select_kernels(activities, kinds, profile.source.host)
    if profile.collectives is not None:
        operations = _find_pytorch_operations(profile, profile.collectives, linked, kernels, rows)
        payload_notes = ()
    else:
        operations = _find_range_operations(profile, ranges, linked, kernels, rows, payloads)
    return NcclProfile(
        source=profile.source,
        kernels=kernels,
        operations=operations.operations,
        sizes=operations.sizes,
        limitations=(
            *profile.limitations,
            *linked.limitations,
            *(payload_notes if len(rows) else ()),
            *(note for note in operations.limitations if note.count),
        ),
        alternatives="",
        recorded=find_recorded_devices(linked, activities, kinds),
        steps=find_device_steps(linked, rows) if len(rows) else None,
    )


class _FoundOperations(NamedTuple):
    """The operations of a profile.

    Attributes:
        operations: Operations, followed by kernels that have no operation.
        sizes: Number of ranks in each communicator.
        limitations: Limitations that count kernels without an operation and operations without a
            kernel.
    """

    operations: Communications
    sizes: dict[Communicator, int]
    limitations: tuple[Limitation, ...]


def _find_pytorch_operations(
    profile: Profile,
    recorded: Collectives,
    linked: linking.LinkedProfile,
    kernels: Kernels,
    rows: Ints,
) -> _FoundOperations:
    """Find the operations in a profile based on the collectives that PyTorch recorded.

    Args:
        profile: The profile.
        recorded: The profile's collectives.
        linked: The profile, with calls linked to kernels.
        kernels: Communication kernels.
        rows: For each of ``kernels``, its row in the profile's activities.
    """
    collectives = interpreted.select_collectives(recorded, linked.sound)
    added = interpreted.find_operations_of_kernels(collectives, linked)
    operations = collect_pytorch_operations(
        interpreted.add_collectives(collectives, *added), kernels, rows
    )
    has_collective = np.isin(rows, collectives.kernel)
    reason = (
        "PyTorch records only collectives that it launches itself, and none in CUDA graphs or in "
        "batches, except batches of sends"
    )
    bare = _make_bare_note(
        profile, kernels, ~has_collective, "without a recorded collective", reason
    )
    sizes: dict[Communicator, int] = {
        group: group.size for group in collectives.groups if group.size
    }
    return _FoundOperations(operations, sizes, (bare,))


def _find_range_operations(
    profile: Profile,
    ranges: Ranges,
    linked: linking.LinkedProfile,
    kernels: Kernels,
    rows: Ints,
    payloads: Payloads | None,
) -> _FoundOperations:
    """Find the operations in a profile based on the ranges of NCCL's API calls.

    Args:
        profile: The profile.
        ranges: Ranges opened by NCCL.
        linked: The profile, with calls linked to kernels and ranges.
        kernels: Communication kernels.
        rows: For each of ``kernels``, its row in the profile's activities.
        payloads: Payloads of the ranges, or None.
    """
    range_of_kernel = linked.work.range[rows].astype(np.int64)
    operations, n_without = collect_range_operations(ranges, kernels, range_of_kernel, payloads)
    sizes: dict[Communicator, int] = {}
    if payloads is not None:
        sized = payloads.take((payloads.communicator >= 0) & (payloads.ranks > 0))
        communicators = (payloads.communicators[row] for row in sized.communicator.tolist())
        sizes.update(zip(communicators, sized.ranks.tolist(), strict=True))
    source = profile.source
    hint = _RECORD_RANGES.get(source.format) or _RECORD_RANGES[source.api]
    bare = _make_bare_note(
        profile, kernels, range_of_kernel == NONE, "outside of NCCL ranges", hint
    )
    without_kernel = Limitation(
        "NCCL calls without kernels",
        f"{source.path}: their kernels are in CUDA graphs, or outside the capture",
        n_without,
    )
    return _FoundOperations(operations, sizes, (bare, without_kernel))


def _make_bare_note(
    profile: Profile, kernels: Kernels, is_bare: Bools, condition: str, reason: str
) -> Limitation:
    """Return a limitation that counts the NCCL kernels of which only the name is known.

    Args:
        profile: The profile.
        kernels: Communication kernels.
        is_bare: Mask of the kernels without an operation.
        condition: Phrase that follows "NCCL kernels" and says which kernels are counted.
        reason: Text that says why only the names are known, and how to record more.
    """
    is_nccl = np.array([naming.is_nccl(name) for name in kernels.names], bool)[kernels.name]
    return Limitation(
        f"NCCL kernels {condition}",
        f"{profile.source.path}: only their names are known; {reason}",
        int((is_bare & is_nccl).sum()),
    )
