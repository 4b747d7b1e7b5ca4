"""Alignment of NCCL's event files to profiles: clocks, and matching compared with brute force."""

from __future__ import annotations

import json
import random
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl.communications import Timing
from bubbleviz.analyses.nccl.kernel_matching import GPU_TOLERANCE_NS, match_starts
from bubbleviz.analyses.nccl.kernels import Starts
from bubbleviz.analyses.nccl.outputs import as_json, format_operations_csv
from bubbleviz.errors import BubblevizError
from tests.support.nccl_event_files import Op, Plugin, format_line, make_proxy_file
from tests.support.nccl_runs import ALLREDUCE, EXACT, SENDRECV, list_columns, write_file
from tests.support.notes import list_limitation_subjects
from tests.support.nsys_exports import C, ExportRows, K, R, write_profile

# Event files together with a profile.


def recorded(
    folder: Path,
    starts: list[int],
    *,
    ahead: int,
    drift: float = 0.0,
    jitter: int = 0,
    missing: frozenset[int] = frozenset(),
    unseen: frozenset[int] = frozenset(),
    gpu_clock: bool = True,
) -> tuple[str, Path]:
    """Write the events of all-reduces, and a profile whose clock is behind by ``ahead`` ns.

    Kernels begin up to ``jitter`` ns before the work of their channels. Operations in ``missing``
    have no event, and operations in ``unseen`` have no kernel. Events contain GPU times if
    ``gpu_clock`` is set.
    """
    randomly = random.Random(5)
    file = Plugin(pid=100, begin=123_000, gpu_clock=gpu_clock)
    rows = ExportRows(pid=100)
    for number, start in enumerate(starts):
        length = 100_000 + 500 * (number % 7)
        if number not in missing:
            file.add(Op("AllReduce", start, start + length, sequence=number))
        event_ns = start - ahead + round(start * drift) - randomly.randint(0, jitter)
        if number not in unseen:
            rows.launch(event_ns - 400, event_ns, event_ns + length + 3_000, ALLREDUCE, took=100)
            rows.add_range(event_ns - 500, event_ns - 200, "ncclAllReduce", registered=True)
    trace = write_file(folder, "trace-host-1.txt", file.text())
    return trace, rows.write(folder)


def uneven(count: int, seed: int = 1, step: int = 1_000_000) -> list[int]:
    randomly = random.Random(seed)
    starts = [200_000_000]
    for _ in range(count - 1):
        starts.append(starts[-1] + step + randomly.randint(0, step))
    return starts


@pytest.mark.parametrize(("jitter", "n_lost"), [(0, 0), (4_000, 0), (4_000, 30)])
def test_the_offset_of_planted_clocks_is_found(tmp_path: Path, jitter: int, n_lost: int) -> None:
    starts = uneven(150)
    randomly = random.Random(9)
    missing = frozenset(randomly.sample(range(150), n_lost))
    unseen = frozenset(randomly.sample(range(150), n_lost))
    paths = recorded(
        tmp_path, starts, ahead=77_000_000, jitter=jitter, missing=missing, unseen=unseen
    )
    communication = measure_communication([str(path) for path in paths])
    matched = set(range(150)) - missing - unseen
    clock = communication.clocks[-1]

    assert (clock.aligned_by.value, clock.matched, clock.of) == (
        "kernels",
        len(matched),
        150 - n_lost,
    )
    assert clock.median_ns is not None
    assert clock.largest_ns is not None
    assert clock.median_ns <= jitter
    assert clock.largest_ns <= 2 * jitter
    event_starts_ns = communication.operations.start_ns[: 150 - n_lost]
    true = np.array([start - 77_000_000 for n, start in enumerate(starts) if n not in missing])
    assert np.abs(event_starts_ns - true).max() <= jitter + 1
    # A kernel and its event form one row.
    # Kernels without an event, and events without a kernel, have separate rows.
    assert len(communication.operations) == 150 - n_lost + len(missing - unseen)


def test_a_drift_is_followed_and_the_host_clock_replaces_a_missing_gpu_clock(
    tmp_path: Path,
) -> None:
    starts = uneven(400, step=20_000_000)
    paths = recorded(tmp_path, starts, ahead=5_000_000, drift=30e-6, jitter=2_000)
    clock = measure_communication([str(path) for path in paths]).clocks[-1]
    assert (clock.matched, clock.of) == (400, 400)
    assert clock.drift_ppm == pytest.approx(30, abs=0.1)

    paths = recorded(tmp_path, uneven(40), ahead=9_000_000, gpu_clock=False)
    communication = measure_communication([str(path) for path in paths])

    assert (communication.clocks[-1].aligned_by.value, communication.clocks[-1].matched) == (
        "kernels",
        40,
    )
    assert {Timing(timing) for (timing,) in list_columns(communication, "timing")} == {Timing.HOST}


def test_evenly_spaced_operations_leave_the_offset_ambiguous(tmp_path: Path) -> None:
    """Half of the kernels have no event and all kernels are equal, so the offset is ambiguous."""
    starts = [200_000_000 + 7_000_000 * n for n in range(40)]
    trace, path = recorded(tmp_path, starts, ahead=1_000, missing=frozenset(range(20)))
    communication = measure_communication([trace, str(path)])
    assert "operations that match kernels at several clock offsets" in list_limitation_subjects(
        communication
    )
    assert communication.clocks[-1].aligned_by.value == "unaligned"
    assert len(communication.operations) == 20 + 40


