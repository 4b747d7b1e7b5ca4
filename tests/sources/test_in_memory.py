"""Device activities in memory, built from blocks of kernels."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model.profile import IMPOSSIBLE_NS, UNCORRELATED
from bubbleviz.sources.activities import ActivitiesBuilder

#: Kernels as (start, end, device, thread, correlation id, name).
#: Many times and ids are odd.
_KERNELS = st.tuples(
    st.sampled_from((1, 2, 5, 0, -3, 1 << 60)),
    st.sampled_from((5, 9, 0, 1 << 60)),
    st.sampled_from((0, 1, 1 << 21)),
    st.sampled_from((1 << 24, (2 << 24) + 7, -1)),
    st.sampled_from((0, 3, -1, UNCORRELATED, 1 << 40)),
    st.sampled_from((7, -1, 1 << 30)),
)


@given(st.lists(st.lists(_KERNELS, max_size=3), max_size=4))
def test_kernels_with_possible_times_are_kept(blocks: list[list[tuple[int, ...]]]) -> None:
    kernels = [kernel for block in blocks for kernel in block]
    timed = [kernel for kernel in kernels if kernel[:2] != (0, 0)]
    possible = [
        (start, end, *rest)
        for start, end, *rest in timed
        if -IMPOSSIBLE_NS < start <= end < IMPOSSIBLE_NS
    ]
    builder = ActivitiesBuilder(len(kernels))
    for block in blocks:
        builder.add_kernels(np.array(block, np.int64).reshape(-1, 6).T.copy())
    activities = builder.build(lambda ids: tuple(map(str, ids.tolist())))

    ranks = activities.ranks[activities.rank].reshape(-1, 2).tolist()
    names = [activities.names[name] for name in activities.name_id.tolist()]
    ids = activities.correlation_id.tolist()
    times = activities.start_ns.tolist(), activities.end_ns.tolist()
    rows = [(*row[:2], *row[2], *row[3:]) for row in zip(*times, ranks, ids, names, strict=True)]
    expected_rows = [
        (
            start,
            end,
            thread >> 24,
            device,
            id_ if 0 <= id_ < UNCORRELATED else UNCORRELATED,
            str(name),
        )
        for start, end, device, thread, id_, name in possible
    ]
    # Rows are sorted by rank.
    # The kernels of a rank keep their order.
    assert rows == sorted(expected_rows, key=lambda row: row[2:4])
    assert builder.untimed["kernels"] == len(kernels) - len(timed)
    assert builder.impossible["kernels"] == len(timed) - len(possible)
