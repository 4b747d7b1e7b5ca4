"""Planted runs as nsys SQLite exports: one file per server, with kernels, calls and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from tests.planting.host_tables import KERNEL_CONSTANTS, process_tables, session_tables
from tests.planting.layout import EXPORT_VERSION, Columns, enums, write_export
from tests.planting.places import EPOCH_NS, HOST_ID
from tests.planting.ranks.runs import SERVER, TRANSFER_NS, Ints, PlantedRun
from tests.planting.recorder import KERNEL_NAMES

#: When the first session began, how much later that of each next server did, and what the first
#: host's monotonic clock showed when true time began.
_SESSION_NS, _LATER_NS, _UPTIME_NS = 1_000_000_000, 1_000_000, 5_000_000_000_000
#: How long before its first kernel a range is opened: that of an operation, that of the receive
#: before it and that of the send behind it, so that no two ranges of a host overlap.
_AHEAD_NS, _RECEIVE_AHEAD_NS, _SEND_AHEAD_NS = 35_000, 55_000, 75_000
#: Length of a range, and of a launching call in it.
_RANGE_NS, _CALL_NS = 15_000, 3_000
#: The shortest kernel of a transfer.
_TRANSFER_KERNEL_NS = 2_000
_GEMM, _ADD, _ADAM, _SEND_RECV, _, _REDUCE = range(len(KERNEL_NAMES))
_COMPUTE, _SENDS, _RECEIVES, _REDUCES = 7, 19, 23, 35
_LAUNCH, _PYTHON = "cudaLaunchKernel_v7000", "python3"
_PUSH_POP = 59
_TRANSFERS = ("SEND_FORWARD", "RECV_FORWARD", "SEND_BACKWARD", "RECV_BACKWARD")
#: Where a rank has no transfer.
_NOTHING = -1


@dataclass(frozen=True)
class _Launches:
    """Kernels and what launched them; arrays of shape (ranks, kernels of a rank).

    Attributes:
        text: of the range around the launching call, as a number of :func:`_texts`.
        place: of the call in its range, from 0.
        opened_ns: when the range was.
        kernel: which of :data:`KERNEL_NAMES`.
        stream: that it runs on.
        start_ns: of the kernel.
        end_ns: likewise.
    """

    text: Ints
    place: Ints
    opened_ns: Ints
    kernel: Ints
    stream: Ints
    start_ns: Ints
    end_ns: Ints


def write_exports(
    run: PlantedRun,
    folder: Path,
    *,
    transfers: bool,
    collectives: bool,
    clock_errors_ns: Ints | None,
) -> list[Path]:
    """Write a run and return the files, by server.

    Args:
        run: the run.
        folder: of the files, which is made.
        transfers: whether they hold sends and receives.
        collectives: whether they hold the reduce-scatter of each stage's gradients.
        clock_errors_ns: by which the UTC of each server is off; None for not at all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [*_operations(run), *_steps(run, collectives)]
    parts += _transfers(run) if transfers else []
    launches = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts], axis=1)
        for field in fields(_Launches)
    }
    texts = _texts(run.recipe.microbatches)
    files = []
    for server in range(-(-run.recipe.ranks // SERVER)):
        ranks = slice(server * SERVER, min((server + 1) * SERVER, run.recipe.ranks))
        rank, at = np.nonzero(launches["text"][ranks] != _NOTHING)
        rows = {name: column[ranks][rank, at] for name, column in launches.items()}
        error = 0 if clock_errors_ns is None else int(clock_errors_ns[server])
        session_ns = _SESSION_NS + server * _LATER_NS
        files.append(folder / f"node{server:05}.sqlite")
        tables = {
            **_recorded(rows, rank, texts, session_ns),
            **_target(server, ranks.stop - ranks.start, session_ns, error),
            **enums(),
        }
        write_export(files[-1], tables)
    return files


def _texts(microbatches: int) -> list[str]:
    operations = [f"{phase}{number}.0.0" for phase in "FB" for number in range(microbatches)]
    return [*operations, "Optimizer", *_TRANSFERS]


def _launches(
    text: Ints | int,
    opened_ns: Ints,
    kernel: int,
    stream: int,
    times_ns: tuple[Ints, Ints],
    place: int = 0,
) -> _Launches:
    """Return launches of one kernel a range; of arrays, the first axis is that of ranks."""
    columns = (text, place, opened_ns, kernel, stream, *times_ns)
    shape = times_ns[0].shape
    return _Launches(
        *(np.broadcast_to(np.asarray(c, np.int64), shape).reshape(shape[0], -1) for c in columns)
    )


def _operations(run: PlantedRun) -> list[_Launches]:
    """Return F and B, two kernels each."""
    start, end = run.by_rank(run.start_ns), run.by_rank(run.end_ns)
    middle, opened = (start + end) // 2, start - _AHEAD_NS
    text = np.arange(2 * run.recipe.microbatches).reshape(2, -1)
    return [
        _launches(text, opened, _GEMM, _COMPUTE, (start, middle)),
        _launches(text, opened, _ADD, _COMPUTE, (middle, end), place=1),
    ]


def _steps(run: PlantedRun, collectives: bool) -> list[_Launches]:
    """Return the optimizers, and before them in their ranges what reduces the gradients."""
    text, done = 2 * run.recipe.microbatches, run.by_rank(run.end_ns).max(axis=(2, 3))
    start, end = run.by_rank(run.step_start_ns), run.by_rank(run.step_end_ns)
    opened = (done if collectives else start) - _AHEAD_NS
    place = int(collectives)
    steps = [_launches(text, opened, _ADAM, _COMPUTE, (start, end), place)]
    if collectives:
        steps.append(_launches(text, opened, _REDUCE, _REDUCES, (done, start)))
    return steps


def _transfers(run: PlantedRun) -> list[_Launches]:
    """Return sends, behind their operation, and receives, which spin from the one before on."""
    first_text = 2 * run.recipe.microbatches + 1
    stage = np.repeat(np.arange(run.recipe.stages), run.recipe.pipelines)[:, None, None]
    before = _ends_before(run)
    launches = []
    for phase, towards in ((0, 1), (1, -1)):
        sent = run.end_ns[:, :, :, phase]
        arrived = np.maximum(
            run.by_rank(np.roll(sent, towards, axis=0)) + TRANSFER_NS, before[:, :, phase]
        )
        sent = run.by_rank(sent)
        began = np.minimum(before[:, :, phase], arrived - _TRANSFER_KERNEL_NS)
        first, last = (0, run.recipe.stages - 1)[::towards]
        send, receive = first_text + 2 * phase, first_text + 2 * phase + 1
        for text, without, ahead, stream, times in (
            (send, last, _SEND_AHEAD_NS, _SENDS, (sent, sent + TRANSFER_NS)),
            (receive, first, _RECEIVE_AHEAD_NS, _RECEIVES, (began, arrived)),
        ):
            named = np.where(stage == without, _NOTHING, text)
            launches.append(_launches(named, times[0] - ahead, _SEND_RECV, stream, times))
    return launches


def _ends_before(run: PlantedRun) -> Ints:
    """Return when the operation before each F and B ended, shape (ranks, iterations, 2, m)."""
    ranks, iterations = run.recipe.ranks, run.recipe.iterations
    start, end = (run.by_rank(t).reshape(ranks, iterations, -1) for t in (run.start_ns, run.end_ns))
    order = np.argsort(start, axis=2)
    ended = np.take_along_axis(end, order, axis=2)
    began = np.take_along_axis(start, order[..., :1], axis=2)[..., 0]
    began[:, 1:] = run.by_rank(run.step_end_ns)[:, :-1]
    before = np.empty_like(end)
    shifted = np.concatenate([began[..., None], ended[..., :-1]], axis=2)
    np.put_along_axis(before, order, shifted, axis=2)
    return before.reshape(ranks, iterations, 2, -1)


def _recorded(
    rows: Mapping[str, Ints], rank: Ints, texts: list[str], session_ns: int
) -> dict[str, Columns]:
    """Return the tables of kernels, calls, ranges and strings of one server."""
    ids = {text: 71_000 + 4 * n for n, text in enumerate(dict.fromkeys(_all_strings()))}
    names = np.array([[ids[text] for text in kernel] for kernel in KERNEL_NAMES])
    pid = _pids(rank)
    thread = HOST_ID + (pid << 24) + pid
    called = rows["opened_ns"] + 1_000 + 2 * _CALL_NS * rows["place"] - session_ns
    # Correlation ids rise with time and are those of a process.
    order = np.lexsort((called, rank))
    correlation = np.empty(len(order), np.int64)
    correlation[order] = 1_000 + 6 * np.arange(len(order))
    ranges = np.flatnonzero(rows["place"] == 0)
    ranges = ranges[np.lexsort((rank[ranges], rows["opened_ns"][ranges]))]
    kernels = np.lexsort((rank, rows["start_ns"]))
    opened = rows["opened_ns"][ranges] - session_ns
    named = names[rows["kernel"][kernels]]
    return {
        "StringIds": {"id": list(ids.values()), "value": list(ids)},
        "CUPTI_ACTIVITY_KIND_KERNEL": {
            "start": rows["start_ns"][kernels] - session_ns,
            "end": rows["end_ns"][kernels] - session_ns,
            "deviceId": rank[kernels],
            "streamId": rows["stream"][kernels],
            "correlationId": correlation[kernels],
            "globalPid": HOST_ID + (pid[kernels] << 24),
            "demangledName": named[:, 0],
            "shortName": named[:, 1],
            "mangledName": named[:, 2],
            "gridId": np.arange(1, len(kernels) + 1),
            **KERNEL_CONSTANTS,
        },
        "CUPTI_ACTIVITY_KIND_RUNTIME": {
            "start": called[order],
            "end": called[order] + _CALL_NS,
            "eventClass": 0,
            "globalTid": thread[order],
            "correlationId": correlation[order],
            "nameId": ids[_LAUNCH],
            "returnValue": 0,
        },
        "NVTX_EVENTS": {
            "start": opened,
            "end": opened + _RANGE_NS,
            "eventType": _PUSH_POP,
            "text": [texts[n] for n in rows["text"][ranges].tolist()],
            "globalTid": thread[ranges],
            "domainId": 0,
        },
        "ThreadNames": {"nameId": ids[_PYTHON], "priority": 20, "globalTid": np.unique(thread)},
    }


def _all_strings() -> list[str]:
    return [*(text for names in KERNEL_NAMES for text in names), _LAUNCH, _PYTHON]


def _pids(rank: Ints) -> Ints:
    return 2_001 + 64 * rank


def _target(server: int, ranks: int, session_ns: int, error_ns: int) -> dict[str, Columns]:
    """Return the tables that say where, when and by what an export was made."""
    host, devices = f"node{server:05}", range(ranks)
    pids = _pids(np.arange(ranks)).tolist()
    return {
        **process_tables(host, pids, devices, devices),
        **session_tables(
            host,
            utc_epoch_ns=EPOCH_NS + session_ns + error_ns,
            monotonic_ns=_UPTIME_NS + 777_000_000 * server + session_ns,
        ),
        "META_DATA_EXPORT": {
            "name": list(EXPORT_VERSION),
            "value": list(EXPORT_VERSION.values()),
        },
        "META_DATA_CAPTURE": {"name": ["CAPTURE_EVENT_TYPE"] * 2, "value": ["NvtxEvents", "Cuda"]},
    }
