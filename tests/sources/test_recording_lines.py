"""Lines of recordings are read back unchanged, whichever program wrote them."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.annotate.part_files import Block, Clocks, PartFiles
from bubbleviz.model.numbering import Numbering
from bubbleviz.recording_layout import LONGEST_TEXT, NONE, SUFFIX
from bubbleviz.sources.operations.jsonl import parts
from bubbleviz.sources.operations.jsonl.parts import PartReader, Stretch
from bubbleviz.sources.operations.jsonl.sessions import read_session
from bubbleviz.sources.operations.schema import MAX_RANK
from tests.support.places import CHECKOUT

TIMES = st.integers(0, 2**61)
#: Clock times of a process that lives for less than 104 days.
OFFSETS = st.integers(-(2**40), 2**52)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
CLOCKS = st.tuples(TIMES, TIMES, st.integers(0, 2**32))


@st.composite
def draw_block(draw: st.DrawFn) -> Block:
    """Return an iteration whose fields have arbitrary values."""
    start_ns = draw(st.integers(2**53, 2**60))
    on_device = draw(st.booleans())
    block = Block(
        number=draw(st.none() | st.integers(0, 10**9)),
        is_recorded=True,
        after_pause=draw(st.booleans()),
        start_ns=start_ns,
        end_ns=draw(TIMES),
        device_offset_ns=draw(st.integers(-(2**60), 2**60)) if on_device else 0,
        n_lost=draw(st.integers(0, 10**6)),
        on_device=on_device,
    )
    times = OFFSETS.map(lambda offset_ns: start_ns + offset_ns)
    for _ in range(draw(st.integers(0, 5))):
        thread = draw(st.integers(0, 3)) * 2**40
        block.stamps.append(
            (draw(TEXTS), draw(st.booleans()), thread, draw(times), draw(times), None)
        )
        if on_device:
            block.spans.append(draw(st.just((NONE, NONE)) | st.tuples(times, times)))
    return block


def list_rows(stretch: Stretch, names: tuple[str, ...]) -> list[tuple[object, ...]]:
    """Return the fields of all operations, row by row."""
    operations = stretch.operations
    columns = (
        operations.iteration,
        operations.thread,
        operations.launches,
        operations.host_start_ns,
        operations.host_end_ns,
        operations.start_ns,
        operations.end_ns,
        operations.times_lost,
    )
    texts = [names[name_id] for name_id in operations.name_id.tolist()]
    return list(zip(texts, *(column.tolist() for column in columns), strict=True))


def list_expected_rows(blocks: list[Block]) -> list[tuple[object, ...]]:
    """Return the expected rows for written iterations, in the format of :func:`list_rows`."""
    threads: dict[int, int] = {}
    rows: list[tuple[object, ...]] = []
    for iteration, block in enumerate(blocks):
        spans = block.spans or [(NONE, NONE)] * len(block.stamps)
        for (name, launches, thread, *host, _), span in zip(block.stamps, spans, strict=True):
            number = threads.setdefault(thread, len(threads))
            is_lost = block.on_device and span[0] == NONE and not launches
            rows.append((name, iteration, number, launches, *host, *span, is_lost))
    return rows


@settings(max_examples=150, deadline=None)
@given(
    blocks_and_clocks=st.lists(st.tuples(draw_block(), CLOCKS), min_size=1, max_size=4),
    coordinates=st.tuples(st.integers(0, MAX_RANK), st.just(NONE) | st.integers(1, MAX_RANK + 1)),
    start_ns=TIMES,
    sampled=st.just((0, 0)) | st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
    texts=st.tuples(TEXTS, st.none() | TEXTS, TEXTS),
    chunk_bytes=st.sampled_from([1, parts.CHUNK_BYTES]),
)
def test_every_field_comes_back(
    blocks_and_clocks: list[tuple[Block, Clocks]],
    coordinates: tuple[int, int],
    start_ns: int,
    sampled: tuple[int, int],
    texts: tuple[str, str | None, str],
    chunk_bytes: int,
) -> None:
    # Iterations are read in the order of their clock times.
    blocks_and_clocks.sort(key=lambda each: each[0].start_ns)
    host, device, run = texts
    environment = {"SLURM_JOB_ID": run.replace("\0", "")}
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("socket.gethostname", return_value=host),
        mock.patch.dict("os.environ", environment, clear=True),
        mock.patch.object(parts, "CHUNK_BYTES", chunk_bytes),
    ):
        files = PartFiles(
            Path(folder),
            1 << 20,
            rank_and_size=coordinates,
            start_ns=start_ns,
            sampled=sampled,
            device=device,
        )
        for block, clock in blocks_and_clocks:
            files.append(block, clock)
        files.close()
        session = read_session(str(next(Path(folder).iterdir())), lambda _: None)

    header = session.header
    began = header.clock
    assert (began.monotonic_ns, began.utc_ns, began.half_width_ns) == blocks_and_clocks[0][1]
    assert (header.rank, header.world_size, header.began_ns) == (*coordinates, start_ns)
    assert (header.every, header.iterations, header.part) == (*sampled, 0)
    assert (header.host, header.device, header.run) == (host, device, environment["SLURM_JOB_ID"])
    iterations = session.stretch.iterations
    columns = (
        iterations.number,
        iterations.start_ns,
        iterations.end_ns,
        iterations.after_gap,
        iterations.n_lost,
        iterations.device_ns,
        iterations.monotonic_ns,
        iterations.utc_ns,
    )
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (
            NONE if block.number is None else block.number,
            block.start_ns,
            block.end_ns,
            block.after_pause,
            block.n_lost,
            block.device_offset_ns,
            *clocks[:2],
        )
        for block, clocks in blocks_and_clocks
    ]
    blocks_written = [block for block, _ in blocks_and_clocks]
    assert list_rows(session.stretch, session.names) == list_expected_rows(blocks_written)
    assert (session.n_damaged, session.tail_bytes) == (0, 0)


def test_a_long_text_is_cut_and_one_that_is_not_unicode_is_replaced(tmp_path: Path) -> None:
    files = PartFiles(
        tmp_path,
        1 << 20,
        rank_and_size=(0, 1),
        start_ns=0,
        sampled=(0, 0),
        device="\udcff" + "ä" * 2_000,
    )
    block = Block(number=0, is_recorded=True, after_pause=False, start_ns=5, end_ns=9)
    block.stamps.append(("x" * 2_000, False, 1, 6, 7, None))
    files.append(block, (1, 2, 3))
    files.close()
    session = read_session(str(next(tmp_path.iterdir())), lambda _: None)

    assert session.names == ("x" * LONGEST_TEXT,)
    assert session.header.device == "?" + "ä" * ((LONGEST_TEXT - 1) // 2)


HEADER = {
    "schema": "bubbleviz.recording/1",
    "rank": 0,
    "began_ns": 1_000,
    "clock": {"monotonic_ns": 2_000, "utc_ns": 1_760_000_000_000_000_000},
}
NAMES = {"0": "bubbleviz:F mb=0 stage=0", "1": "bubbleviz:BW mb=0 stage=0"}


def make_iteration_line(number: int, **extra_fields: Any) -> dict[str, Any]:
    """Return the line of an iteration as another program may write it."""
    start_ns = 10_000 * (number + 1)
    return {
        "iteration": number,
        "start_ns": start_ns,
        "end_ns": start_ns + 9_000,
        "clock": {"monotonic_ns": start_ns + 9_000, "utc_ns": 1_760_000_000_000_000_000 + start_ns},
        "names": NAMES,
        "operations": {"name": [0, 1], "start": [0, 4_000], "end": [3_000, 9_000]},
        **extra_fields,
    }


def write(folder: Path, lines: list[dict[str, Any]], newline: str = "\n") -> Path:
    path = folder / f"rank-00000{SUFFIX}"
    path.write_text("".join(json.dumps(line) + newline for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("newline", ["\n", "\r\n", " \n"])
def test_lines_of_other_writers_need_no_checksum_and_may_have_blanks(
    newline: str, tmp_path: Path
) -> None:
    extra_fields = {"added_by_a_later_version": [1]}
    lines = [HEADER | extra_fields, make_iteration_line(0), make_iteration_line(1, **extra_fields)]
    with (write(tmp_path, lines, newline)).open("ab") as file:
        file.write(b"{")

    report = bubbleviz.analyze([tmp_path])

    assert [measured.name for measured in report.iterations] == ["0", "1"]
    operations = report.operations
    times = zip(operations.start_ns.tolist(), operations.end_ns.tolist(), strict=True)
    assert [end - start for start, end in times] == [3_000, 5_000] * 2


WRONG = {
    "no JSON": ("nonsense", "malformed"),
    "a list": ([1], "Expected `object`, got `array`"),
    "no number": (
        make_iteration_line(1, start_ns="x"),
        "Expected `int`, got `str` - at `$.start_ns`",
    ),
    "missing": ({"iteration": 1}, "Object missing required field `start_ns`"),
    "a large name": (make_iteration_line(1, names={str(2**40): "x"}), "Expected `int` <= 16777215"),
    "a large time": (make_iteration_line(1, end_ns=2**63), "Expected `int` <= 4611686018427387903"),
    "lengths": (
        make_iteration_line(1, operations={"name": [0], "start": [0], "end": []}),
        "operation columns differ in length",
    ),
    "optional lengths": (
        make_iteration_line(
            1, operations={"name": [0], "start": [0], "end": [1], "thread": [0, 1]}
        ),
        "operation columns differ in length",
    ),
    "half a device": (
        make_iteration_line(
            1, operations={"name": [0], "start": [0], "end": [1], "device_start": [0]}
        ),
        "device_start and device_end differ in length",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_line_is_left_out_with_its_number_and_the_reason(case: str, tmp_path: Path) -> None:
    wrong, reason = WRONG[case]
    path = write(tmp_path, [HEADER, make_iteration_line(0), make_iteration_line(2)])
    lines = path.read_text(encoding="utf-8").splitlines()
    lines.insert(2, wrong if isinstance(wrong, str) else json.dumps(wrong))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    session = read_session(str(path), lambda _: None)

    assert session.stretch.iterations.number.tolist() == [0, 2]
    assert session.stretch.iterations.after_gap.tolist() == [False, True]
    assert session.n_damaged == 1
    assert session.damage.startswith("line 3: ")
    assert reason in session.damage


def test_a_name_that_no_line_defines_is_unknown(tmp_path: Path) -> None:
    operations = {"name": [0, 7, 1], "start": [0, 1, 2], "end": [1, 2, 3]}
    path = write(tmp_path, [HEADER, make_iteration_line(0, operations=operations)])

    session = read_session(str(path), lambda _: None)

    assert session.stretch.operations.name_id.tolist() == [0, NONE, 1]


def test_a_line_is_read_once_it_is_whole_byte_by_byte(tmp_path: Path) -> None:
    content = write(tmp_path, [HEADER, make_iteration_line(0), make_iteration_line(1)]).read_bytes()
    line_ends = [match.end() for match in re.finditer(b"\n", content)][1:]
    path = tmp_path / "growing.bvrec"
    path.touch()
    reader = PartReader(str(path), Numbering())
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        stretch = reader.read()

        read = [] if stretch is None else stretch.iterations.number.tolist()
        assert read == [number for number, end in enumerate(line_ends) if end == size]
    assert reader.tail_bytes == reader.n_damaged == 0


def test_lines_that_another_machine_sees_late_are_not_damage(tmp_path: Path) -> None:
    """A network file system may show zeros until the data arrives."""
    path = write(
        tmp_path, [HEADER, make_iteration_line(0), make_iteration_line(1), make_iteration_line(2)]
    )
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], bytes(len(lines[2]) - 1), b"\n"]))
    reader = PartReader(str(path), Numbering())
    first = reader.read()
    assert reader.read() is None
    path.write_bytes(content)
    rest = reader.read()

    assert first is not None
    assert rest is not None
    assert first.iterations.number.tolist() == [0]
    assert rest.iterations.number.tolist() == [1, 2]
    assert not rest.iterations.after_gap.any()
    assert (reader.n_damaged, reader.damage) == (0, "")


def test_the_lines_of_the_guide_are_a_recording(tmp_path: Path) -> None:
    guide = (CHECKOUT / "bubbleviz" / "guides" / "record.md").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in guide.splitlines() if line.startswith("    {")]
    assert len(lines) == 2
    path = write(tmp_path, lines)

    session = read_session(str(path), lambda _: None)

    assert session.n_damaged == 0
    assert session.header.device == "NVIDIA H200"
    assert session.stretch.operations.launches.tolist() == [False, True, False]
    assert session.stretch.operations.times_lost.tolist() == [False, False, False]
    assert session.names == (
        "bubbleviz:F mb=0 stage=1",
        "bubbleviz:SEND_F mb=0 stage=1",
        "bubbleviz:Optimizer",
    )
