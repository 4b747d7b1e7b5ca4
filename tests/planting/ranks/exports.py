"""Planted runs as nsys SQLite exports, with one file per server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from tests.planting.host_tables import KERNEL_CONSTANTS, make_process_tables, make_session_tables
from tests.planting.layout import EXPORT_VERSION, Columns, make_enums, write_export
from tests.planting.places import EPOCH_NS, HOST_ID
from tests.planting.ranks.runs import SERVER, TRANSFER_NS, Ints, PlantedRun
from tests.planting.recorder import KERNEL_NAMES

#: Start of the first session, delay from one server's session to the next, in ns.
#: The last number is the monotonic clock of the first host at global time 0.
_SESSION_NS, _LATER_NS, _UPTIME_NS = 1_000_000_000, 1_000_000, 5_000_000_000_000
#: Time from the push of a range to its first kernel, for operations, receives and sends.
#: The times differ so that no two ranges of a host overlap.
_AHEAD_NS, _RECEIVE_AHEAD_NS, _SEND_AHEAD_NS = 35_000, 55_000, 75_000
#: Length of a range, and length of the launching call inside it, in ns.
_RANGE_NS, _CALL_NS = 15_000, 3_000
#: Minimum length of a transfer kernel, in ns.
_TRANSFER_KERNEL_NS = 2_000
_GEMM, _ADD, _ADAM, _SEND_RECV, _, _REDUCE = range(len(KERNEL_NAMES))
_COMPUTE, _SENDS, _RECEIVES, _REDUCES = 7, 19, 23, 35
_LAUNCH, _PYTHON = "cudaLaunchKernel_v7000", "python3"
_PUSH_POP = 59
_TRANSFERS = ("SEND_FORWARD", "RECV_FORWARD", "SEND_BACKWARD", "RECV_BACKWARD")
#: Value that marks a rank without a transfer.
_NOTHING = -1


@dataclass(frozen=True)
class _Launches:
    """Kernels and their launches, as arrays of shape (ranks, kernels per rank).

    Attributes:
        text: Text of the range around the launching call, as an index of :func:`_list_texts`.
        place: Index of the call among the calls in its range.
        opened_ns: Time of the push of the range.
        kernel: Index in :data:`KERNEL_NAMES`.
        stream: Stream of the kernel.
        start_ns: Start of the kernel.
        end_ns: End of the kernel.
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
    """Write a run, and return one file per server.

    Args:
        run: Planted run.
        folder: Output directory, which is created.
        transfers: Whether to write sends and receives.
        collectives: Whether to write the reduce-scatter of each stage's gradients.
        clock_errors_ns: Error of each server's UTC clock, or None for correct clocks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [*_launch_operations(run), *_launch_steps(run, collectives)]
    parts += _launch_transfers(run) if transfers else []
    launches = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts], axis=1)
        for field in fields(_Launches)
    }
    texts = _list_texts(run.recipe.microbatches)
    files = []
    for server in range(-(-run.recipe.ranks // SERVER)):
        ranks = slice(server * SERVER, min((server + 1) * SERVER, run.recipe.ranks))
        rank, is_on_server = np.nonzero(launches["text"][ranks] != _NOTHING)
        rows = {name: column[ranks][rank, is_on_server] for name, column in launches.items()}
        error = 0 if clock_errors_ns is None else int(clock_errors_ns[server])
        session_ns = _SESSION_NS + server * _LATER_NS
        files.append(folder / f"node{server:05}.sqlite")
        tables = {
            **_make_tables(rows, rank, texts, session_ns),
            **_make_target_tables(server, ranks.stop - ranks.start, session_ns, error),
            **make_enums(),
        }
        write_export(files[-1], tables)
    return files


def _list_texts(microbatches: int) -> list[str]:
    operations = [f"{phase}{number}.0.0" for phase in "FB" for number in range(microbatches)]
    return [*operations, "Optimizer", *_TRANSFERS]


def _make_launches(
    text: Ints | int,
    opened_ns: Ints,
    kernel: int,
    stream: int,
    times_ns: tuple[Ints, Ints],
    position: int = 0,
) -> _Launches:
    """Return launches of one kernel per range. The first axis of all arrays is the rank."""
    columns = (text, position, opened_ns, kernel, stream, *times_ns)
    shape = times_ns[0].shape
    return _Launches(
        *(np.broadcast_to(np.asarray(c, np.int64), shape).reshape(shape[0], -1) for c in columns)
    )


def _launch_operations(run: PlantedRun) -> list[_Launches]:
    """Return the launches of F and B, which have two kernels per operation."""
    start, end = run.by_rank(run.start_ns), run.by_rank(run.end_ns)
    middle, opened = (start + end) // 2, start - _AHEAD_NS
    text = np.arange(2 * run.recipe.microbatches).reshape(2, -1)
    return [
        _make_launches(text, opened, _GEMM, _COMPUTE, (start, middle)),
        _make_launches(text, opened, _ADD, _COMPUTE, (middle, end), position=1),
    ]


def _launch_steps(run: PlantedRun, collectives: bool) -> list[_Launches]:
    """Return the launches of the optimizers, and of the gradient reductions inside their ranges."""
    text, done = 2 * run.recipe.microbatches, run.by_rank(run.end_ns).max(axis=(2, 3))
    start, end = run.by_rank(run.step_start_ns), run.by_rank(run.step_end_ns)
    opened = (done if collectives else start) - _AHEAD_NS
    position = int(collectives)
    steps = [_make_launches(text, opened, _ADAM, _COMPUTE, (start, end), position)]
    if collectives:
        steps.append(_make_launches(text, opened, _REDUCE, _REDUCES, (done, start)))
    return steps


def _launch_transfers(run: PlantedRun) -> list[_Launches]:
    """Return sends and receives. A receive spins from the end of the previous operation."""
    first_text = 2 * run.recipe.microbatches + 1
    stage = np.repeat(np.arange(run.recipe.stages), run.recipe.pipelines)[:, None, None]
    before = _find_previous_ends(run)
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
            launches.append(_make_launches(named, times[0] - ahead, _SEND_RECV, stream, times))
    return launches


def _find_previous_ends(run: PlantedRun) -> Ints:
    """Return the end of the operation before each F and B, shape (ranks, iterations, 2, m)."""
    ranks, iterations = run.recipe.ranks, run.recipe.iterations
    start, end = (run.by_rank(t).reshape(ranks, iterations, -1) for t in (run.start_ns, run.end_ns))
    order = np.argsort(start, axis=2)
    end_ns = np.take_along_axis(end, order, axis=2)
    began = np.take_along_axis(start, order[..., :1], axis=2)[..., 0]
    began[:, 1:] = run.by_rank(run.step_end_ns)[:, :-1]
    previous_end_ns = np.empty_like(end)
    shifted = np.concatenate([began[..., None], end_ns[..., :-1]], axis=2)
    np.put_along_axis(previous_end_ns, order, shifted, axis=2)
    return previous_end_ns.reshape(ranks, iterations, 2, -1)


def _make_tables(
    rows: Mapping[str, Ints], rank: Ints, texts: list[str], session_ns: int
) -> dict[str, Columns]:
    """Return the tables of kernels, calls, ranges and strings of one server."""
    ids = {text: 71_000 + 4 * n for n, text in enumerate(dict.fromkeys(_list_strings()))}
    names = np.array([[ids[text] for text in kernel] for kernel in KERNEL_NAMES])
    pid = _get_pids(rank)
    thread = HOST_ID + (pid << 24) + pid
    called = rows["opened_ns"] + 1_000 + 2 * _CALL_NS * rows["place"] - session_ns
    # Correlation ids increase with time and are unique within a process.
    order = np.lexsort((called, rank))
    correlation = np.empty(len(order), np.int64)
    correlation[order] = 1_000 + 6 * np.arange(len(order))
    ranges = np.flatnonzero(rows["place"] == 0)
    ranges = ranges[np.lexsort((rank[ranges], rows["opened_ns"][ranges]))]
    kernels = np.lexsort((rank, rows["start_ns"]))
    opened = rows["opened_ns"][ranges] - session_ns
    name_ids = names[rows["kernel"][kernels]]
    return {
        "StringIds": {"id": list(ids.values()), "value": list(ids)},
        "CUPTI_ACTIVITY_KIND_KERNEL": {
            "start": rows["start_ns"][kernels] - session_ns,
            "end": rows["end_ns"][kernels] - session_ns,
            "deviceId": rank[kernels],
            "streamId": rows["stream"][kernels],
            "correlationId": correlation[kernels],
            "globalPid": HOST_ID + (pid[kernels] << 24),
            "demangledName": name_ids[:, 0],
            "shortName": name_ids[:, 1],
            "mangledName": name_ids[:, 2],
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


def _list_strings() -> list[str]:
    return [*(text for names in KERNEL_NAMES for text in names), _LAUNCH, _PYTHON]


def _get_pids(rank: Ints) -> Ints:
    return 2_001 + 64 * rank


def _make_target_tables(
    server: int, ranks: int, session_ns: int, error_ns: int
) -> dict[str, Columns]:
    """Return the tables of the host, the session and the exporter."""
    host, devices = f"node{server:05}", range(ranks)
    pids = _get_pids(np.arange(ranks)).tolist()
    return {
        **make_process_tables(host, pids, devices, devices),
        **make_session_tables(
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
