"""Devices that several files contain, because their process was captured several times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bubbleviz.model.numbering import Numbering


@dataclass(frozen=True)
class DeviceCapture:
    """A device in a profile.

    Attributes:
        host: Name of the host.
        pid: Process id.
        device_id: Device number within the process.
        span_ns: Start of the device's first work and end of its last work in UTC, or None if the
            profile does not record UTC or its host, or if the device ran no work.
    """

    host: str
    pid: int
    device_id: int
    span_ns: tuple[int, int] | None


def number_devices(captures: Sequence[DeviceCapture]) -> list[int]:
    """Number the distinct devices by first occurrence.

    Captures with equal host, process id and device number are captures of one device, unless two of
    them overlap in time. Containers may share a host name and number their processes separately, so
    overlapping captures are from different devices. A capture without a known time is a device of
    its own.

    Args:
        captures: The devices of all profiles.

    Returns:
        Number of the device of each capture.
    """
    rows_of_key = defaultdict[tuple[str, int, int], list[int]](list)
    for row, capture in enumerate(captures):
        if capture.span_ns is not None:
            rows_of_key[capture.host, capture.pid, capture.device_id].append(row)
    first_row = list(range(len(captures)))
    for rows in rows_of_key.values():
        spans = sorted(span for row in rows if (span := captures[row].span_ns) is not None)
        if all(earlier[1] <= later[0] for earlier, later in pairwise(spans)):
            for row in rows:
                first_row[row] = rows[0]
    devices = Numbering[int]()
    return [devices.number(row) for row in first_row]
