"""Break files of a planted run: some are gone, some damaged; a clock is off by minutes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

#: ``missing``: 1 % of the files are gone; ``damaged``: 1 % are cut, garbage or empty; ``clock``:
#: one server's clock is off by three minutes.
BREAKAGES = ("missing", "damaged", "clock")
_SHARE = 0.01


def damage(files: Sequence[Path], how: Collection[str], random: np.random.Generator) -> None:
    """Break some files of a run, other ones in each way."""
    count = max(1, round(_SHARE * len(files)))
    chosen = [files[i] for i in random.permutation(len(files)).tolist()]
    if "missing" in how:
        for path in chosen[:count]:
            path.unlink()
    if "damaged" in how:
        for number, path in enumerate(chosen[count : 2 * count]):
            data = path.read_bytes()
            broken = (data[: len(data) // 2], random.bytes(len(data)), b"")
            path.write_bytes(broken[number % len(broken)])
