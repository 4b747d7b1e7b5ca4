"""The threads of a profile of XLA: lines of the host, and one for each device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.profile import PID_MASK
from bubbleviz.model.values import frozen
from bubbleviz.sources.in_memory import thread_numbers
from bubbleviz.sources.xla.planes import Planes

#: Devices are threads by numbers from here on, which no thread has.
_DEVICE_THREAD = 1 << 40
#: Name of the line of a thread that runs Python.
_PYTHON = "python"


@frozen
class PlaneThreads:
    """Threads of the profiled process.

    Attributes:
        process: that was profiled; 0 unknown.
        of_line: thread of each line of the host.
        of_device: thread that stands for each device, ascending.
    """

    process: int
    of_line: Ints
    of_device: Mapping[int, int]

    @staticmethod
    def of(planes: Planes, process: int) -> PlaneThreads:
        """Return the threads of planes, as nsys numbers them."""
        process &= PID_MASK
        lines, devices = _line_numbers(planes, process), _active_devices(planes)
        tids = np.concatenate((lines, _DEVICE_THREAD + devices))
        thread = thread_numbers(np.full(len(tids), process, np.int64), tids)
        of_device = zip(devices.tolist(), thread[len(lines) :].tolist(), strict=True)
        return PlaneThreads(process, thread[: len(lines)], dict(of_device))

    def of_devices(self, device: Codes) -> Ints:
        """Return the threads that stand for some devices."""
        numbers = np.array(list(self.of_device), np.int64)
        threads = np.array(list(self.of_device.values()), np.int64)
        at = np.searchsorted(numbers, device)
        return np.asarray(threads[at], np.int64)


def _active_devices(planes: Planes) -> Ints:
    """Return the numbers of all devices with events, ascending."""
    tables = (planes.streams, planes.ops, planes.transfers, planes.modules, planes.steps)
    numbers = distinct(*(table.device for table in tables)).astype(np.int64)
    active: Ints = numbers[numbers != NONE]
    return active


def _line_numbers(planes: Planes, process: int) -> Ints:
    """Return the numbers of threads of lines; the first Python thread is the process's main one.

    XLA numbers threads by an address, where the system gives the main thread the number of its
    process.
    """
    numbers = np.array([line.number for line in planes.lines], np.int64)
    python = [at for at, line in enumerate(planes.lines) if line.name == _PYTHON]
    if python and process not in numbers:
        numbers[python[0]] = process
    return numbers
