"""Communication in PyTorch traces whose bytes and bandwidths are planted."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl.analysis import Communication
from bubbleviz.analyses.nccl.outputs import as_json, format_operations_csv
from bubbleviz.analyses.nccl.text import sections
from bubbleviz.analyses.nccl.totals import Total, find_totals
from bubbleviz.errors import BubblevizError
from bubbleviz.model.collectives import Group
from tests.support.nccl_runs import list_columns
from tests.support.needs import get_real_file

Events = list[dict[str, Any]]
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
WORLD = "[0, 1, 2, 3]"


def make_collective_arguments(name: str, elements: int, **arguments: Any) -> dict[str, Any]:
    """Return the arguments PyTorch records for a collective of four ranks and 4-byte elements."""
    return {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": 4,
        "dtype": "Float",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": WORLD,
        **arguments,
    }


def make_launch(
    number: int, start: float, dur: float, args: dict[str, Any], name: str = GENERIC
) -> Events:
    """Return a call and its kernel, with times in microseconds."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "pid": 9, "tid": 9}
    work = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7}
    arguments = {"External id": 100 + number, "device": 0, "stream": 7, "correlation": number}
    return [
        {**call, "ts": start - 5, "dur": 2, "args": {"correlation": number}},
        {**work, "ts": start, "dur": dur, "args": {**arguments, **args}},
    ]


def operator(number: int, args: dict[str, Any], start: float = 1) -> dict[str, Any]:
    event = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 9, "tid": 9}
    return {**event, "ts": start, "dur": 1, "args": {"External id": 100 + number, **args}}


def write(folder: Path, rank: int, events: Events, /, host: str = "h", **world: Any) -> str:
    info = {"backend": "nccl", "rank": rank, "world_size": 4} | world
    document = {
        "schemaVersion": 1,
        "host_name": host,
        "distributedInfo": info,
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
    }
    path = folder / f"rank{rank}.pt.trace.json"
    path.write_text(json.dumps(document))
    return str(path)


def groups(communication: Communication) -> list[Group]:
    return [
        communicator
        for communicator in communication.operations.communicators
        if isinstance(communicator, Group)
    ]


def get_only_total(communication: Communication) -> Total:
    (total,) = find_totals(communication)
    return total


def measured(folder: Path, args: dict[str, Any], name: str = GENERIC) -> Total:
    """Return the total of one operation that takes a millisecond on rank 0."""
    return get_only_total(
        measure_communication(write(folder, 0, make_launch(1, 100, 1000, args, name)))
    )


# Tests of bytes and bandwidths.


@pytest.mark.parametrize(
    ("name", "took", "gave", "operation", "size", "algorithm", "bus"),
    [
        # Bytes that one rank contributes or receives, then the bandwidths in GB/s over 1 ms.
        ("allreduce", 1000, 1000, "AllReduce", 4000, 0.004, 0.006),
        ("allreduce_coalesced", 1000, 1000, "AllReduce", 4000, 0.004, 0.006),
        ("_allgather_base", 1000, 4000, "AllGather", 4000, 0.016, 0.012),
        ("all_gather", 1000, 4000, "AllGather", 4000, 0.016, 0.012),
        ("_reduce_scatter_base", 4000, 1000, "ReduceScatter", 4000, 0.016, 0.012),
        ("all_to_all", 4000, 4000, "AlltoAll", 4000, 0.016, 0.012),
        ("all_to_allv", 4000, 3000, "AlltoAllv", 16000, 0.016, 0.012),
        ("broadcast", 1000, 1000, "Broadcast", 4000, 0.004, 0.004),
        ("reduce", 1000, 1000, "Reduce", 4000, 0.004, 0.004),
        ("gather", 1000, 4000, "Gather", 4000, 0.016, 0.012),
        ("scatter", 4000, 1000, "Scatter", 4000, 0.016, 0.012),
        ("send", 1000, 1000, "Send", 4000, 0.004, 0.004),
        ("recv", 1000, 1000, "Recv", 4000, 0.004, 0.004),
    ],
)
def test_bytes_are_counted_as_nccl_counts_them(
    tmp_path: Path,
    name: str,
    took: int,
    gave: int,
    operation: str,
    size: int,
    algorithm: float,
    bus: float,
) -> None:
    total = measured(tmp_path, make_collective_arguments(name, took, **{"Out msg nelems": gave}))

    assert (total.name, total.bytes, total.ranks) == (operation, size, 4)
    assert (total.algorithm_gbps, total.bus_gbps) == pytest.approx((algorithm, bus))
    if name == "all_to_all":  # with parts of different sizes, this is a vector collective
        args = make_collective_arguments(name, took, **{"In split size": "[1000, 500, 1500, 1000]"})
        assert measured(tmp_path, args).name == "AlltoAllv"
        args["In split size"] = "[1000, 1000, 1000, 1000]"
        assert measured(tmp_path, args).name == "AlltoAll"


