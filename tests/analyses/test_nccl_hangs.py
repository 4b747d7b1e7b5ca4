"""Flight recorders of PyTorch: missing ranks, late ranks, and damaged dumps."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from bubbleviz.analyses.nccl import hangs, measure_communication
from bubbleviz.analyses.nccl.outputs import as_json, format_operations_csv
from bubbleviz.analyses.nccl.summary import LateRank
from bubbleviz.errors import InputError, NothingToAnalyzeError, ProfileError
from bubbleviz.sources.nccl.formats import read_events
from tests.support.command_line import CommandLine
from tests.support.flight_dumps import Entry, make_entry, write_dumps
from tests.support.nccl_runs import list_columns
from tests.support.notes import list_limitation_subjects

everyone, replicas, others = (partial(make_entry, group, "all_reduce", 1) for group in "034")
sent, received = partial(make_entry, "1", "send 0->1"), partial(make_entry, "1", "recv 1<-0")
batch = partial(make_entry, "1", "coalesced", 1, is_p2p=True)
#: Entries of each rank, the ranks that block the run, and part of the expected message.
HANGS: list[tuple[dict[int, list[Entry]], list[int], str]] = [
    # Ranks 0 and 1 wait for rank 2, which waits for rank 3.
    (
        {0: [everyone()], 1: [everyone()], 2: [others()], 3: []},
        [3],
        "Hang: all wait for rank 3 (stage 1); check what ran there at that time (py-spy dump)",
    ),
    # The state of a rank without a dump is unknown.
    ({0: [replicas()]}, [], "rank 0 (stage 0) waiting; rank 1 (stage 0) without a dump"),
    # A receive has no matching send, or a send has no matching receive.
    # The end entry describes a batch.
    ({0: [sent(1, 9)], 2: [received(1, 9), received(2)]}, [0], "Hang: all wait for rank 0"),
    ({0: [sent(1), batch()], 2: [received(1, 9)]}, [2], "Send 1 of 1 mesh_pp [0,2]: rank 0"),
    # The host of rank 1 has queued the operation, but its GPU has not started it.
    ({0: [replicas(state="started")], 1: [replicas()]}, [1], "all wait for rank 1 (stage 0)"),
    ({0: [replicas()], 1: [replicas()]}, [], "Unfinished: all ranks have entered"),
    ({0: [replicas()], **{n: [everyone()] for n in (1, 2, 3)}}, [], "Deadlock: each rank missing"),
    (
        {0: [replicas(9)], 1: [replicas(9, input_sizes=[[9]])]},
        [],
        "Mismatch: ranks call AllReduce 1 of 3 mesh_dp [0-1] differently: rank 0 (stage 0): "
        "AllReduce of 256 elements of Float; rank 1 (stage 0): AllReduce of 9 elements of Float",
    ),
    (
        {0: [replicas()], 1: [make_entry("3", "barrier", 1)]},
        [],
        "rank 1 (stage 0): barrier of Float",
    ),
]


@pytest.mark.parametrize("number", range(len(HANGS)))
def test_the_ranks_that_hold_up_the_run_are_named(
    number: int, tmp_path: Path, cli: CommandLine
) -> None:
    entries, missing, sentence = HANGS[number]
    folder = write_dumps(tmp_path, entries)
    assert hangs.find_culprits(measure_communication(folder).faults) == missing
    # The command without a subcommand also finds the hang.
    assert sentence in " ".join(cli(folder)[1].split())


def test_late_ranks_are_found_by_the_lengths_of_operations_alone(tmp_path: Path) -> None:
    """Ends are observed late. A shorter operation therefore means that the rank entered later."""
    entries = {rank: [everyone(60 - rank, length)] for rank, length in enumerate((9, 2, 2, 4))}
    entries[0] += (sent(1, 300, 5),)
    entries[2] += (received(1, 200, 8),)
    communication = measure_communication(write_dumps(tmp_path, entries))
    # Two ranks enter last at the same time, and share the waiting time of the other ranks.
    ranked = [LateRank(1, 1, 4_500_000), LateRank(2, 1, 4_500_000), LateRank(0, 1, 3_000_000)]
    assert list_columns(communication, "run_rank", "waiting_ns", "awaited_ns") == [
        (0, 7_000_000, 0),
        (0, 0, 3_000_000),
        (1, 0, 4_500_000),
        (2, 0, 4_500_000),
        (2, 3_000_000, 0),
        (3, 2_000_000, 0),
    ]
    assert hangs.list_late_ranks(communication.operations) == ranked
    assert '"awaited_ns": 4500000' in as_json(communication)
    # A recorder dropped the first entry.
    # Entries before a collective of all ranks are not counted.
    entries[0].insert(0, sent(7, 40, 1, record_id=70))
    communication = measure_communication(write_dumps(tmp_path, entries))
    assert hangs.list_late_ranks(communication.operations) == ranked
    assert "sends and receives that cannot be paired" in list_limitation_subjects(communication)
    with pytest.raises(NothingToAnalyzeError, match="no NCCL operation"):
        measure_communication(write_dumps(tmp_path, {rank: [] for rank in range(4)}))


def test_a_batch_has_the_times_of_its_end_entry_in_json_and_pickles(tmp_path: Path) -> None:
    # With several peers, the awaited peer is unknown.
    for peer, lengths in ((1, [4_000_000] * 2), (2, [-1, -1])):
        entries = {0: [sent(1), make_entry("1", f"recv 0<-{peer}", 1), batch(90, 4)]}
        communication = measure_communication(write_dumps(tmp_path / "one", entries))
        other = measure_communication(write_dumps(tmp_path / "other", entries, ".json"))
        assert communication.operations.duration_ns.tolist() == lengths
        text = format_operations_csv(other).replace(".json", "").replace("/other/", "/one/")
        assert format_operations_csv(communication) == text


HOLDS = b"\x80\x02}X\x07\x00\x00\x00version"
DAMAGED = {
    HOLDS + b"cos\nsystem\nX\x02\x00\x00\x00ls\x85Rs.": "it refers to os.system",
    # This index and this length exceed the data.
    HOLDS + b"r\xff\xff\xff\x7fs0": "damaged",
    HOLDS + b"X\xff\xff\xff\x7f": "damaged",
    **dict.fromkeys(
        (HOLDS, HOLDS + b"X\xff", b'{"entries": [{"collective_seq_id": 1'), "cut short"
    ),
}


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_dump_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=DAMAGED[content]):
        read_events(str(path))
    # Next to other files, this dump is ignored, and may be from the missing rank.
    communication = measure_communication(write_dumps(tmp_path, {1: [replicas()]}))
    assert (
        list_limitation_subjects(communication)
        >= {"a profile in the directory that cannot be read"},
        communication.faults[0].undumped,
    ) == (1, (0,))
    with pytest.raises(InputError, match="must end in its rank"):
        read_events(str(path.rename(tmp_path / "dump")))
