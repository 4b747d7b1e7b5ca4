"""Columns: what a recording holds, iteration by iteration, before it means anything."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Bools, Ints, Table
from bubbleviz.model.values import frozen


@frozen
class RecordedIterations(Table):
    """Iterations of one rank, in the order in which they were written.

    Attributes:
        number: that a range gave it; -1 none.
        start_ns: when it began, on the host's monotonic clock, as all times.
        end_ns: when its range was left.
        after_gap: whether iterations before it are not recorded, or are damaged.
        lost: operations that were recorded too late to be written.
        monotonic_ns: when it was written.
        utc_ns: UTC at that moment.
        half_width_ns: how far this pair of clocks can be off.
        device_ns: the host's clock less the device's; 0 without a device.
    """

    number: Ints
    start_ns: Ints
    end_ns: Ints
    after_gap: Bools
    lost: Ints
    monotonic_ns: Ints
    utc_ns: Ints
    half_width_ns: Ints
    device_ns: Ints


@frozen
class RecordedOperations(Table):
    """Operations of these iterations, in the order in which they ended.

    Attributes:
        iteration: row of the iterations.
        name_id: number of the name.
        thread: number of the thread in its process.
        launches: whether it only started transfers.
        host_start_ns: when the host entered its range.
        host_end_ns: when it left that.
        start_ns: when the device began; -1 where it has no times, or ran on the host.
        end_ns: when it ended, likewise.
        times_lost: whether it has no times though it ran on a device.
    """

    iteration: Ints
    name_id: Ints
    thread: Ints
    launches: Bools
    host_start_ns: Ints
    host_end_ns: Ints
    start_ns: Ints
    end_ns: Ints
    times_lost: Bools


@frozen
class Stretch:
    """Whole iterations that follow one another in a file.

    Attributes:
        iterations: these.
        operations: of these.
    """

    iterations: RecordedIterations
    operations: RecordedOperations


def joined_stretches(stretches: list[Stretch]) -> Stretch:
    """Return stretches (at least one) as one."""
    firsts = np.cumsum([0, *(len(stretch.iterations) for stretch in stretches)]).tolist()

    def column(table: str, name: str) -> Ints:
        parts = [getattr(getattr(stretch, table), name) for stretch in stretches]
        if name == "iteration":
            parts = [part + first for part, first in zip(parts, firsts, strict=False)]
        return np.concatenate(parts)

    return Stretch(
        RecordedIterations(*(column("iterations", n) for n in RecordedIterations.column_names())),  # type: ignore[arg-type]  # columns keep their types
        RecordedOperations(*(column("operations", n) for n in RecordedOperations.column_names())),  # type: ignore[arg-type]  # likewise
    )
