"""Place: which process of which run this is, as far as its environment says."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from bubbleviz.annotate.distributed import numbers_in_torch
from bubbleviz.annotate.recording.blocks import ClockPair
from bubbleviz.recording_layout import NONE

#: Variables of launchers: torchrun and its kin, Slurm, Open MPI, MPICH.
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
#: Times that both clocks are read; the closest pair counts.
_READINGS = 3


class ProcessPlace(NamedTuple):
    """A process of a run.

    Attributes:
        rank: its number.
        world_size: how many there are; -1 unknown.
        host: hostname.
        run: what the launcher calls the run; "" for nothing.
    """

    rank: int
    world_size: int
    host: str
    run: str


def place_of_process(given: tuple[int, int] | None = None) -> ProcessPlace:
    """Return the place of this process: as torch.distributed knows it, else its launcher.

    Args:
        given: rank and world size, where the script says them.
    """
    launched = _variable(_RANK), _variable(_WORLD_SIZE)
    rank, world_size = given or numbers_in_torch() or launched
    elastic = os.environ.get("TORCHELASTIC_RUN_ID", "")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    run = f"{elastic}/{restart}" if elastic else os.environ.get("SLURM_JOB_ID", "")
    return ProcessPlace(max(rank, 0), world_size, socket.gethostname(), run)


def clock_pair(
    monotonic: Callable[[], int] = time.monotonic_ns, utc: Callable[[], int] = time.time_ns
) -> ClockPair:
    """Return UTC and the monotonic clock at one moment: the closest of a few readings.

    ::

        monotonic  before ├────────┤ after
        UTC                   │
    """
    readings = []
    for _ in range(_READINGS):
        before, now, after = monotonic(), utc(), monotonic()
        readings.append((after - before, before, now))
    width, before, now = min(readings)
    return ClockPair(before + width // 2, now, width - width // 2)


def _variable(names: tuple[str, ...]) -> int:
    """Return the first of some variables that holds a number; -1 for none."""
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), NONE)
