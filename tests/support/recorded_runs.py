"""Records synthetic runs with the recorder of ``bubbleviz.annotate``, at known times."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bubbleviz.annotate.ranges import format_name
from bubbleviz.annotate.recorder import Recorder
from tests.planting.truth import TrueOperation, Truth

#: UTC and the monotonic clock of a host at true time 0, in ns.
UTC_NS, UPTIME_NS = 1_760_000_000_000_000_000, 5_000_000_000_000


class Clock:
    """Clocks of a host, which are set by a test.

    Args:
        error_ns: Error of the host's UTC clock, in ns.
        uptime_ns: Monotonic clock of the host at true time 0, in ns.
    """

    def __init__(self, error_ns: int = 0, uptime_ns: int = UPTIME_NS) -> None:
        self.now_ns = 0
        self.error_ns, self._uptime_ns = error_ns, uptime_ns

    def monotonic(self) -> int:
        """Return the time since the host was started, in ns."""
        return self.now_ns + self._uptime_ns

    def utc(self) -> int:
        """Return the UTC clock of the host, in ns since 1970."""
        return self.now_ns + UTC_NS + self.error_ns


def get_range_name(operation: TrueOperation) -> str:
    """Return the range name that ``annotate`` gives to an operation."""
    if operation.phase == "Optimizer":
        return format_name("Optimizer")
    return format_name(operation.phase, operation.microbatch, None, operation.virtual_stage)


def record_iteration(
    recorder: Recorder,
    clock: Clock,
    operations: Sequence[TrueOperation],
    number: int | None,
    later_ns: int = 0,
) -> None:
    """Record the operations of one rank and iteration.

    Args:
        recorder: Recorder of the rank.
        clock: Clock of the host, which the recorder reads.
        operations: Operations with their true times, in any order.
        number: Number of the iteration, or None to open no range for it.
        later_ns: Offset added to the times.
    """
    spans = sorted((*op.span, get_range_name(op)) for op in operations if op.span is not None)
    clock.now_ns = spans[0][0] + later_ns
    around = None if number is None else recorder.open("", iteration=number)
    for start_ns, end_ns, name in spans:
        clock.now_ns = start_ns + later_ns
        opened = recorder.open(name)
        clock.now_ns = end_ns + later_ns
        recorder.close(opened)
    recorder.close(around)


def record_rank(
    recorder: Recorder,
    clock: Clock,
    operations: Sequence[TrueOperation],
    number_of: Callable[[int], int | None] = lambda iteration: iteration,
) -> None:
    """Record a rank's operations iteration by iteration, and stop the recorder.

    ``number_of`` returns the number of an iteration, or None if no range names it.
    """
    ran = sorted((o for o in operations if o.span), key=lambda o: o.start_ns or 0)
    for iteration, operations_of_iteration in itertools.groupby(
        ran, key=lambda operation: operation.iteration
    ):
        record_iteration(recorder, clock, list(operations_of_iteration), number_of(iteration))
    recorder.stop()


def record_run(
    truth: Truth,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    number_of: Callable[[int], int | None] = lambda iteration: iteration,
    errors_ns: Sequence[int] = (0,),
    every: int = 0,
    iterations: int = 1,
    limit_bytes: int = 1 << 20,
) -> None:
    """Record a synthetic run, one file per rank.

    Args:
        truth: Planted run.
        folder: Directory of the files.
        monkeypatch: Fixture that sets the names of hosts.
        number_of: See :func:`record_rank`.
        errors_ns: Errors of the hosts' clocks, in the order of their ranks.
        every: See :class:`~bubbleviz.annotate.recorder.Recorder`.
        iterations: See :class:`~bubbleviz.annotate.recorder.Recorder`.
        limit_bytes: See :class:`~bubbleviz.annotate.recorder.Recorder`.
    """
    hosts = list(dict.fromkeys(rank.host for rank in truth.ranks))
    for rank in truth.ranks:
        number = hosts.index(rank.host)
        clock = Clock(errors_ns[number], UPTIME_NS + 777_000_000_000 * number)
        monkeypatch.setattr(socket, "gethostname", lambda host=rank.host: host)
        recorder = Recorder(
            folder,
            every=every,
            iterations=iterations,
            limit_bytes=limit_bytes,
            place=(rank.rank, len(truth.ranks)),
            monotonic=clock.monotonic,
            utc=clock.utc,
        )
        operations = [operation for operation in truth.operations if operation.rank == rank.rank]
        record_rank(recorder, clock, operations, number_of)


def record_names(
    folder: Path,
    names: Sequence[str],
    iterations: int = 2,
    *,
    lengths: Sequence[int] = (),
    rank_and_size: tuple[int, int] = (0, 1),
    limit_bytes: int = 1 << 20,
    now_ns: int = 0,
) -> None:
    """Record iterations of consecutive operations.

    By default, each operation lasts one microsecond.
    """
    clock = Clock()
    clock.now_ns = now_ns
    with Recorder(
        folder,
        limit_bytes=limit_bytes,
        place=rank_and_size,
        monotonic=clock.monotonic,
        utc=clock.utc,
    ) as recorder:
        for number in range(iterations):
            around = recorder.open("", iteration=number)
            for name, length in zip(names, lengths or [1_000] * len(names), strict=True):
                opened = recorder.open(f"bubbleviz:{name}")
                clock.now_ns += length
                recorder.close(opened)
            recorder.close(around)


def write_recording(
    folder: Path, iterations: int = 3, rank: int = 0, world_size: int = 1, hour: int = 0
) -> Path:
    """Write a recording with one forward and one backward per iteration, and return its file."""
    existing = set(folder.glob("*")) if folder.exists() else set()
    names, rank_and_size = ("F mb=0 stage=0", "BW mb=0 stage=0"), (rank, world_size)
    record_names(
        folder, names, iterations, rank_and_size=rank_and_size, now_ns=hour * 3_600_000_000_000
    )
    (new,) = set(folder.glob("*")) - existing
    return new
