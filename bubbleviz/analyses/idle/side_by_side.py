"""Devices side by side: what each spent its span on, in shares that one can compare."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bubbleviz.analyses.idle.report import BUSY, IdleReport
from bubbleviz.model.values import frozen

Shares = npt.NDArray[np.float64]
#: The name of what is left over.
REST = "everything else"


@frozen
class DeviceShares:
    """What devices spent their spans on.

    Attributes:
        ranks: index of each device in the report's ranks; hosts and devices with a single kernel or
            copy are left out. Shape (devices,), in the report's order.
        names: ``compute``, ``communication`` and ``copies`` (:data:`BUSY`), then the activities of
            hosts that take most of all devices' idle time, then :data:`REST` if there are more.
        shares: of the device's span, 0 to 1; each row adds up to 1. Shape (devices, names).
    """

    ranks: tuple[int, ...]
    names: tuple[str, ...]
    shares: Shares

    @property
    def idle(self) -> Shares:
        """The idle share of each device; shape (devices,)."""
        return np.asarray(self.shares[:, len(BUSY) :].sum(axis=1), np.float64)


def device_shares(report: IdleReport, activities: int) -> DeviceShares:
    """Return what each device spent its span on.

    Args:
        report: of some profiles.
        activities: how many activities of hosts are named, at most.
    """
    shown = [at for at, rank in enumerate(report.ranks) if rank.duty_cycle is not None]
    main = tuple(total.activity for total in report.activities[:activities])
    names = (*BUSY, *main, *([REST] if len(report.activities) > len(main) else ()))
    spent_ns = np.zeros((len(shown), len(names)), np.int64)
    for row, at in enumerate(shown):
        spent_ns[row] = report.ranks[at].strip.gathered(names).sum(axis=1)
    return DeviceShares(tuple(shown), names, spent_ns / spent_ns.sum(axis=1, keepdims=True))
