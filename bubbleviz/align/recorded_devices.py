"""Devices of all profiles with their times on the clock of the run, to compare their recordings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.align.offsets import ProfileClock
from bubbleviz.interpret.recording import Recording
from bubbleviz.interpret.start_skew import RecordedDevice


def devices_on_clocks(
    recordings: Sequence[Recording], clocks: Sequence[ProfileClock]
) -> Iterator[RecordedDevice]:
    """Yield when the recording of each device began, on the clock of the run.

    Profiles whose clock nothing aligns are compared on UTC, if that is known.

    Args:
        recordings: All recordings of the run.
        clocks: The clock of each on the clock of the run.
    """
    for recording, clock in zip(recordings, clocks, strict=True):
        utc_ns = recording.source.session_utc_ns
        is_aligned = clock.uncertainty_ns is not None
        for device in recording.recorded:
            begin_ns = device.begin_ns - (utc_ns or 0)
            aligned_ns = int(clock.of(np.array([begin_ns], np.int64))[0])
            has_common_clock = is_aligned or utc_ns is not None
            yield device.shift(aligned_ns - device.begin_ns, has_common_clock=has_common_clock)
