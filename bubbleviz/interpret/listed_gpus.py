"""GPUs that profiles list, and which of them did no work in any profile of the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bubbleviz.model.limitations import Limitation, LimitationKind, merge_limitations
from bubbleviz.model.profile import Device, Profile, get_pid
from bubbleviz.model.texts import format_count, list_and_count

#: Format of the profiles whose GPUs are compared. Others list GPUs that the job does not use.
_FORMAT = "nsys"
#: Maximum number of GPUs that a limitation names.
_MAX_NAMED = 16


@dataclass(frozen=True)
class ListedGpu:
    """A GPU that a profile lists.

    Attributes:
        host: Hostname of the profile.
        identity: UUID or PCI address of the GPU, or else its device number.
        device_id: Device number of the GPU.
        is_numbered_by_process: Whether the profile records which GPU each process calls by this
            number.
        processes: Process ids of the processes that ran work on the GPU.
    """

    host: str
    identity: str
    device_id: int
    is_numbered_by_process: bool
    processes: frozenset[int]


def list_gpus(profile: Profile) -> tuple[ListedGpu, ...]:
    """Return the GPUs that an nsys profile lists, or () for other formats."""
    if profile.source.format != _FORMAT:
        return ()
    processes: dict[int, set[int]] = {}
    for process, device in profile.activities.ranks.tolist():
        processes.setdefault(device, set()).add(get_pid(process))
    listed = [
        _list_gpu(
            profile.source.host,
            device,
            frozenset(
                pid
                for pid in processes.get(device.device_id, ())
                if device.pid is None or device.pid == pid
            ),
        )
        for device in profile.devices
    ]
    hidden = [_list_gpu(profile.source.host, gpu, frozenset()) for gpu in profile.hidden_gpus]
    return (*listed, *hidden)


def _list_gpu(host: str, device: Device, processes: frozenset[int]) -> ListedGpu:
    """Return the entry of a GPU on which the given processes ran work."""
    return ListedGpu(
        host=host,
        identity=device.uuid or device.pci or str(device.device_id),
        device_id=device.device_id,
        is_numbered_by_process=device.pid is not None,
        processes=processes,
    )


def find_gpus_without_work(listed: Iterable[ListedGpu]) -> tuple[Limitation, ...]:
    """Return one limitation per host with GPUs that did no work in any profile.

    The limitations of more than a few hosts are merged into one.

    A host is left out if several processes ran work on the same device number and the profiles do
    not record which GPU each process means. ``CUDA_VISIBLE_DEVICES`` may then have renumbered the
    GPUs.

    Args:
        listed: GPUs listed by all profiles of a run.
    """
    by_host: dict[str, dict[str, list[ListedGpu]]] = {}
    for gpu in listed:
        by_host.setdefault(gpu.host, {}).setdefault(gpu.identity, []).append(gpu)
    notes = (_describe_host(host, [*gpus.values()]) for host, gpus in sorted(by_host.items()))
    return tuple(merge_limitations(note for note in notes if note is not None))


def _describe_host(host: str, gpus: list[list[ListedGpu]]) -> Limitation | None:
    """Return the limitation for a host, or None if all of its GPUs did work.

    Args:
        host: Hostname.
        gpus: For each GPU, its entries in the profiles.
    """
    unused = [entries[0].device_id for entries in gpus if not any(e.processes for e in entries)]
    is_ambiguous = any(
        not entries[0].is_numbered_by_process
        and len(frozenset().union(*(entry.processes for entry in entries))) > 1
        for entries in gpus
    )
    if not unused or is_ambiguous:
        return None
    numbers = list_and_count([str(number) for number in sorted(unused)], _MAX_NAMED)
    noun = "GPU" if len(unused) == 1 else "GPUs"
    reason = (
        f"{host} lists {format_count(len(gpus), 'GPU')}, and no kernel or copy was recorded on "
        f"{noun} {numbers}"
    )
    return Limitation("GPUs without work", reason, kind=LimitationKind.DETAILS, hosts=(host,))