def test_kernels_of_one_operator_form_one_operation(tmp_path: Path) -> None:
    args, events = make_collective_arguments("allreduce", 10), []
    for number, name in enumerate((KERNEL, KERNEL, "at::native::elementwise_kernel"), 1):
        events += make_launch(number, 80 + 20 * number, 10, args, name)
        events[-1]["args"]["External id"] = 101
    communication = measure_communication(write(tmp_path, 0, events))

    assert list_columns(communication, "duration_ns", "bytes") == [(30_000, 40)]


# Tests of the ranks in a collective.


def test_members_are_identified_by_number_and_wait_for_the_last(tmp_path: Path) -> None:
    """Rank 1 begins each operation 40 us late. Its capture lacks the first operation."""
    pair = {"Group size": 2, "Process Group Ranks": "[0, 1]"}
    paths = []
    for rank in range(2):
        events = []
        for number in range(rank, 5):
            start = 1000 * (number + 1) + 40 * rank
            args = make_collective_arguments("allreduce", 1000, **pair, Seq=number)
            events += make_launch(number, start, 500 - 40 * rank, args)
        paths.append(write(tmp_path, rank, [*events, {**STEP, "dur": 9000}]))
    communication = measure_communication(paths)

    waits = list_columns(communication, "rank", "sequence", "waiting_ns", "moving_ns")
    assert waits == [
        (0, 0, -1, -1),
        *((0, number, 40_000, 460_000) for number in range(1, 5)),
        *((1, number, 0, 460_000) for number in range(1, 5)),
    ]
    assert get_only_total(communication).moving_gbps == pytest.approx(4000 / 460_000)


STEP: dict[str, Any] = {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 9, "tid": 9}
STEP |= {"ts": 0, "dur": 9}


def test_sends_match_the_receives_of_their_peers(tmp_path: Path) -> None:
    """Ranks 4 and 6 of the run are ranks 0 and 1 of their group."""
    pair = {"Group size": 2, "Process Group Ranks": "[4, 6]", "Process Group Name": "17"}
    paths = []
    for rank, start, end in ((4, 100, "Dst Rank"), (6, 130, "Src Rank")):
        args = make_collective_arguments(
            "send" if rank == 4 else "recv", 1000, **pair, **{end: 10 - rank}
        )
        events = [STEP, *make_launch(1, start, 180 - start, args, SENDRECV)]
        paths.append(write(tmp_path, rank, events, world_size=8))
    communication = measure_communication(paths)

    assert list_columns(communication, "rank", "peer", "bytes", "waiting_ns") == [
        (0, 1, 4000, 30_000),
        (1, 0, 4000, 0),
    ]
    assert [group.ranks for group in groups(communication)] == [(4, 6)]


def exchange(rank: int, start: float, call: str = "cudaLaunchKernelExC") -> Events:
    """Return a batch with a send to the other of two ranks and a receive from it."""
    pair = {"Group size": 2, "Process Group Ranks": "[0, 1]", "Rank": 1 - rank}
    kernel = make_launch(7, start, 100, {}, SENDRECV)
    kernel[0]["name"] = call
    del kernel[1]["args"]["External id"]
    return [
        operator(
            1, make_collective_arguments("send", 1000, **pair, **{"Dst Rank": 1 - rank}), start - 20
        ),
        operator(
            2, make_collective_arguments("recv", 500, **pair, **{"Src Rank": 1 - rank}), start - 15
        ),
        *kernel,
    ]


def test_a_batch_of_sends_and_receives_shares_a_kernel(tmp_path: Path) -> None:
    paths = [write(tmp_path, rank, [STEP, *exchange(rank, 100 + 30 * rank)]) for rank in range(2)]
    communication = measure_communication(paths)

    names = [
        communication.operations.names[name] for name in communication.operations.name.tolist()
    ]
    assert names == ["Send", "Recv"] * 2
    assert list_columns(communication, "rank", "peer", "bytes", "waiting_ns", "shared") == [
        (0, 1, 4000, 30_000, 2),
        (0, 1, 2000, 30_000, 2),
        (1, 0, 4000, 0, 2),
        (1, 0, 2000, 0, 2),
    ]


# Tests of the ranks in a group.


CONFIG = [{"pg_name": "0", "pg_size": 3, "ranks": [5, 9, 8]}, {"pg_name": 1, "ranks": "x"}, 7]


