"""Reading of recordings: planted numbers, and the intact iterations of damaged files."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.annotate.part_files import encode_line
from bubbleviz.cli.app import main
from bubbleviz.errors import BubblevizError, NothingToAnalyzeError, ProfileError
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.phases import Phase
from bubbleviz.render.json_document import make_document
from bubbleviz.render.picture.picture import picture as render
from bubbleviz.render.text.first_screen import render_first_screen
from bubbleviz.render.text.terminal import Display, join_plain_lines
from bubbleviz.report.sentences import describe_first_steps
from bubbleviz.report.view import View
from bubbleviz.sources.operations.jsonl.parts import FollowedFolder, PartReader
from bubbleviz.sources.paths import find_profiles
from tests.planting import plant
from tests.planting.options import Planting
from tests.planting.truth import Truth
from tests.support.command_line import CommandLine
from tests.support.notes import join_limitations, list_restriction_codes
from tests.support.recorded_runs import record_names, record_run, write_recording

BASE = Planting(jitter=0.1, transfer_ns=20_000, communication=False, kernels=1)
RUNS = {
    "1f1b": BASE,
    "gpipe": replace(BASE, schedule="gpipe"),
    "interleaved": replace(BASE, schedule="interleaved-1f1b", chunks=2),
    "zb-h1": replace(BASE, schedule="zb-h1", iterations=3),
    "zb-v": replace(BASE, schedule="zb-v", iterations=3),
    "no optimizer": replace(BASE, optimizer_ns=-1),
    "slow stage": replace(BASE, slow_stage=2),
    "replicas": replace(BASE, replicas=2, stages=2),
}


def plant_run(folder: Path, planting: Planting = BASE) -> Truth:
    return plant(planting, folder / "planted")


def get_ratios(report: bubbleviz.Report) -> dict[str, dict[str, float | None]]:
    return {
        iteration.name: {name: ratio.value for name, ratio in iteration.ratios.items()}
        for iteration in report.iterations
    }


def get_true_ratios(truth: Truth) -> dict[str, dict[str, float | None]]:
    return {str(iteration.index): iteration.bubble_ratio for iteration in truth.iterations}


@pytest.mark.parametrize("run", RUNS)
def test_a_planted_recording_gives_the_planted_numbers(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = plant_run(tmp_path, RUNS[run])
    record_run(truth, tmp_path / "run", monkeypatch)

    report = bubbleviz.analyze([tmp_path / "run"])

    assert list(get_ratios(report)) == list(get_true_ratios(truth))
    for name, values in get_ratios(report).items():
        assert values == pytest.approx(get_true_ratios(truth)[name], abs=1e-12)
    names = ("rank", "phase", "start_ns", "end_ns")
    columns = (getattr(report.operations, name).tolist() for name in names)
    times = set(zip(*columns, strict=True))
    assert len(times) == len([o for o in truth.operations if o.start_ns is not None])
    chunks = 2 if run in ("interleaved", "zb-v") else 1
    assert set(report.operations.chunk.tolist()) == set(range(chunks))
    assert report.convention == "recording"
    assert "without a profile" not in join_limitations(report)


def test_the_report_is_that_of_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = plant_run(tmp_path, replace(BASE, slow_stage=1, iterations=3))
    record_run(truth, tmp_path / "run", monkeypatch)

    recording = bubbleviz.analyze([tmp_path / "run"])
    profile = bubbleviz.analyze([tmp_path / "planted"])

    first, second = describe_first_steps(profile), describe_first_steps(recording)
    assert first is not None
    assert second is not None
    # A recording contains the ranks of the job, but no GPU and no numbers of kernels.
    expected = first.partition(" It runs as many kernels")[0]
    expected = expected.replace("node0 GPU 1 (pipeline order 1)", "rank 1 (node0)")
    # Without numbers of kernels, moving layers may also save time.
    both = second.partition(" If stage 1 has no more layers")[0]
    assert re.sub(r"up to -\d+\.\d+ % ± \d+\.\d+, or ", "", both) == expected
    assert second != first
    assert recording.headline == profile.headline
    assert recording.schedule is not None
    assert profile.schedule is not None
    assert recording.schedule.name == profile.schedule.name
    assert [(rank.stage, rank.pipeline) for rank in recording.ranks] == [
        (rank.stage, rank.pipeline) for rank in profile.ranks
    ]


def test_clocks_of_several_hosts_are_aligned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = plant_run(tmp_path, replace(BASE, servers=2, stages=4, devices="zero"))
    record_run(truth, tmp_path / "run", monkeypatch, errors_ns=(0, 7_000_000))

    report = bubbleviz.analyze([tmp_path / "run"])

    assert [profile.host for profile in report.profiles] == ["node0", "node0", "node1", "node1"]
    for iteration, true in zip(report.iterations, truth.iterations, strict=True):
        interval = iteration.ratios["schedule"].interval
        ratio = true.bubble_ratio["schedule"]
        assert interval is not None
        assert ratio is not None
        assert interval[0] <= ratio <= interval[1]
        assert interval[1] - interval[0] < 0.01


@pytest.mark.parametrize("has_names", [True, False])
def test_iterations_are_distinguished_with_and_without_names(
    has_names: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = plant_run(tmp_path, replace(BASE, iterations=4))
    record_run(
        truth, tmp_path / "run", monkeypatch, number_of=lambda k: k + 70 if has_names else None
    )

    report = bubbleviz.analyze([tmp_path / "run"])

    first = 70 if has_names else 0
    assert [iteration.name for iteration in report.iterations] == [str(first + k) for k in range(4)]
    assert list(get_ratios(report).values()) == [
        pytest.approx(values, abs=1e-12) for values in get_true_ratios(truth).values()
    ]


def test_a_pause_between_recorded_iterations_is_no_bubble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = plant_run(tmp_path, replace(BASE, iterations=12))
    record_run(truth, tmp_path / "run", monkeypatch, every=5, iterations=2)

    report = bubbleviz.analyze([tmp_path / "run"])
    table = tmp_path / "operations.csv"
    assert main(["analyze", str(tmp_path / "run"), "-o", str(table)]) == 0
    table_report = bubbleviz.analyze([table])

    true = get_true_ratios(truth)
    assert list(get_ratios(report)) == ["0", "1", "5", "6", "10", "11"]
    for name, values in get_ratios(report).items():
        expected = true[name] | ({"period": None} if name in ("1", "6") else {})
        assert values == pytest.approx(expected, abs=1e-12)
    assert get_ratios(table_report) == get_ratios(report)
    assert "only 2 of every 5 iterations were recorded" in join_limitations(report)
    diagnosis = report.explanation.diagnosis
    assert diagnosis is not None
    assert "between-iterations" not in {finding.faults[0].name for finding in diagnosis.findings}


def test_numbers_that_begin_anew_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = plant_run(tmp_path, replace(BASE, iterations=4))
    record_run(truth, tmp_path / "run", monkeypatch, number_of=lambda k: k % 2)

    report = bubbleviz.analyze([tmp_path / "run"])

    assert len(report.iterations) == 4
    assert "these numbers do not increase" in join_limitations(report)


@pytest.mark.parametrize("wait", ["RECV_F mb=0", "COLLECTIVE"])
def test_a_forward_and_its_loss_are_one_operation_that_waits_inside(
    wait: str, tmp_path: Path
) -> None:
    record_names(tmp_path, ("F mb=0", wait, "F mb=0", "F mb=1", "BW mb=0", "F mb=0", "Optimizer"))

    table = bubbleviz.analyze([tmp_path]).operations

    phases = [Phase(phase).label for phase in table.phase[:6].tolist()]
    assert phases == ["F", wait.split(" ", maxsplit=1)[0], "F", "BW", "F", "Optimizer"]
    assert (table.end_ns - table.start_ns)[:6].tolist() == [3_000, *[1_000] * 5]
    assert table.busy_ns[:6].tolist() == table.active_ns[:6].tolist() == [2_000, *[1_000] * 5]
    assert table.occurrence[:6].tolist() == [0, 0, 0, 0, 1, 0]


def list_iteration_numbers(path: Path) -> list[int]:
    reader = PartReader(str(path), Numbering())
    iteration_numbers: list[int] = []
    while (stretch := reader.read()) is not None:
        iteration_numbers += stretch.iterations.number.tolist()
        assert len(stretch.operations) == 2 * len(stretch.iterations)
    return iteration_numbers


def test_a_header_alone_or_an_empty_file_has_no_iterations(tmp_path: Path) -> None:
    path = write_recording(tmp_path)
    content = path.read_bytes()
    header = content.index(b"\n") + 1
    for length in (0, 1, 8, 40, header - 1, header, header + 1, header + 100):
        path.write_bytes(content[:length])

        assert list_iteration_numbers(path) == []
        with pytest.raises(BubblevizError) as refused:
            bubbleviz.analyze([path])
        assert "\n" not in str(refused.value)
        assert length or "the file is empty" in str(refused.value)


def test_iterations_without_operations_are_reported(tmp_path: Path) -> None:
    record_names(tmp_path, (), 1)

    with pytest.raises(NothingToAnalyzeError, match="the recording contains no operations"):
        bubbleviz.analyze([tmp_path])


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(0, 3_000), seed=st.integers(0, 10_000))
def test_a_torn_or_damaged_file_gives_only_complete_iterations(cut: int, seed: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = write_recording(Path(folder), 8)
        content = path.read_bytes()
        header = content.index(b"\n") + 1
        path.write_bytes(content[: len(content) - cut % (len(content) - header)])
        iteration_numbers = list_iteration_numbers(path)
        assert iteration_numbers == list(range(len(iteration_numbers)))
        rng = random.Random(seed)
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(header, len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged))
        iteration_numbers = list_iteration_numbers(path)
        assert set(iteration_numbers) <= set(range(8))
        assert iteration_numbers == sorted(iteration_numbers)
        # Damaged files are refused with a message or accepted.
        assert main(["analyze", str(path)]) in (0, 1)


def damage(path: Path, line: int, position: int = -20) -> None:
    """Flip a bit in a line. Lines are numbered from 0."""
    lines = path.read_bytes().splitlines(keepends=True)
    content = bytearray(lines[line])
    content[position] ^= 1
    lines[line] = bytes(content)
    path.write_bytes(b"".join(lines))


def test_damage_in_the_middle_is_skipped_and_reported(tmp_path: Path, cli: CommandLine) -> None:
    path = write_recording(tmp_path, 4)
    damage(path, line=2)

    report = bubbleviz.analyze([path])

    assert [iteration.name for iteration in report.iterations] == ["0", "2", "3"]
    assert "1 damaged line (line 3: the checksum does not match)" in join_limitations(report)
    assert "Limits: recorded iterations lost to damaged lines" in render_screen(report)
    assert list_restriction_codes(report) == ["single-stage"]
    assert "damaged      1 line (line 3: the checksum does not match)" in cli.printed(
        "inspect", path
    )
    # No iteration follows the iteration before the damage.
    assert get_ratios(report)["0"]["period"] is None
    assert get_ratios(report)["2"]["period"] is not None


def test_damage_at_the_end_is_reported(tmp_path: Path) -> None:
    path = write_recording(tmp_path, 4)
    damage(path, line=-1)

    report = bubbleviz.analyze([path])

    assert [iteration.name for iteration in report.iterations] == ["0", "1", "2"]
    assert "1 damaged line (line 5: the checksum does not match)" in join_limitations(report)
    assert "process was killed" not in join_limitations(report)
    assert "Limits: recorded iterations lost to damaged lines" in render_screen(report)


def test_a_torn_last_line_is_not_damage(tmp_path: Path) -> None:
    path = write_recording(tmp_path, 4)
    path.write_bytes(path.read_bytes()[:-30])

    report = bubbleviz.analyze([path])

    assert "process was killed" in join_limitations(report)
    assert "Limits:" not in render_screen(report)


def test_operations_whose_names_are_damaged_restrict_the_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_run(plant_run(tmp_path / "run", replace(BASE, iterations=4)), tmp_path, monkeypatch)
    path = tmp_path / "rank-00001.bvrec"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    names, operations = lines[1]["names"], lines[1]["operations"]
    optimizer_id = next(number for number, name in names.items() if "Optimizer" in name)
    row = operations["name"].index(int(optimizer_id))
    # The first iteration does not name the optimizer.
    # The second iteration does, and is damaged.
    for column in operations.values():
        del column[row]
    lines[2]["names"] = {optimizer_id: names.pop(optimizer_id)}
    path.write_bytes(b"".join(map(encoded, lines)))
    damage(path, line=2)

    report = bubbleviz.analyze(tmp_path)
    mark = "incomplete: names of recorded operations are damaged"
    picture = ET.fromstring(render(report, View()))

    assert list_restriction_codes(report)[:1] == ["recorded-names-lost"]
    assert f"! {mark}" in render_screen(report)
    assert mark in " ".join(picture.itertext())
    assert make_document(report)["restrictions"][0]["text"] == mark
    assert (report.what_to_do_first or "").startswith("Copy the recordings again")


def encoded(line: dict[str, object]) -> bytes:
    """Return a line with its checksum."""
    return encode_line({key: value for key, value in line.items() if key != "crc"})


def render_screen(report: bubbleviz.Report) -> str:
    """Return the first screen, with each block on one line."""
    lines = render_first_screen(report, View(), Display(width=200))
    return join_plain_lines(lines)


@pytest.mark.parametrize("position", [1, 40, -20, -2])
def test_damage_to_names_is_reported_as_such(position: int, tmp_path: Path) -> None:
    path = write_recording(tmp_path)
    damage(path, 1, position)

    with pytest.raises(
        ProfileError, match="the operation names in the recording are damaged; copy"
    ):
        bubbleviz.analyze([path])


def test_a_recording_of_damaged_lines_alone_says_what_is_wrong(tmp_path: Path) -> None:
    path = write_recording(tmp_path, 2)
    damage(path, 1)
    damage(path, 2)

    with pytest.raises(
        ProfileError, match=r"every line of the recording is damaged \(line 2: the checksum"
    ):
        bubbleviz.analyze([path])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (0, "the header of the recording is damaged; copy the file again"),
        (1, "the operation names in the recording are damaged; copy the file again"),
    ],
)
def test_what_to_do_about_a_damaged_rank_comes_first(
    line: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_run(plant_run(tmp_path / "run"), tmp_path, monkeypatch)
    damaged = tmp_path / "rank-00002.bvrec"
    damage(damaged, line)

    first = bubbleviz.analyze(tmp_path).what_to_do_first

    assert (
        f"1 profile in the directory cannot be read, so the run's bubble is unknown: {damaged}"
        in (first or "")
    )
    assert reason in (first or "")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"recording/1", b"recording/2", "the header of the recording is damaged"),
        (b'"rank":0', b'"rank":1', "the header of the recording is damaged"),
        (b"schema", b"scheme", "not a trace from PyTorch"),
        (b'{"schema":"bubbleviz.recording/1"', b"bvrec\r\n\x1a\x01\x00", "record the run again"),
    ],
)
def test_a_damaged_header_and_an_old_format_are_refused(
    old: bytes, new: bytes, reason: str, tmp_path: Path
) -> None:
    path = write_recording(tmp_path)
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))

    with pytest.raises(ProfileError, match=reason):
        bubbleviz.analyze([path])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"schema": "bubbleviz.recording/2"},
            "has schema bubbleviz.recording/2, but this version",
        ),
        (
            {"rank": -1},
            r"header of the recording is invalid \(Expected `int` >= 0 - at `..rank`",
        ),
        (
            {"clock": None},
            r"header of the recording is invalid \(Expected `object`, got `null` - at `..clock`",
        ),
        (
            {"rank": 10**6},
            r"header of the recording is invalid \(Expected `int` <= 999999 - at `..rank`",
        ),
        (
            {"world_size": 10**12},
            r"header of the recording is invalid \(Expected `int` <= 1000000 - at `..world_size`",
        ),
    ],
)
def test_another_version_and_a_wrong_header_are_refused(
    changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    path = write_recording(tmp_path)
    header, _, rest = path.read_bytes().partition(b"\n")
    fields = json.loads(header)
    del fields["crc"]
    path.write_bytes(encode_line({**fields, **changes}) + rest)

    with pytest.raises(ProfileError, match=reason):
        bubbleviz.analyze([path])


def test_names_of_a_newer_bubbleviz_are_left_out(tmp_path: Path) -> None:
    record_names(tmp_path, ("F mb=0", "BW mb=0", "Quantise mb=0", "x" * 2_000, "ä" * 40))

    report = bubbleviz.analyze([tmp_path])

    assert len(report.operations) == 4
    assert "ranges with unknown names" in join_limitations(report)


def list_paths(*paths: Path) -> list[str]:
    return [Path(file.path).name for file in find_profiles([str(path) for path in paths])]


def test_a_folder_stands_for_its_newest_run(tmp_path: Path) -> None:
    for rank in range(4):
        write_recording(tmp_path, rank=rank, world_size=4)
    for rank in range(2):
        write_recording(tmp_path, rank=rank, world_size=2, hour=1)

    assert list_paths(tmp_path) == ["rank-00000.1.bvrec", "rank-00001.1.bvrec"]
    assert list_paths(tmp_path / "rank-00000.bvrec") == ["rank-00000.bvrec"]
    assert "other recordings" in join_limitations(bubbleviz.analyze([tmp_path]))
    assert "other recordings" not in join_limitations(
        bubbleviz.analyze(write_rotated(tmp_path / "alone"))
    )


def test_a_rank_that_recorded_nothing_since_the_restart_is_left_out(tmp_path: Path) -> None:
    for hour, rank in enumerate((0, 1, 0)):
        write_recording(tmp_path, rank=rank, world_size=2, hour=hour // 2)

    assert list_paths(tmp_path) == ["rank-00000.1.bvrec"]
    assert "ranks without a profile" in join_limitations(bubbleviz.analyze([tmp_path]))


def write_rotated(folder: Path) -> list[Path]:
    """Write a recording of several parts, and return them in order."""
    record_names(folder, ("F mb=0 stage=0", "BW mb=0 stage=0"), 40, limit_bytes=4_000)
    return sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def test_parts_are_read_together_however_they_are_named(tmp_path: Path) -> None:
    parts = write_rotated(tmp_path)
    assert len(parts) == 4

    complete_ratios = get_ratios(bubbleviz.analyze([tmp_path]))

    assert get_ratios(bubbleviz.analyze([parts[2]])) == complete_ratios
    assert get_ratios(bubbleviz.analyze(parts)) == complete_ratios
    assert get_ratios(bubbleviz.analyze([str(tmp_path / "*.bvrec")])) == complete_ratios
    names = [int(name) for name in complete_ratios]
    assert names == list(range(names[0], 40))
    assert all(values["period"] is not None for values in list(complete_ratios.values())[:-1])


def test_a_missing_part_is_a_gap(tmp_path: Path) -> None:
    parts = write_rotated(tmp_path)
    parts[1].unlink()

    # Without the missing part, the last parts are not connected to the first part.
    report = bubbleviz.analyze([parts[3]])

    names = [int(iteration.name) for iteration in report.iterations]
    assert names == list(range(names[0], 40))


def test_the_first_look_and_inspect_recognize_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    write_recording(tmp_path, rank=1, world_size=4)

    assert main([str(tmp_path)]) == 0
    assert "is a recording from bubbleviz.annotate" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for words in ("a recording\n", "1 of 4", "node7", "the host itself", "2025-10-09", "UTC"):
        assert words in out
    assert main(["idle", str(tmp_path)]) == 1
    assert "without kernels, calls or ranges" in capsys.readouterr().err


def test_a_truncated_or_replaced_file_is_read_again(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "a", 4)
    other = write_recording(tmp_path / "b", 9, rank=3)
    reader = PartReader(str(path), Numbering())

    def seen() -> list[int]:
        iteration_numbers: list[int] = []
        while (stretch := reader.read()) is not None:
            iteration_numbers += stretch.iterations.number.tolist()
        return iteration_numbers

    assert seen() == [0, 1, 2, 3]
    header, first, *_ = path.read_bytes().splitlines(keepends=True)
    os.truncate(path, len(header) + len(first) + 50)
    assert seen() == [0]
    shutil.copy(other, path)
    assert seen() == list(range(9))
    assert reader.header is not None
    assert reader.header.rank == 3


def test_new_iterations_in_a_folder_are_followed(tmp_path: Path) -> None:
    folder = FollowedFolder(str(tmp_path / "run"))
    assert list(folder.new()) == []
    write_recording(tmp_path / "run", 2, rank=0, world_size=2)
    (tmp_path / "run" / "notes.bvrec").write_text("no recording")

    ((_, stretch),) = folder.new()

    assert stretch.iterations.number.tolist() == [0, 1]
    assert [Path(path).name for path in folder.unreadable] == ["notes.bvrec"]
    assert list(folder.new()) == []
    second = write_recording(tmp_path / "run", 3, rank=1, world_size=2)
    ((part, stretch),) = folder.new()
    assert (part.path, len(stretch.iterations)) == (str(second), 3)
    assert folder.names.values == ("bubbleviz:F mb=0 stage=0", "bubbleviz:BW mb=0 stage=0")
    assert stretch.operations.name_id.tolist() == [0, 1] * 3
    second.unlink()
    assert list(folder.new()) == []
    assert len(folder.parts) == 2


def test_a_recording_that_contradicts_itself_names_both_operations(tmp_path: Path) -> None:
    record_names(tmp_path, ("F mb=0 chunk=0 stage=0", "F mb=1 chunk=0 stage=3", "BW mb=0 stage=0"))

    with pytest.raises(ProfileError) as caught:
        bubbleviz.analyze(tmp_path)
    assert "operation 2: rank 0 has virtual_stage 3 here but 0 in operation 1" in str(caught.value)


@pytest.mark.parametrize("command", ["analyze", "inspect", "idle", "nccl", "pgle"])
@pytest.mark.parametrize("is_file_named", [True, False])
def test_an_empty_recording_is_recognized(
    command: str, is_file_named: bool, tmp_path: Path, cli: CommandLine
) -> None:
    path = tmp_path / "rank-00000.bvrec"
    path.touch()
    sentence = cli.refused(command, path if is_file_named else tmp_path, code=1)

    assert (
        "rank-00000.bvrec: the file is empty because its process recorded nothing; record"
        in sentence
    )
    assert "nsys" not in sentence
