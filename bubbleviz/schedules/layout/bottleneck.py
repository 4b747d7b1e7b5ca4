"""The longest device: with one virtual stage a device, a bound that looks at all of them at once.

Where each device has one stage, the path through all that it runs takes every stage before it
equally often, and none behind it. So it depends on nothing but the device's own layers::

    head and tail of layers 0 .. i-1  +  m times the work of layers i .. j-1

and the layout whose longest such path is the shortest is found by dynamic programming.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Floats, Ints
from bubbleviz.schedules.layout.bounds import Sums
from bubbleviz.schedules.layout.recurrence import Path


class Bottleneck:
    """The shortest longest path of what is left, by stage and its first layer.

    Args:
        lengths: path of each stage that holds layers i to j-1; shape (S, L + 1, L + 1).

    Attributes:
        rest: by first layer; shape (S + 1, L + 1).
    """

    def __init__(self, lengths: Floats) -> None:
        self.lengths = lengths
        stages, count = lengths.shape[0], lengths.shape[1] - 1
        self.rest = np.full((stages + 1, count + 1), np.inf)
        self.rest[stages, count] = 0.0
        for stage in reversed(range(stages)):
            longest = np.maximum(lengths[stage], self.rest[stage + 1][None, :])
            self.rest[stage] = longest.min(axis=1)

    def layout(self) -> Ints:
        """Return the layout whose longest path is the shortest."""
        bounds = [0]
        for stage, lengths in enumerate(self.lengths):
            longest = np.maximum(lengths[bounds[-1]], self.rest[stage + 1])
            bounds.append(int(longest.argmin()))
        return np.array(bounds, np.int64)


def bottleneck_of(placement: tuple[int, ...], paths: list[Path], sums: Sums) -> Bottleneck | None:
    """Return the bottleneck of a plan, None where paths depend on more than a device's layers.

    Args:
        placement: device of each virtual stage.
        paths: one through each device, by device.
        sums: whose first sums these are.
    """
    stages = len(placement)
    if placement != tuple(range(stages)) or len(paths) != stages:
        return None
    for stage, path in enumerate(paths):
        before, behind = path.factors[:, :stage], path.factors[:, stage + 1 :]
        if (before != before[:, :1]).any() or behind.any() or path.crossed[:, stage:].any():
            return None
    lengths = np.full((stages, sums.count + 1, sums.count + 1), np.inf)
    for stage in range(stages):
        up_to = sums.up_to[stage]
        own = up_to[stage][None, :] - up_to[stage][:, None]
        # Each stage before takes the same of its layers; of what is crossed counts the cheapest.
        lengths[stage] = own
        if stage:
            into = sums.into[stage][1 : stage + 1, 1:-1].min(axis=1).sum()
            lengths[stage] += up_to[0][:, None] + into
    place = np.arange(sums.count + 1)
    lengths[:, place[:, None] >= place[None, :]] = np.inf
    return Bottleneck(lengths)