@pytest.mark.parametrize(
    ("ranks", "arguments", "world", "expected"),
    [
        ("[0, 8, 16, ..., 504]", {}, {}, range(0, 512, 8)),
        ("[0, 8, ...]", {"Global rank start": 0, "Global rank stride": 8}, {}, range(0, 512, 8)),
        ([0, 1], {"Group size": 2}, {}, range(2)),
        # The document lists the ranks of groups.
        # A group of all ranks needs no list.
        ("[5, ...]", {"Group size": 3}, {"pg_config": CONFIG}, (5, 9, 8)),
        ("[0, ...]", {}, {"world_size": 64}, range(64)),
        # Ambiguous lists are not completed.
        *((text, {}, {}, ()) for text in ("[0, 8, 16, ...]", "[0, 8, 17, ..., 504]", "[0, 8]", "")),
        ("[0, 8, 16, ..., 505]", {}, {}, ()),
        ("[0, 0]", {"Group size": 2}, {}, ()),
    ],
)
def test_a_truncated_list_of_ranks_is_completed_if_it_is_unambiguous(
    tmp_path: Path,
    ranks: object,
    arguments: dict[str, Any],
    world: dict[str, Any],
    expected: range | tuple[int, ...],
) -> None:
    args = make_collective_arguments(
        "allreduce", 10, **{"Group size": 64, "Process Group Ranks": ranks} | arguments
    )
    events = [operator(1, args), *make_launch(1, 100, 10, args)]
    communication = measure_communication(write(tmp_path, 8, events, **{"world_size": 512} | world))

    (group,) = groups(communication)
    assert group.ranks == tuple(expected)
    assert communication.ranks == (args["Group size"],)
    assert list_columns(communication, "rank") == [
        (list(expected).index(8) if 8 in expected else -1,)
    ]


# Tests of outputs.


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(
        ["[0, 1]", "[0, ..., 3]", "[-1]", "allreduce", "send", "all_to_all", "Float"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
_KEYS = (
    *make_collective_arguments("", 0),
    "Src Rank",
    "Dst Rank",
    "Seq",
    "Rank",
    "External id",
    "Global rank start",
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    odd=st.dictionaries(st.sampled_from((*_KEYS, "Global rank stride")), _ANY, max_size=6),
    of_operator=st.dictionaries(st.sampled_from(_KEYS), _ANY, max_size=4),
    world=st.dictionaries(st.sampled_from(("rank", "world_size", "pg_config")), _ANY),
    group=st.dictionaries(st.sampled_from(("pg_name", "pg_size", "ranks")), _ANY),
)
def test_any_description_of_collectives_in_a_trace_is_read(
    tmp_path: Path,
    odd: dict[str, Any],
    of_operator: dict[str, Any],
    world: dict[str, Any],
    group: dict[str, Any],
) -> None:
    events = [operator(1, make_collective_arguments("allreduce", 3) | of_operator)]
    events += make_launch(1, 100, 10, make_collective_arguments("all_to_all", 5) | odd)
    events += make_launch(2, 200, 10, make_collective_arguments("allreduce", 5))
    path = write(tmp_path, 0, events, **{"pg_config": [group], **world})

    with contextlib.suppress(BubblevizError):
        communication = measure_communication(path)
        assert len(communication.operations) == 2
        json.loads(as_json(communication))
        format_operations_csv(communication).encode()
        assert list(sections(communication))


# Tests with real traces.


SIZES = {"Float": 4, "Long": 8, "BFloat16": 2}
NAMES = {"allreduce": "AllReduce", "broadcast": "Broadcast"}


@pytest.mark.real_files
def test_real_traces_have_what_a_plain_reader_finds(subtests: pytest.Subtests) -> None:
    for name, ranks in [
        ("hta_nccl_data.json.gz", 2),
        ("tracelens_resnet_act_checkpoint.json.gz", 8),
    ]:
        with subtests.test(name=name):
            path = get_real_file(f"kineto/{name}")
            events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
            count: Counter[str] = Counter()
            size: Counter[str] = Counter()
            time: Counter[str] = Counter()
            for event in events:
                args = event.get("args", {})
                if event.get("cat") == "kernel" and "Collective name" in args:
                    kind = NAMES[args["Collective name"]]
                    count[kind] += 1
                    size[kind] += args["In msg nelems"] * SIZES[args["dtype"]]
                    time[kind] += round(event["dur"] * 1000)

            communication = measure_communication(str(path))

            totals = [
                total for total in find_totals(communication) if total.communicator is not None
            ]
            assert {total.name: total.operations for total in totals} == dict(count)
            assert {total.name: total.bytes for total in totals} == dict(size)
            for total in totals:
                assert total.ranks == ranks
                assert total.algorithm_gbps == pytest.approx(
                    size[total.name] / time[total.name], rel=1e-3
                )
            assert [group.ranks for group in groups(communication)] == [tuple(range(ranks))]


@pytest.mark.parametrize("start_us", [0, -5_000_000_000])
def test_kernels_of_traces_with_impossible_times_are_left_out(
    tmp_path: Path, start_us: int
) -> None:
    """One kernel has no timestamps or precedes its launch.

    The other kernel keeps its collective.
    """
    sent, received = (
        make_collective_arguments("allreduce", 10),
        make_collective_arguments("allreduce", 30),
    )
    bad, good = make_launch(1, 1_000, 40, sent), make_launch(2, 2_000, 50, received)
    bad[1] |= {"ts": start_us, "dur": 0 if start_us == 0 else 40}
    communication = measure_communication(
        write(tmp_path, 0, [operator(1, sent), operator(2, received), *bad, *good])
    )

    assert list_columns(communication, "duration_ns", "count") == [(50_000, 30)]
    assert sum(note.count for note in communication.limitations if "left out" in note.reason) == 1
