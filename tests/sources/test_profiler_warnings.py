"""Warnings of nsys about missing events are shown next to every result, once per run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

import bubbleviz
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.needs import get_real_file

CUDA, NVTX = (f"Not all {what} events might have been collected." for what in ("CUDA", "NVTX"))
#: Severity and text of messages. Only warnings about CUDA and NVTX are shown.
MESSAGES = (
    (1, "CUDA injection initialized successfully."),
    (2, NVTX),
    (2, "Not all OpenGL events might have been collected."),
    (2, "No NVTX events collected. Does the process use NVTX?"),
    (2, "CUDA_TOKEN=abc CUDA failed"),
    (2, CUDA),
    (2, CUDA),
)
REASON = f"nsys reported: {CUDA} {NVTX}"


def _write_messages(path: Path, messages: Sequence[tuple[int, str, int | None]]) -> None:
    """Replace the messages of nsys in an export by (severity, text, process) rows."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE IF EXISTS DIAGNOSTIC_EVENT")
        database.execute(
            "CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT, globalPid INTEGER)"
        )
        database.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (?, ?, ?)", messages)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a run with two profiles, each with the same messages."""
    truth = plant(Planting(stages=2, iterations=2, servers=2), tmp_path)
    for file in truth.files:
        _write_messages(tmp_path / file.path, [(*message, None) for message in MESSAGES])
    return tmp_path


def test_a_report_contains_one_limitation_for_all_files(run: Path) -> None:
    for report in (bubbleviz.analyze(run), bubbleviz.idle(run)):
        notes = [note for note in report.limitations if "nsys reported" in note.reason]
        assert [(note.what, note.reason, note.count) for note in notes] == [
            ("possibly missing events", REASON, 2)
        ]


def test_the_order_of_the_messages_does_not_matter(run: Path) -> None:
    # Since nsys 2025.6, rows may be exported in any order.
    first = min(run.glob("*.sqlite"))
    _write_messages(first, [(*message, None) for message in reversed(MESSAGES)])

    notes = bubbleviz.idle(run).limitations
    assert [note.count for note in notes if note.reason == REASON] == [2]


def test_the_first_screens_show_the_warnings(run: Path, cli: CommandLine) -> None:
    screen = " ".join(cli.printed("analyze", run).split())
    assert f"{REASON.removesuffix('.')} (2 files)" in screen
    assert screen.count("Not all CUDA") == 1

    sentence = f"warning: possibly missing events (2 files): {REASON}"
    for command in ("idle", "nccl"):
        _, _, stderr = cli(command, run)
        assert stderr.count(sentence) == 1

    assert f"nsys warned  {CUDA} {NVTX}" in cli.printed("inspect", run)


def test_no_ratio_is_marked(run: Path, cli: CommandLine, tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    cli.printed("analyze", run, "-o", output)

    document = json.loads(output.read_text())
    notes = [note for note in document["limitations"] if note["reason"] == REASON]
    assert [(note["what"], note["count"]) for note in notes] == [("possibly missing events", 2)]
    assert not document["restrictions"]


NO_CUDA = "No CUDA events collected. Does the process use CUDA?"
HELPER, RANK = 7 << 24, 9 << 24


def _list_reasons(path: Path, messages: Sequence[tuple[int, str, int | None]]) -> list[str]:
    _write_messages(path, messages)
    notes = bubbleviz.idle(path).limitations
    return [note.reason for note in notes if note.what == "possibly missing events"]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    truth = plant(Planting(stages=2, iterations=2), tmp_path)
    return tmp_path / truth.files[0].path


def test_warnings_about_helper_processes_are_left_out(profile: Path) -> None:
    of_helper = [(2, NO_CUDA, HELPER), (2, CUDA, HELPER), (2, NVTX, HELPER)]
    assert not _list_reasons(profile, of_helper)

    assert _list_reasons(profile, [*of_helper, (2, CUDA, RANK)]) == [f"nsys reported: {CUDA}"]
    assert _list_reasons(profile, [*of_helper, (2, NVTX, None)]) == [f"nsys reported: {NVTX}"]


def test_warnings_about_a_process_with_ranges_but_no_cuda_events_are_shown(profile: Path) -> None:
    messages = [(2, NO_CUDA, RANK), (1, "Number of NVTX events collected: 	5.", RANK)]
    assert _list_reasons(profile, [*messages, (2, CUDA, RANK)]) == [f"nsys reported: {CUDA}"]


@pytest.mark.parametrize("severity", [1, 2])
def test_events_that_hardware_tracing_dropped_are_reported(profile: Path, severity: int) -> None:
    dropped = "Number of incomplete CUPTI events dropped:"
    hardware = (1, "Hardware tracing used for CUDA tracing", RANK)
    message = (severity, f"{dropped} \t102320.", RANK)
    some = "nsys reported: Some incomplete CUPTI events were dropped"
    advice = "trace CUDA by software, with: nsys profile -t cuda-sw,nvtx"
    assert _list_reasons(profile, [hardware, message]) == [f"{some}; {advice}"]
    assert _list_reasons(profile, [(2, CUDA, RANK), message]) == [f"{some}. {CUDA}"]
    assert bubbleviz.inspect(profile).contents.warnings == (CUDA, f"{dropped} 102320.")


def test_inspect_groups_files_whose_warnings_differ_in_counts(run: Path, cli: CommandLine) -> None:
    for number, path in enumerate(sorted(run.glob("*.sqlite"))):
        dropped = f"Number of incomplete CUPTI events dropped: {1000 + number}."
        _write_messages(path, [(2, NVTX, RANK), (2, CUDA, RANK), (1, dropped, RANK)])

    screen = cli.printed("inspect", run)
    assert f"  nsys warned  {CUDA} {NVTX} Number" in screen
    assert "and 1 similar file (-v)" in screen


@pytest.mark.real_files
def test_a_real_profile_shows_its_warnings(cli: CommandLine) -> None:
    file = get_real_file("nsys/nsightful_power_iteration.sqlite")

    _, _, stderr = cli("idle", file)
    assert f"warning: possibly missing events: {REASON}\n" in stderr
    assert f"nsys warned  {CUDA} {NVTX}" in cli.printed("inspect", file)
