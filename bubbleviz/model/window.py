"""A window: the part of a run to analyze, such as ``iteration:5-8`` or ``time:1.5s-3s``.

An iteration window selects iterations by their names in the report. A time window contains the
iterations that both start and end in the window. Times are relative to the start of the first
profile's capture, as in the report and in Nsight Systems::

    time:2s-5s        ├──────────────┤
    iterations   ├─ 3 ─┤├─ 4 ─┤├─ 5 ─┤├─ 6 ─┤        4 and 5
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.durations import TIME_PATTERN, convert_to_ns

_ITERATION_PATTERN = re.compile(r"iteration:\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?")
_TIME_PATTERN = re.compile(rf"time:(?:{TIME_PATTERN})?-(?:{TIME_PATTERN})?")
_FORM = "must have the form iteration:5, iteration:5-8 or time:1.5s-3s (units: ns, us, ms, s)"
#: A time in ns that is later than the end of any capture.
FOREVER_NS = 1 << 62


@dataclass(frozen=True)
class Window:
    """A part of a run, given either by iteration numbers or by times.

    Attributes:
        text: The window as entered by the user, such as ``iteration:5-8``.
        iterations: Numbers of the first and last iteration, inclusive, or None for a time window.
        times_ns: Start and exclusive end on the report's clock, or None for an iteration window.
    """

    text: str
    iterations: tuple[int, int] | None = None
    times_ns: tuple[int, int] | None = None

    def mask_iterations(self, names: Sequence[str], start_ns: Ints, end_ns: Ints) -> Bools:
        """Return a mask of the iterations inside the window, shape (iterations,).

        An iteration window contains the iterations from the first to the last number. A time window
        contains the iterations that neither start before the window nor end after it.

        Args:
            names: Name of each iteration. An iteration window selects only names that are
                decimal numbers.
            start_ns: Earliest start of each iteration on any rank, on the report's clock.
            end_ns: Latest end of each iteration on any rank. If an iteration has no work, its end
                is not after its start, and no time window contains the iteration.

        Raises:
            InputError: No iteration is inside the window.
        """
        if self.iterations is not None:
            first, last = self.iterations
            number = [int(name) if name.isdecimal() else -1 for name in names]
            is_inside = np.array([first <= n <= last for n in number], bool)
        else:
            since_ns, until_ns = self.times_ns or (0, FOREVER_NS)
            is_inside = (start_ns >= since_ns) & (end_ns <= until_ns) & (end_ns > start_ns)
        if not is_inside.any():
            raise InputError(
                f"--window {self.text}: {self._explain_empty(names, start_ns, end_ns)}"
            )
        return np.asarray(is_inside, bool)

    def mask_overlapping(self, start_ns: Ints, end_ns: Ints) -> Bools:
        """Return a mask of the iterations that contain work and overlap the time window.

        For an iteration window, which has no times, the mask is all False.

        Args:
            start_ns: Earliest start of each iteration on any rank, on the report's clock.
            end_ns: Latest end of each iteration on any rank.
        """
        if self.times_ns is None:
            return np.zeros(len(start_ns), bool)
        since_ns, until_ns = self.times_ns
        return np.asarray((end_ns > since_ns) & (start_ns < until_ns) & (end_ns > start_ns), bool)

    def _explain_empty(self, names: Sequence[str], start_ns: Ints, end_ns: Ints) -> str:
        """Explain why no iteration is inside the window, and say which iterations were captured."""
        if not names:
            return "the capture contains no iterations"
        captured = f"iteration {names[0]}"
        if len(names) > 1:
            captured = f"iterations {names[0]} to {names[-1]}"
        if self.iterations is not None:
            return f"there is no such iteration; the capture contains {captured}"
        has_work = end_ns > start_ns
        low = int(start_ns[has_work].min(initial=FOREVER_NS)) / 1e9
        high = int(end_ns[has_work].max(initial=0)) / 1e9
        return (
            f"no complete iteration lies in this window; the capture contains {captured}, from "
            f"{low:.6f} s to {high:.6f} s"
        )


def parse_window(text: str) -> Window:
    """Parse a window: ``iteration:5-8``, ``iteration:5`` or ``time:1.5s-3s``.

    The start or the end of a time window may be left out, as in ``time:2s-``. The window then
    begins at time 0 or never ends.

    Raises:
        UsageError: The text is not a window, or the window ends before it begins.
    """
    quoted = repr(text if len(text) <= 60 else f"{text[:59]}…")
    if iteration_match := _ITERATION_PATTERN.fullmatch(text):
        first, last = int(iteration_match[1]), int(iteration_match[2] or iteration_match[1])
        window = Window(text, iterations=(first, last))
    elif time_match := _TIME_PATTERN.fullmatch(text):
        first = _parse_ns(time_match[1], time_match[2], 0)
        last = _parse_ns(time_match[3], time_match[4], FOREVER_NS) - 1
        window = Window(text, times_ns=(first, last + 1))
    else:
        raise UsageError(f"--window {quoted}: {_FORM}")
    if last < first:
        raise UsageError(f"--window {quoted}: the window ends before it begins")
    return window


def _parse_ns(number: str | None, unit: str | None, default: int) -> int:
    """Return a time in ns, limited to ``FOREVER_NS``, or ``default`` if there is no number."""
    if number is None or unit is None:
        return default
    return min(convert_to_ns(number, unit), FOREVER_NS)
