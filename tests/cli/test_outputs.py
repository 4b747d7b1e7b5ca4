"""Outputs to pipes, devices, links and invalid paths."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from bubbleviz.errors import InputError, OutputError
from bubbleviz.render.files import check_outputs, write_outputs
from bubbleviz.sources.paths import find_profiles
from tests.support.command_line import CommandLine
from tests.support.places import CHECKOUT

ONE = str(CHECKOUT / "fixtures" / "1f1b")


@pytest.mark.parametrize("force", [False, True])
def test_a_pipe_is_written_into_and_stays_one(tmp_path: Path, force: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")))
    reader.daemon = True
    reader.start()

    check_outputs([str(pipe)], [], force=force)
    write_outputs({str(pipe): "µ" * 100_000}, force=force)
    reader.join(10)

    assert read == ["µ" * 100_000]
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_device_is_reported() -> None:
    with pytest.raises(OutputError, match="/dev/full: cannot be written"):
        write_outputs({"/dev/full": "text"}, force=False)


def test_the_target_of_a_link_is_replaced_only_with_force(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)

    with pytest.raises(OutputError, match="--force"):
        check_outputs([str(link)], [], force=False)
    with pytest.raises(OutputError, match="--force"):
        write_outputs({str(link): "new"}, force=False)
    check_outputs([str(link)], [], force=True)
    write_outputs({str(link): "new"}, force=True)

    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "target.json"]


def test_writing_to_a_dangling_link_creates_its_target(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")

    check_outputs([str(link)], [], force=False)
    write_outputs({str(link): "new"}, force=False)

    assert link.is_symlink()
    assert (tmp_path / "target.json").read_text(encoding="utf-8") == "new"


TOO_LOW = ("--style", "paper,height=5mm")


def test_outputs_that_can_be_made_are_written_if_another_one_cannot(
    cli: CommandLine, tmp_path: Path
) -> None:
    picture, report, summary = (tmp_path / name for name in ("a.svg", "a.json", "a.md"))

    code, out, err = cli("analyze", ONE, "-o", picture, "-o", report, "-o", summary, *TOO_LOW)

    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith(f"bubbleviz: {picture} was not written: --style height=5mm: the minimum")
    assert "Bubble ratio (schedule): 27.27 %" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.md"]


def test_each_output_that_cannot_be_made_is_reported(cli: CommandLine, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.svg", "b.svg")]
    others = [tmp_path / name for name in ("a.json", "a.tex")]
    outputs = [word for file in (*files, *others) for word in ("-o", file)]

    code, out, err = cli("analyze", ONE, "-q", *outputs, *TOO_LOW)

    assert (code, out, err.count("\n")) == (1, "", 2)
    assert all(f"bubbleviz: {file} was not written: " in err for file in files)
    assert all(file.exists() for file in others)


def test_nothing_is_printed_for_a_pipe_if_its_content_cannot_be_made(
    cli: CommandLine, tmp_path: Path
) -> None:
    report = tmp_path / "a.json"

    code, out, err = cli("analyze", ONE, "--svg", "-", "-o", report, *TOO_LOW)

    assert (code, out) == (1, "")
    assert err.startswith("bubbleviz: - was not written: ")
    assert report.exists()


def test_nothing_is_printed_if_no_output_can_be_made(cli: CommandLine, tmp_path: Path) -> None:
    message = cli.refused("analyze", ONE, "-o", tmp_path / "a.svg", *TOO_LOW, code=2)

    assert message.startswith("bubbleviz: --style height=5mm: the minimum")


def test_files_are_written_if_another_one_cannot_be(tmp_path: Path) -> None:
    contents = {str(tmp_path / "gone" / "a.json"): "a", str(tmp_path / "b.json"): "b"}

    with pytest.raises(OutputError, match=r"gone/a\.json: cannot be written"):
        write_outputs(contents, force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


def test_an_empty_output_asks_for_a_name(cli: CommandLine) -> None:
    message = cli.refused("analyze", ONE, "--svg", "")

    assert "is empty; enter a file name" in message


def test_an_unwritable_folder_is_refused_with_the_next_step() -> None:
    with pytest.raises(OutputError, match="; choose a directory that you can write to"):
        write_outputs({"/proc/x.svg": "text"}, force=False)


def test_a_name_that_is_too_long_is_refused_with_a_request_for_a_shorter_one(
    cli: CommandLine,
) -> None:
    name = "n" * 300

    assert cli.refused("analyze", ONE, "--svg", f"{name}.svg").endswith("choose a shorter name\n")
    assert "no file name can be this long" in cli.refused("analyze", f"{name}.sqlite")


@pytest.mark.parametrize("method", ["is_dir", "exists", "iterdir"])
def test_a_path_without_permission_is_refused(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    path = tmp_path if method == "iterdir" else tmp_path / "x.sqlite"
    monkeypatch.setattr(Path, method, forbid)

    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\); check the path"):
        find_profiles([str(path)])


def run(*arguments: str, encoding: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line with the given encoding of its standard output."""
    return subprocess.run(
        [sys.executable, "-m", "bubbleviz", *arguments],
        capture_output=True,
        check=False,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )


@pytest.mark.parametrize(
    ("command", "words"), [("analyze", b"stage 0 FFFF"), ("inspect", b"kernels")]
)
def test_a_table_is_printed_in_any_encoding(command: str, words: bytes) -> None:
    done = run(command, ONE, encoding="ascii")

    assert (done.returncode, done.stderr) == (0, b"")
    assert words in done.stdout
    assert b"?" not in done.stdout


@pytest.mark.parametrize("name", ["svg", "text", "csv", "json"])
def test_files_on_standard_output_are_utf_8(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"x.{name}"
    assert main(["analyze", ONE, f"--{name}", str(file)]) == 0

    done = run("analyze", ONE, f"--{name}", "-", encoding="ascii")

    assert (done.returncode, done.stderr, done.stdout) == (0, b"", file.read_bytes())


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_replaced_file_keeps_its_permissions(mode: int, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("old")
    report.chmod(mode)

    write_outputs({str(report): "new"}, force=True)

    assert report.read_text() == "new"
    assert report.stat().st_mode & 0o777 == mode
