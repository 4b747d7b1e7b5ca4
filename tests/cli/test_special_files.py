"""Special files as inputs and outputs are refused with a message instead of blocking."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from bubbleviz.errors import InputError, OutputError
from bubbleviz.model import files
from bubbleviz.render import files as outputs
from tests.support.command_line import CommandLine, run_program
from tests.support.places import FIXTURES

EXAMPLE = str(FIXTURES / "1f1b")
TIMES = ["--tf", "1", "--tb", "1", "--tw", "1"]
COMMANDS = {
    "convention": ["analyze", EXAMPLE, "--convention", "{}"],
    "activities": ["idle", EXAMPLE, "--activities", "{}"],
    "plan": ["simulate", "--plan", "{}", *TIMES],
    "analyzed plan": ["analyze", EXAMPLE, "--plan", "{}"],
    "times": ["simulate", "--from", "{}", "--schedule", "1f1b"],
    "gate": ["gate", "{}", "--max-bubble", "schedule=0.1"],
    "compare": ["compare", "{}", "{}"],
    "view": ["view", "{}"],
    "costs": ["pgle", EXAMPLE, "--against", "{}"],
    "profile": ["analyze", "{}"],
    "any": ["idle", "{}"],
    "events": ["nccl", "{}"],
    "inspected": ["inspect", "{}"],
}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(outputs, "_MAX_WAIT_S", 0.2)


def run_refused(command: str, path: str, cli: CommandLine) -> str:
    """Run a command on a path in this process, and return its one-line error message."""
    _, _, complaint = outcome = cli(*(word.format(path) for word in COMMANDS[command]))

    assert outcome[0] in {1, 2}, complaint
    assert complaint.count("\n") == 1
    assert complaint.startswith("bubbleviz: ")
    return complaint


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_that_never_ends_is_refused(command: str, cli: CommandLine) -> None:
    link = "/dev/zero"

    assert link in run_refused(command, link, cli) or command in {"plan", "analyzed plan"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("suffix", ["", ".csv", ".json", ".toml"])
def test_a_pipe_without_a_writer_is_refused(
    command: str, suffix: str, tmp_path: Path, cli: CommandLine
) -> None:
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)

    assert str(pipe) in run_refused(command, str(pipe), cli)


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="no kernel log to read here")
@pytest.mark.parametrize("command", [*COMMANDS][4:])
def test_a_kernel_log_is_refused(command: str, cli: CommandLine) -> None:
    assert "/proc/kmsg" in run_refused(command, "/proc/kmsg", cli)


@pytest.mark.timeout(120)
@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="no kernel log to read here")
@pytest.mark.parametrize("command", ["profile", "any", "events", "inspected"])
@pytest.mark.parametrize("name", ["log.json.gz", "log.sqlite"])
def test_a_kernel_log_among_profiles_is_refused(
    name: str, command: str, tmp_path: Path, cli: CommandLine
) -> None:
    (tmp_path / "node0.sqlite").symlink_to(FIXTURES / "1f1b" / "node0.sqlite")
    for link in (name, "log.json", "log.txt"):
        (tmp_path / link).symlink_to("/proc/kmsg" if link == name else "/dev/zero")

    words = [word.format(tmp_path) for word in COMMANDS[command]]
    code, out, err = cli(*words, *(("-v", "coverage") if command == "profile" else ()))
    assert code == 0
    assert f"{name}: is a special file" in " ".join((out + err).split())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_directory_and_an_empty_file_are_refused(
    command: str, tmp_path: Path, cli: CommandLine
) -> None:
    empty = tmp_path / "empty.csv"
    empty.touch()

    run_refused(command, str(empty), cli)


def test_an_output_pipe_without_a_reader_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)

    with pytest.raises(
        OutputError, match="no process is reading from this pipe; start the reader first"
    ):
        outputs.write_outputs({str(pipe): "text"}, force=False)


def test_a_refusal_of_a_large_file_names_the_size(tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    large.write_bytes(bytes(3000))

    with pytest.raises(InputError, match=r"large\.toml: larger than 2 KiB, so it cannot be a list"):
        files.read_bounded(str(large), 2048, "a list", "shorten it")
    assert files.read_bounded(str(large), 3000, "a list", "shorten it") == bytes(3000)


def test_a_pipe_of_the_shell_is_read(saved: Path) -> None:
    script = f'"{sys.executable}" -m bubbleviz gate <(sleep 0.5; cat {saved}) --max-bubble step=1'

    start_s = time.monotonic()
    done = run_program(["bash", "-c", script])

    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start_s > 0.5


def test_a_directory_with_json_files_asks_for_the_files(tmp_path: Path, cli: CommandLine) -> None:
    for name in ("rank10.json", "rank2.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")

    code, _, error = cli("analyze", tmp_path)
    message = " ".join(error.split())

    assert code == 1
    assert "contains no profile" in message
    assert "if the JSON files are traces, pass them by name, such as" in message
    assert message.endswith("rank2.json")
    assert "nsys export" not in message


@pytest.mark.parametrize("ending", ["jsonl", "txt", "pftrace", "otf2", "pickle"])
def test_empty_files_of_other_tools_are_not_called_reports_of_nsys(
    ending: str, tmp_path: Path, cli: CommandLine
) -> None:
    empty = tmp_path / f"empty.{ending}"
    empty.touch()

    code, _, error = cli("analyze", empty)

    assert code == 1
    assert "the file is empty" in error
    assert "nsys" not in error
