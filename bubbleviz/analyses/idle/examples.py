"""Examples: where the longest gap of an activity is, and what the host did around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.analyses.idle.attribution import AttributedIdle
from bubbleviz.analyses.idle.devices import DeviceTime
from bubbleviz.analyses.idle.evidence import IdleEvidence
from bubbleviz.analyses.idle.host_ranges import ON_DEVICE, names_around
from bubbleviz.analyses.idle.report import Example
from bubbleviz.analyses.idle.totals import step_at
from bubbleviz.analyses.idle.waits import COPY
from bubbleviz.conventions.host_activities import SHORT
from bubbleviz.model.columns import NONE

#: Of the ranges around an example, so many of the innermost are shown.
_WHERE = 6


class Examples:
    """Describes gaps of one device."""

    def __init__(
        self,
        device: DeviceTime,
        evidence: IdleEvidence,
        idle: AttributedIdle,
        others: Sequence[int],
    ) -> None:
        """Take a device.

        Args:
            device: whose gaps they are.
            evidence: for its idle time.
            idle: its idle time, attributed.
            others: threads to look at where nothing is recorded of the launching one.
        """
        self._device = device
        self._evidence = evidence
        self._idle = idle
        self._others = others

    def of(self, gap: int, activity: str) -> Example | None:
        """Return a gap of which an activity took a part; None of a kernel-to-kernel gap."""
        if activity == SHORT:
            return None
        evidence = self._evidence
        steps = evidence.steps[self._device.process]
        gaps = self._device.gaps
        start_ns, end_ns = int(gaps.start_ns[gap]), int(gaps.end_ns[gap])
        step = int(step_at(steps, np.array([start_ns]))[0])
        number = evidence.numbers.number(activity)
        return Example(
            start_ns=start_ns,
            end_ns=end_ns,
            before=self._work(int(gaps.before[gap])),
            after=self._work(int(gaps.after[gap])),
            step=None if step == NONE else steps.names[int(steps.name_id[step])],
            where=self._where(gap, self._middle_ns(gap, number)),
        )

    def _work(self, row: int) -> str:
        """Return the name of an activity of the device."""
        activities = self._evidence.profile.activities
        name = int(activities.name_id[row])
        return COPY if name == NONE else activities.names[name]

    def _where(self, gap: int, time_ns: int) -> tuple[str, ...]:
        """Return the ranges of the host around a time of a gap.

        Once the work after it is launched, the time of that call counts.
        """
        launches = self._evidence.launches[self._device.rank]
        thread = int(launches.thread[gap])
        if thread == NONE:
            return ()
        time_ns = min(time_ns, int(launches.call_start_ns[gap]))
        for candidate in (thread, *self._others):
            around = names_around(self._evidence.ranges, candidate, time_ns)
            names = tuple(name for name in around if name != ON_DEVICE)
            if names:
                return names[-_WHERE:]
        return ()

    def _middle_ns(self, gap: int, activity: int) -> int:
        """Return the middle of the longest piece of an activity in a gap."""
        idle = self._idle
        low, high = np.searchsorted(idle.gap, (gap, gap + 1)).tolist()
        start_ns, end_ns = idle.start_ns[low:high], idle.end_ns[low:high]
        length_ns = np.where(idle.activity[low:high] == activity, end_ns - start_ns, NONE)
        longest = int(length_ns.argmax())
        return int(start_ns[longest] + end_ns[longest]) // 2
