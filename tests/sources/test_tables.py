"""Tables of operations as input: content that is accepted, and content that is refused."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import bubbleviz
from bubbleviz import Parallel
from bubbleviz.errors import BubblevizError, MismatchError, ProfileError
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps
from tests.support.command_line import CommandLine
from tests.support.operation_tables import (
    Columns,
    write_columns,
    write_csv,
    write_stream,
    write_trace,
)
from tests.support.pipeline_jobs import Job, SimulatedJob, simulate_job

#: 1F1B with two microbatches on two stages, in units of 10 ns.
RANK = [0, 0, 0, 0, 1, 1, 1, 1]
PHASE = ["F", "F", "B", "B", "F", "B", "F", "B"]
MICROBATCH = [0, 1, 0, 1, 0, 0, 1, 1]
START = [0, 10, 40, 60, 10, 20, 40, 50]
END = [10, 20, 60, 80, 20, 40, 50, 70]
ONE: dict[str, list[Any]] = {
    "rank": RANK,
    "phase": PHASE,
    "microbatch": MICROBATCH,
    "start_ns": START,
    "end_ns": END,
}


def drop_columns(name: str) -> dict[str, list[Any]]:
    return {column: cells for column, cells in ONE.items() if column != name}


def get_ratio(report: Report) -> float | None:
    return report.iterations[0].ratios["schedule"].value


def get_refusal(path: Path, columns: Columns) -> str:
    """Return the one-line reason why a table is refused. It is the same in every format."""
    messages = set()
    for file in write_columns(path, columns, "t").values():
        with pytest.raises(BubblevizError) as caught:
            bubbleviz.analyze(file)
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith(str(file))
        messages.add(str(caught.value).removeprefix(str(file)))
    assert len(messages) == 1
    return messages.pop()


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_four_columns_are_enough(kind: str, tmp_path: Path) -> None:
    report = bubbleviz.analyze(write_columns(tmp_path, drop_columns("microbatch"))[kind])

    assert get_ratio(report) == 1 - 120 / 160
    assert report.operations.microbatch.tolist() == [0, 1, 0, 1, 0, 0, 1, 1]
    assert [rank.stage for rank in report.ranks] == [0, 1]
    assert report.convention == "table"
    assert report.profiles[0].format == kind


@pytest.mark.parametrize("as_one_event", [False, True])
def test_events_of_a_tracer_are_read_as_a_table(as_one_event: bool, tmp_path: Path) -> None:
    phases = ["BW" if phase == "B" else phase for phase in PHASE]
    rows = list(zip(RANK, MICROBATCH, phases, START, END, strict=True))
    path = write_trace(
        tmp_path / "t.json", [*rows, (0, 0, "Optimizer", 80, 85)], as_one_event=as_one_event
    )
    report = bubbleviz.analyze(tmp_path)

    assert get_ratio(report) == 1 - 120 / 160
    assert report.iterations[0].name == "7"
    assert [rank.stage for rank in report.ranks] == [0, 1]
    assert sorted(report.operations.microbatch.tolist()) == [-1, *sorted(MICROBATCH)]
    assert [profile.path for profile in report.profiles] == [str(path)]


EPOCH = 1_763_860_000_123_456_789
LATE = ONE | {name: [time + EPOCH for time in ONE[name]] for name in ("start_ns", "end_ns")}
SHUFFLED = {
    name: [cells[at] for at in (5, 2, 7, 0, 1, 3, 4, 6)]
    for name, cells in (ONE | {"note": list("abcdefgh")}).items()
}
NODES = ["node0"] * 8
#: Data frames to write as Parquet files.
FRAMES: dict[str, pl.DataFrame] = {
    **{
        str(kind): pl.DataFrame(ONE).with_columns(pl.exclude("phase").cast(kind))
        for kind in (pl.Int8, pl.UInt16, pl.Float32, pl.Float64, pl.UInt64)
    },
    **{
        str(kind): pl.DataFrame(ONE | {"host": pl.Series(NODES, dtype=kind)})
        for kind in (pl.Categorical(), pl.Enum(["node0", "unused"]))
    },
    "dates": pl.DataFrame(ONE).with_columns(pl.col("start_ns", "end_ns").cast(pl.Datetime("ns"))),
    "phases": pl.DataFrame(ONE).with_columns(pl.col("phase").cast(pl.Categorical)),
    "texts": pl.DataFrame(ONE | {"start_ns": [f" {start}" for start in START]}),
    "epochs": pl.DataFrame(LATE),
    "any order": pl.DataFrame(SHUFFLED),
}
#: Changes of the text of a CSV file, keyed by the name of the new file.
TEXTS: dict[str, Callable[[str], str]] = {
    "b.csv": lambda text: "\ufeff" + text,
    "s.csv": lambda text: text.replace(",", ";"),
    "t.tsv": lambda text: text.replace(",", "\t"),
    "r.csv": lambda text: text.replace("\n", "\r\n"),
    "m.csv": lambda text: text.replace("\n", "\r"),
    "l.csv": lambda text: text + "\n\n",
    "g.csv.gz": str,
}


@pytest.mark.parametrize("name", [*FRAMES, *TEXTS, "t.arrows", "lz4", "zstd"])
def test_tables_may_be_written_in_any_way(name: str, tmp_path: Path) -> None:
    path, host = tmp_path / name, "table"
    if name in FRAMES:
        path = tmp_path / "t.parquet"
        FRAMES[name].write_parquet(path)
        host = "node0" if "host" in FRAMES[name].columns else host
    elif name in TEXTS:
        text = TEXTS[name](write_csv(tmp_path / "one.csv", ONE).read_text()).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    elif name == "t.arrows":
        write_stream(path, ONE)
    else:
        path, host = tmp_path / "t.arrow", "node0"
        frame = pl.DataFrame(ONE | {"host": NODES, "start_ns": list(map(str, START))})
        compression: Any = name
        newest = pl.CompatLevel.newest()
        frame.write_ipc(path, compat_level=newest, compression=compression)

    report = bubbleviz.analyze(path)

    assert (get_ratio(report), report.ranks[0].host) == (1 - 120 / 160, host)
    if name == "epochs":
        assert report.operations.start_ns.tolist() == LATE["start_ns"]


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_tables_may_be_in_utf_16(
    encoding: str, line_end: str, is_packed: bool, tmp_path: Path
) -> None:
    columns = ONE | {"host": ["Knoten ä"] * len(RANK)}
    text = write_csv(tmp_path / "one.csv", columns).read_text(encoding="utf-8")
    content = text.replace("\n", line_end).encode(encoding)
    path = tmp_path / ("t.csv.gz" if is_packed else "t.csv")
    path.write_bytes(gzip.compress(content) if is_packed else content)

    report = bubbleviz.analyze(path)

    assert (get_ratio(report), report.ranks[0].host) == (1 - 120 / 160, "Knoten ä")


@pytest.mark.parametrize(
    "content",
    [
        "rank,phase,microbatch,start_ns,end_ns\n0,F\udcff".encode("utf-8", "surrogateescape"),
        "rank,phase,start_ns,end_ns\n0,F".encode("utf-16")[:-1],
    ],
)
def test_tables_in_no_known_encoding_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)

    with pytest.raises(BubblevizError, match=r"is not valid UTF-(8|16); save the table as UTF-8"):
        bubbleviz.analyze(tmp_path / "t.csv")


def test_zero_bytes_are_not_a_table(tmp_path: Path) -> None:
    """Binary files may look like UTF-16 without a byte order mark."""
    (tmp_path / "t.csv").write_bytes(bytes(range(1, 255, 2)).replace(b"", b"\0")[1:] + b",,;;")

    with pytest.raises(BubblevizError) as caught:
        bubbleviz.analyze(tmp_path / "t.csv")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("unit", "scale"), [("us", 1e-3), ("ms", 1e-6), ("s", 1e-9)])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_times_have_the_unit_of_their_name_and_are_rounded(
    unit: str, scale: float, kind: str, tmp_path: Path
) -> None:
    columns = drop_columns("start_ns") | {f"start_{unit}": [start * scale for start in START]}
    del columns["end_ns"]
    lengths = [end - start for start, end in zip(START, END, strict=True)]
    columns[f"duration_{unit}"] = [length * scale for length in lengths]

    operations = bubbleviz.analyze(write_columns(tmp_path, columns)[kind]).operations

    assert operations.start_ns.tolist() == START
    assert operations.end_ns.tolist() == END


@pytest.mark.parametrize(
    "further",
    [
        {"duration_us": [0.01, 0.01, 0.02, 0.02, 0.01, 0.02, 0.01, 0.02]},
        {"end_ms": [0] * 8, "duration_ns": [10, 10, 20, 20, 10, 20, 10, 20]},
        {"start_us": [0, 0, 1, 0, 0, 0, 0, 0], "duration_ns": [None] * 8},
        {"launched_ns": [50_000] * 8},
        {"launched_ns": [200_000] * 8, "clock_uncertainty_ns": [0] * 8},
    ],
)
def test_columns_may_differ_by_rounding_and_by_clock_errors(
    further: dict[str, list[Any]], tmp_path: Path
) -> None:
    report = bubbleviz.analyze(write_columns(tmp_path, ONE | further)["csv"])

    assert get_ratio(report) == 1 - 120 / 160


def test_operations_that_touch_stay_so_when_they_are_rounded(tmp_path: Path) -> None:
    lengths = [0.1 / 3] * 10
    starts = np.concatenate(([0.0], np.cumsum(lengths)[:-1])).tolist()
    columns: dict[str, Sequence[Any]] = {
        "rank": [0] * 10,
        "phase": ["F", "B"] * 5,
        "microbatch": [number // 2 for number in range(10)],
        "start_us": starts,
        "duration_us": lengths,
    }
    operations = bubbleviz.analyze(write_csv(tmp_path / "t.csv", columns)).operations

    assert operations.start_ns[1:].tolist() == operations.end_ns[:-1].tolist()


def test_iterations_and_stages_are_as_told(tmp_path: Path) -> None:
    columns = {name: cells * 2 for name, cells in ONE.items()}
    columns["start_ns"] = START + [start + 100 for start in START]
    columns["end_ns"] = END + [end + 100 for end in END]
    columns |= {"iteration": [7] * 8 + [9] * 8, "stage": [1 - rank for rank in RANK] * 2}

    report = bubbleviz.analyze(write_csv(tmp_path / "t.csv", columns))

    assert [iteration.name for iteration in report.iterations] == ["7", "9"]
    assert [rank.label.rpartition(" ")[2] for rank in report.ranks] == ["1", "0"]


@pytest.mark.parametrize(
    ("parallel", "stages", "words"),
    [
        (Parallel(pp=2), [0, 1], ""),
        (
            Parallel(pp=2),
            [1, 0],
            "--parallel tp=1,pp=2,dp=1: this puts rank 0 on stage 0, but the ",
        ),
        (Parallel(dp=2), [0, 1], "puts rank 1 on stage 0, but the column stage of its table cont"),
    ],
)
def test_sizes_that_contradict_the_column_stage_are_refused(
    parallel: Parallel, stages: list[int], words: str, tmp_path: Path
) -> None:
    path = write_columns(tmp_path, ONE | {"stage": [stages[rank] for rank in RANK]})["csv"]

    if not words:
        assert [rank.stage for rank in bubbleviz.analyze(path, parallel=parallel).ranks] == [0, 1]
        return
    with pytest.raises(MismatchError) as caught:
        bubbleviz.analyze(path, parallel=parallel)
    assert words in str(caught.value)
    assert "remove --parallel" in str(caught.value)


def test_a_rank_with_two_chunks_and_a_stage_finds_their_virtual_stages(tmp_path: Path) -> None:
    """There are two stages of two chunks each, and forwards run in the order 0, 1, 0, 1."""
    columns: dict[str, Sequence[Any]] = {
        "rank": [0, 1, 0, 1, 1, 0, 1, 0],
        "stage": [0, 1, 0, 1, 1, 0, 1, 0],
        "chunk": [0, 0, 1, 1, 1, 1, 0, 0],
        "phase": ["F"] * 4 + ["B"] * 4,
        "microbatch": [0] * 8,
        "start_ns": range(0, 80, 10),
        "end_ns": range(10, 90, 10),
    }
    operations = bubbleviz.analyze(write_csv(tmp_path / "t.csv", columns)).operations

    assert operations.virtual_stage.tolist() == [0, 2, 2, 0, 1, 3, 3, 1]


def test_chunks_follow_from_virtual_stages_where_a_table_names_none(tmp_path: Path) -> None:
    columns: dict[str, Sequence[Any]] = {
        "rank": [0, 1, 0, 1, 1, 0, 1, 0],
        "virtual_stage": [0, 1, 2, 3, 3, 2, 1, 0],
        "phase": ["F"] * 4 + ["B"] * 4,
        "microbatch": [0] * 8,
        "start_ns": range(0, 80, 10),
        "end_ns": range(10, 90, 10),
    }
    operations = bubbleviz.analyze(write_csv(tmp_path / "t.csv", columns)).operations

    assert operations.chunk.tolist() == [0, 1, 1, 0, 0, 1, 1, 0]
    assert operations.virtual_stage.tolist() == [0, 2, 2, 0, 1, 3, 3, 1]


def write_halves(folder: Path) -> list[Path]:
    paths = []
    for rank in (0, 1):
        rows = [at for at, value in enumerate(RANK) if value == rank]
        half = {name: [cells[row] for row in rows] for name, cells in ONE.items()}
        paths.append(write_csv(folder / f"rank{rank}.csv", half))
    return paths


def test_files_of_ranks_in_one_directory_share_a_clock(tmp_path: Path) -> None:
    paths = write_halves(tmp_path)

    assert get_ratio(bubbleviz.analyze(paths)) == 1 - 120 / 160
    report = bubbleviz.analyze(tmp_path, jobs=2)
    assert get_ratio(report) == 1 - 120 / 160
    assert [rank.label for rank in report.ranks] == ["table rank 0", "table rank 1"]


def test_tables_next_to_profiles_are_ignored(tmp_path: Path) -> None:
    fixture = Path(__file__).parents[2] / "fixtures" / "1f1b"
    for file in fixture.glob("*.sqlite"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_csv(tmp_path / "t.csv", ONE)

    assert [p.format for p in bubbleviz.analyze(tmp_path).profiles] == ["nsys"]


@pytest.mark.parametrize("content", [b"", b"garbage" * 99], ids=["empty", "garbage"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_damaged_table_of_a_run_is_named(kind: str, content: bytes, tmp_path: Path) -> None:
    times: dict[str, Sequence[Any]] = {"phase": ["F", "B"], "start_ns": [0, 9], "end_ns": [5, 20]}
    for rank in range(3):
        files = write_columns(tmp_path, {"rank": [rank, rank], **times}, f"node-{rank}")
        for other in files.keys() - {kind}:
            files[other].unlink()
    (tmp_path / f"node-1.{kind}").write_bytes(content)
    (tmp_path / f"notes.{kind}").write_bytes(content)
    report = bubbleviz.analyze(tmp_path)

    assert len(report.ranks) == 2
    reasons = " ".join(note.reason for note in report.limitations)
    assert f"node-1.{kind}" in reasons
    assert "notes" not in reasons


def test_a_rank_in_two_files_is_refused(tmp_path: Path) -> None:
    first = write_csv(tmp_path / "a.csv", ONE)
    second = write_csv(tmp_path / "b.csv", ONE | {"name": ["x"] * 8})

    with pytest.raises(MismatchError, match="both contain rank 0; put all rows of a rank into one"):
        bubbleviz.analyze([first, second])


def test_hosts_share_a_clock_unless_they_name_clocks(tmp_path: Path) -> None:
    hosts = [f"node{rank}" for rank in RANK]
    delayed = {
        name: [time + 1_000_000 * rank for time, rank in zip(ONE[name], RANK, strict=True)]
        for name in ("start_ns", "end_ns")
    }
    report = bubbleviz.analyze(write_csv(tmp_path / "a.csv", ONE | {"host": hosts}))
    two = bubbleviz.analyze(
        write_csv(tmp_path / "b.csv", ONE | delayed | {"host": hosts, "clock": hosts})
    )

    assert get_ratio(report) == 1 - 120 / 160
    assert [rank.host for rank in report.ranks] == ["node0", "node1"]
    assert len(report.profiles) == 1
    assert [profile.host for profile in two.profiles] == ["node0", "node1"]
    assert two.profiles[1].clock_uncertainty_ns is not None
    assert abs(two.profiles[1].clock_offset_ns + 1_000_000) <= 10


@pytest.mark.parametrize("name", ["rank", "phase", "start_ns", "end_ns"])
def test_a_column_that_is_missing_is_named_with_those_found(name: str, tmp_path: Path) -> None:
    message = get_refusal(tmp_path, drop_columns(name))

    assert f"lacks {name}" in message
    assert all(repr(other) in message for other in ONE if other != name)
    assert "; rename them as described in bubbleviz guide tables, or pass the profile" in message


@pytest.mark.parametrize(
    ("name", "row", "cell", "words"),
    [
        ("rank", 2, None, "row 3: rank is empty"),
        ("rank", 2, -1, "row 3: rank is -1, but must be a whole number from 0"),
        ("rank", 2, 0.5, "row 3: rank is 0.5, but must be a whole number"),
        ("phase", 1, "Fwd", "row 2: phase 'Fwd' is unknown; valid phases are F, B, W, BW"),
        ("phase", 1, "optimiser", "did you mean Optimizer?"),
        ("phase", 1, None, "row 2: phase is empty"),
        ("end_ns", 3, 59, "row 4: end_ns is 59, which is before start_ns (60)"),
        ("end_ns", 3, None, "row 4: end_ns is empty"),
        ("start_ns", 3, float("nan"), "row 4: start_ns is NaN, which is not a time"),
        ("start_ns", 3, float("inf"), "row 4: start_ns is 'inf', which is not a number"),
        ("start_ns", 3, 1e30, "row 4: start_ns is 1e+30, which is centuries away; check the unit"),
        ("microbatch", 4, "x", "row 5: microbatch 'x' is not a whole number"),
        ("microbatch", 1, 0, "repeats the"),
    ],
)
def test_an_impossible_cell_is_named(
    name: str, row: int, cell: object, words: str, tmp_path: Path
) -> None:
    cells = [*ONE[name][:row], cell, *ONE[name][row + 1 :]]
    if name == "microbatch":
        columns: dict[str, list[Any]] = ONE | {
            name: [*map(str, cells)],
            "occurrence": [0] * 8,
            "iteration": [0] * 8,
        }
    else:
        columns = ONE | {name: cells}

    assert words in get_refusal(tmp_path, columns)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"step": [1, 2], "loss": [0.5, 0.4]}, "it lacks rank, phase, start_ns"),
        (
            ONE | {"start_ns": ["0", "10", "soon", "60", "10", "20", "40", "50"]},
            ": row 3: start_ns is 'soon', which is not a number",
        ),
        *(
            (ONE | {name: [10**15, *([0] * 7)]}, "whole number")
            for name in ("rank", "stage", "microbatch", "chunk", "pipeline")
        ),
        ({name: [] for name in ONE}, "the table is empty; write one row per operation"),
        *(
            (
                ONE | {"chunk": [0] * 8, name: [first, first, second, *[first] * 5]},
                (f": row 3: rank 0 has {name} ", "in row 1; use one "),
            )
            for name, first, second in (
                ("stage", 0, 1),
                ("pipeline", 1, 2),
                ("host", "a", "b"),
                ("virtual_stage", 0, 3),
            )
        ),
        (
            {name: [*cells, cells[2]] for name, cells in ONE.items()},
            (
                ": row 9: it repeats the ",
                "of microbatch 0 from row 3; list each operation only once",
            ),
        ),
        (ONE | {"phase": ["R"] * 8}, "contains no forward or backward"),
        (
            ONE | {"duration_ns": [10, 10, 20, 20, 10, 25, 10, 20]},
            ": row 6: duration_ns is 25, but the duration is 20 ns according to start_ns and "
            "end_ns; correct one of these columns, or remove it",
        ),
        (
            ONE | {"end_us": [0, 0, 0, 9, 0, 0, 0, 0]},
            ": row 4: end_us is 9, but the end is 80 ns according to start_ns and end_ns",
        ),
        (
            ONE | {"start_us": [0, 0, 0, 0, 0, 0, 0, 9]},
            ": row 8: start_us is 9, but the start is 50 ns according to start_ns and end_ns",
        ),
        (
            ONE | {"launched_ns": [0, 10, 200_000, 60, 10, 20, 40, 50]},
            ": row 3: launched_ns is 200000, which is after start_ns (40); an operation cannot "
            "start before it is launched",
        ),
    ],
)
def test_impossible_columns_are_refused(
    columns: Columns, words: str | tuple[str, ...], tmp_path: Path
) -> None:
    message = get_refusal(tmp_path, columns)

    assert all(each in message for each in ([words] if isinstance(words, str) else words))


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        (
            "t.csv",
            lambda _: b"rank,phase,start_ns,end_ns,rank\n0,F,0,10,1\n",
            "two columns are named rank; remove one of them",
        ),
        ("t.csv", lambda whole: whole + b"0,F\n", "row 9: it has 2 cells, but the header has 5"),
        (
            "t.csv",
            lambda whole: whole + b"0,F",
            "row 9: the file ends in this row, after 2 of 5 cells; copy the file again",
        ),
        (
            "t.csv",
            lambda whole: whole + b"0,F\n" + whole.splitlines()[-1],
            "row 9: it has 2 cells, but the header has 5",
        ),
        (
            "t.csv",
            lambda whole: whole + b"0,F,1,2,3,4",
            "row 9: it has 6 cells, but the header has 5",
        ),
        (
            "t.csv",
            lambda whole: gzip.compress(whole + b"0,F"),
            "row 9: the file ends in this row, after 2 of 5 cells; copy the file again",
        ),
        ("t.parquet", lambda whole: whole[:-20], r"cannot be read as a Parquet table \("),
    ],
)
def test_files_that_are_not_tables_are_refused(
    name: str, damage: Callable[[bytes], bytes], words: str, tmp_path: Path
) -> None:
    write_columns(tmp_path, ONE, "t")
    path = tmp_path / name
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(BubblevizError, match=rf"{name}: {words}"):
        bubbleviz.analyze(path)


def test_without_pyarrow_a_parquet_file_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_columns(tmp_path, ONE)["parquet"]
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)

    with pytest.raises(
        ProfileError,
        match=r"install it in your clone of bubbleviz with: pip install '\.\[parquet\]'",
    ):
        bubbleviz.analyze(path)


def test_all_commands_handle_tables(tmp_path: Path, cli: CommandLine) -> None:
    path = str(write_csv(tmp_path / "t.csv", ONE))

    _, out, err = cli(path)
    assert "Bubble ratio (schedule): 25.00 %" in out
    assert "is a table of operations" in err
    printed = cli.printed("inspect", path)
    assert "a table of operations (csv)" in printed
    assert "analyze can compute bubble ratios" in printed
    assert "bubbleviz analyze" in cli.refused("idle", path, code=1)


@pytest.mark.parametrize("phase", ["SEND_F", "COLLECTIVE"])
def test_one_kernel_may_move_two_tensors(phase: str, tmp_path: Path) -> None:
    rows = simulate_job(Job(iterations=2)).rows
    row = next(row for row in rows if row["phase"] == phase)
    table = SimulatedJob([*rows, row], [], 0.0).written(tmp_path / "operations.csv")

    assert bubbleviz.analyze(table).bubble_ratio is not None


@pytest.mark.parametrize("phase", ["F", "Optimizer"])
def test_a_repeated_row_is_refused(phase: str, tmp_path: Path) -> None:
    rows = simulate_job(Job(iterations=2)).rows
    row = next(number for number, row in enumerate(rows) if row["phase"] == phase)
    table = SimulatedJob([*rows, rows[row]], [], 0.0).written(tmp_path / "operations.csv")

    with pytest.raises(ProfileError) as error:
        bubbleviz.analyze(table)

    assert f"row {len(rows) + 1}: it repeats the {phase}" in str(error.value)
    assert f"from row {row + 1}; list each operation only once" in str(error.value)


def test_a_rank_without_iterations_next_to_others_is_refused(tmp_path: Path) -> None:
    job = simulate_job(Job(iterations=3))
    for row in job.rows:
        if row["rank"] == 2:
            row["iteration"] = ""

    with pytest.raises(ProfileError, match="rank 2 has no iteration in any row, but other ranks"):
        bubbleviz.analyze(job.written(tmp_path / "operations.csv"))


@pytest.mark.parametrize("stage", [1, 5])
def test_a_wrong_stage_of_a_table_is_suggested(stage: int, tmp_path: Path) -> None:
    job = simulate_job(Job(stages=3, replicas=1, iterations=2))
    for row in job.rows:
        row.pop("virtual_stage", None)
        if row["rank"] == 2:
            row["stage"] = stage
    report = bubbleviz.analyze(job.written(tmp_path / "operations.csv"))

    advice = str(describe_first_steps(report))
    assert advice.startswith("Some ranks of the run are missing")
    assert advice.endswith("If none is missing, correct the column stage")