def test_the_proxy_profiler_is_matched_by_the_start_of_its_transfers(tmp_path: Path) -> None:
    starts = uneven(60)
    transfers = [
        ("Recv", 1, n, (s, s + 5_000, s + 9_000, s + 9_500, s + 9_900))
        for n, s in enumerate(starts)
    ]
    trace = write_file(tmp_path, "proxy.json", make_proxy_file(transfers))
    kernels = [K(s + 50_000_000, s + 50_020_000, n, SENDRECV) for n, s in enumerate(starts)]
    calls = [C(s + 49_999_000, s + 49_999_100, n) for n, s in enumerate(starts)]
    path = write_profile(tmp_path, kernels, calls, [R(0, 1, "F0")])
    communication = measure_communication([trace, str(path)])

    assert (communication.clocks[-1].aligned_by.value, communication.clocks[-1].matched) == (
        "kernels",
        60,
    )
    assert communication.operations.start_ns[:60].tolist() == [s + 50_000_000 for s in starts]
    # Proxy events are not kernels, so the kernels of the profile are kept.
    assert len(communication.operations) == 120


def test_a_host_in_a_file_name_distinguishes_processes_with_equal_ids(tmp_path: Path) -> None:
    """Two hosts use the same process id and both profiles fit. File names assign the hosts."""
    starts, paths = uneven(30), []
    for host in ("b", "a"):
        file = Plugin(pid=1, lag=EXACT)
        rows = ExportRows()
        for n, start in enumerate(starts):
            rank = 1 if host == "b" else 0
            file.add(Op("AllReduce", start, start + 100_000, rank, sequence=n))
            rows.launch(start - 400, start, start + 100_000, ALLREDUCE, took=100)
            rows.add_range(start - 500, start - 200, "ncclAllReduce")
        paths.append(write_file(tmp_path, f"trace-{host}-9.txt", file.text()))
        paths.append(str(rows.write(tmp_path, hostname=host, name=f"node-{host}.sqlite")))
    communication = measure_communication(paths)
    first = {
        int(k) // 30
        for (k, source) in list_columns(communication, "kernel", "source")
        if source == 0
    }

    # The first profile belongs to host b, so its kernels come first.
    assert first == {0}
    assert [
        clock.matched for clock in communication.clocks if clock.aligned_by.value == "kernels"
    ] == [30, 30]


@pytest.mark.parametrize(
    ("host", "second", "aligned_by", "starts_ns"),
    [
        # Another session of the same machine is aligned by the steady clock.
        # NTP may change UTC in the meantime.
        ("a", (2_500_000_000, 3_000_000_000), "reference", 2_000_000_000),
        # The steady clock of this session began a day later.
        # It is another machine, or another boot of the machine with this name.
        ("a", (2_000_000_000, 900_000_000_000_000), "utc", 1_000_000_000),
        ("b", (2_000_000_000, 3_000_000_000), "utc", 1_000_000_000),
        ("a", (None, None), "unaligned", 0),
    ],
)
def test_profiles_share_a_clock_as_in_other_commands(
    tmp_path: Path,
    host: str,
    second: tuple[int | None, int | None],
    aligned_by: str,
    starts_ns: int,
) -> None:
    """Equal host names with different boot times belong to two machines."""
    paths, steady_ns = [], 1_000_000_000
    for number, (name, times) in enumerate((("a", (steady_ns, steady_ns)), (host, second)), 1):
        path = write_profile(
            tmp_path,
            [K(1_000, 2_000, 1, ALLREDUCE, pid=number)],
            [C(500, 600, 1, pid=number)],
            [R(0, 5, "F0")],
            hostname=name,
            name=f"{number}.sqlite",
        )
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("ALTER TABLE TARGET_INFO_SESSION_START_TIME ADD COLUMN systemClockNs")
            started = "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = ?, systemClockNs = ?"
            db.execute(started, times)
        paths.append(str(path))
    communication = measure_communication(paths)

    assert [clock.aligned_by.value for clock in communication.clocks] == ["reference", aligned_by]
    assert list_columns(communication, "start_ns") == [(1_000,), (1_000 + starts_ns,)]


PLANTED = "".join(
    [
        *Plugin().lines,
        format_line("AllReduce", "COLL", "b", 0, 1, 5_000, '"CommHash": 1, "Rank": 0'),
    ]
) + format_line("KernelCh", "GPU", "b", 0, 1, 6_000, '"StartGpuClk": 5, "StopGpuClk": 9')


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(PLANTED)),
            st.integers(0, 8),
            st.sampled_from(
                [*"{}0\0", '"', "nan", "-1", "1e400", "9" * 30, "null", "[]", "{}", "1e12"]
            ),
        ),
        max_size=6,
    )
)
def test_any_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int, str]]
) -> None:
    text = PLANTED
    for position, length, piece in edits:
        text = text[:position] + piece + text[position + length :]
    path = write_file(tmp_path_factory.getbasetemp(), "damaged.txt", text)
    try:
        communication = measure_communication(path)
    except BubblevizError:
        return
    json.loads(as_json(communication))
    assert format_operations_csv(communication).count("\n") == len(communication.operations) + 1


# Tests of the matching algorithm.


def test_matching_many_takes_little_memory() -> None:
    """An array of all differences between a block and the kernels would take 100 MB per column."""
    randomly = np.random.default_rng(1)
    starts = np.cumsum(randomly.integers(100_000, 2_000_000, 200_000))
    none = np.full(len(starts), -1, np.int64)
    kept_index = np.sort(randomly.choice(len(starts), 1_000, replace=False))
    tracemalloc.start()
    match = match_starts(
        Starts(starts[kept_index] + 10**15, none[kept_index], none[kept_index]),
        Starts(starts, none, none),
        GPU_TOLERANCE_NS,
    )
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert match is not None
    assert match.kernel.tolist() == kept_index.tolist()
    assert peak_bytes < 64 << 20
