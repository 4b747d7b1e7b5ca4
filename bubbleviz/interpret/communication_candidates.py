"""Communication candidates: kernels that count as compute, and whose names look like communication.

Which kernels communicate is a list of names that users extend; a library that the list lacks would
turn exposed communication into compute without a word.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.conventions.kinds import Kinds, communication_candidates
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import Limitation
from bubbleviz.model.profile import Activities
from bubbleviz.model.texts import one_line

#: Names that a limitation lists, and characters of each.
_LISTED, _NAME = 3, 60


def candidates_of(path: str, activities: Activities, kinds: Kinds) -> Iterator[Limitation]:
    """Yield a limitation where kernels that count as compute look like communication.

    Args:
        path: of the profile.
        activities: its kernels, then its copies.
        kinds: lists of what kernels are.
    """
    likely = communication_candidates(activities.names, kinds)
    if not likely.any():
        return
    kernels = slice(0, activities.kernels)
    name = activities.name_id[kernels].astype(np.int64)
    duration_ns = activities.end_ns[kernels] - activities.start_ns[kernels]
    total_ns = group_sum(name, len(activities.names), duration_ns)
    count = np.bincount(name, minlength=len(activities.names))
    rows = np.flatnonzero(likely & (count > 0))
    if len(rows) == 0:
        return
    longest = rows[np.argsort(-total_ns[rows], kind="stable")]
    listed = ", ".join(repr(one_line(activities.names[row], _NAME)) for row in longest[:_LISTED])
    more = f" and {len(rows) - _LISTED:,} more names" if len(rows) > _LISTED else ""
    yield Limitation(
        "kernels that look like communication",
        f"{path}: {int(total_ns[rows].sum()) / 1e6:,.3f} ms of {listed}{more} count as compute; if "
        "they communicate, list their names under communication in a TOML file, and give it with "
        "--convention",
        int(count[rows].sum()),
    )
