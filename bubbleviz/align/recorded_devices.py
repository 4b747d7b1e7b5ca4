"""Recorded devices of all profiles, with times on the clock of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.align.profile_clocks import ProfileClock
from bubbleviz.interpret.recording import Recording
from bubbleviz.interpret.start_skew import RecordedDevice


def convert_to_run_clock(
    recordings: Sequence[Recording], clocks: Sequence[ProfileClock], *, is_contradicted: bool
) -> Iterator[RecordedDevice]:
    """Yield the recorded devices of all profiles, with times on the clock of the run.

    If nothing aligns the clock of a profile, its times are converted to UTC if that is known. They
    count as comparable unless operations contradict the clocks.

    Args:
        recordings: All recordings of the run.
        clocks: Conversion of the clock of each recording to the clock of the run.
        is_contradicted: Whether operations contradict the clocks.
    """
    for recording, clock in zip(recordings, clocks, strict=True):
        utc_ns = recording.source.session_utc_ns
        is_aligned = clock.uncertainty_ns is not None
        for device in recording.recorded:
            begin_ns = device.begin_ns - (utc_ns or 0)
            aligned_ns = int(clock.convert(np.array([begin_ns], np.int64))[0])
            has_common_clock = is_aligned or (utc_ns is not None and not is_contradicted)
            yield device.shift(aligned_ns - device.begin_ns, has_common_clock=has_common_clock)
