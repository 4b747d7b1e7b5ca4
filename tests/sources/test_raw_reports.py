"""Reports that were not exported are exported with the user's nsys, or refused."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from bubbleviz.cli.app import main
from tests.support.command_line import CommandLine
from tests.support.places import CHECKOUT, FIXTURES

FIXTURE = FIXTURES / "1f1b" / "node0.sqlite"


def put_nsys(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Write a program named nsys, and set the PATH so that no other nsys is found."""
    folder.mkdir()
    nsys = folder / "nsys"
    nsys.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    nsys.chmod(nsys.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


Nsys: TypeAlias = Callable[[str], None]


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nsys:
    """Return a function that puts a script named nsys on the PATH."""
    return partial(put_nsys, tmp_path / "bin", monkeypatch)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "node0.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(b"not what SQLite writes")
    return path


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


COPIES = f'shift 4; test "$(dirname "$1")" != . && cp {FIXTURE} "$1"'


def test_without_nsys_the_export_command_is_printed(
    report: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("PATH", os.devnull)

    message = cli.refused("analyze", str(report), code=1)
    assert f"nsys export --type sqlite --output node0.sqlite {report}" in message
    assert message.count("\n") == 1


def test_the_user_s_nsys_exports_and_nothing_stays(
    report: Path, temporary: Path, cli: CommandLine, nsys: Nsys
) -> None:
    nsys(COPIES)

    document = cli.json("analyze", str(report.parent), "--json", "-")
    assert document["profiles"][0]["path"] == str(report)
    assert list(temporary.iterdir()) == []
    assert [p.name for p in report.parent.iterdir()] == [report.name]


@pytest.mark.parametrize("command", ["nccl", "gaps"])
def test_a_report_goes_by_its_own_path(
    command: str, report: Path, temporary: Path, cli: CommandLine, nsys: Nsys
) -> None:
    nsys(COPIES)

    code, output, errors = cli(command, str(report), "--json", "-", "--window", "time:0s-10000s")
    assert code == 0
    assert str(report) in output
    assert str(temporary) not in output + errors
    assert f"{report}: --window iteration:1-2: no ranges were recognized as steps" in cli.refused(
        command, str(report), "--window", "iteration:1-2", code=1
    )


def test_an_export_is_kept_on_request_and_never_replaced(
    report: Path, cli: CommandLine, nsys: Nsys
) -> None:
    nsys(COPIES)

    assert main(["analyze", str(report), "--keep-export"]) == 0
    export = report.with_suffix(".sqlite")
    assert export.read_bytes() == FIXTURE.read_bytes()
    assert "already exists" in cli.refused("analyze", str(report), "--keep-export", code=1)
    # In a directory, a report that has been exported is read only once.
    assert main(["analyze", str(report.parent)]) == 0


@pytest.mark.parametrize("command", ["analyze", "inspect"])
def test_what_is_wrong_with_an_export_names_the_report(
    command: str, report: Path, temporary: Path, cli: CommandLine, nsys: Nsys
) -> None:
    nsys('shift 4; echo nothing > "$1"')

    message = cli.refused(command, str(report), code=1)
    assert str(report) in message
    assert str(temporary) not in message


#: An nsys that starts to export, creates a marker file next to the report, and never finishes.
SLEEPS = 'shift 4; echo half > "$1"; touch "$2.begun"; exec sleep 60'


def run_until_signal(
    number: signal.Signals, report: Path, temporary: Path, command: str
) -> tuple[int, str, str]:
    """Send a signal while nsys exports, and return the exit code, stdout and stderr."""
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]),
    }
    start_marker = Path(f"{report}.begun")
    # Background processes ignore Ctrl-C, and child processes would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [sys.executable, "-m", "bubbleviz", command, str(report)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        limit = time.monotonic() + 300
        while not start_marker.exists() and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.02)
        assert start_marker.exists()
        assert list(temporary.iterdir())
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.mark.parametrize("command", ["analyze", "inspect"])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_leaves_no_export_and_is_reported_in_one_sentence(
    number: signal.Signals, code: int, command: str, report: Path, temporary: Path, nsys: Nsys
) -> None:
    nsys(SLEEPS)

    exit_code, out, err = run_until_signal(number, report, temporary, command)

    assert (exit_code, out) == (code, "")
    assert list(temporary.iterdir()) == []
    assert err.startswith("bubbleviz: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("stream", "printed", "reason"),
    [
        (">&2", "Processing...\\nThe report was created in 2025.5.1, newer than your version.", ""),
        ("", "The report was created in 2025.5.1, newer than your version.\\n\\n---", ""),
        (">&2", "", "exit code 3"),
        ("; exit 0", "", "exit code 0"),
    ],
)
def test_the_reason_is_the_last_line_that_nsys_prints(
    stream: str,
    printed: str,
    reason: str,
    report: Path,
    capsys: pytest.CaptureFixture[str],
    nsys: Nsys,
) -> None:
    nsys(f"printf '{printed}' {stream}; exit 3")

    assert main(["analyze", str(report)]) == 1
    reason = reason or "The report was created in 2025.5.1, newer than your version"
    assert (
        f"{report}: nsys export failed ({reason}); export the report yourself"
        in capsys.readouterr().err
    )


def test_names_are_quoted_and_never_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine, nsys: Nsys
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("--output=x.nsys-rep", "two words; rm x.nsys-rep"):
        Path(name).write_bytes(b"no database")
    nsys(f'printf "%s\\n" "$@" > "{tmp_path}/given"; exit 1')

    assert cli.refused("analyze", "--", "--output=x.nsys-rep", code=1).endswith(
        "nsys export --type sqlite --output ./--output=x.sqlite ./--output=x.nsys-rep\n"
    )
    assert (tmp_path / "given").read_text(encoding="utf-8").splitlines()[-1].startswith("./--")
    assert "'two words; rm x.nsys-rep'\n" in cli.refused(
        "analyze", "two words; rm x.nsys-rep", code=1
    )


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_an_export_with_the_name_of_a_report_is_read_as_it_is(
    suffix: str, tmp_path: Path, cli: CommandLine
) -> None:
    path = tmp_path / f"node0{suffix}"
    path.write_bytes(FIXTURE.read_bytes())

    assert cli.printed("analyze", str(path)) == cli.printed("analyze", str(FIXTURE))
    assert cli.printed("idle", str(path)) == cli.printed("idle", str(FIXTURE))
