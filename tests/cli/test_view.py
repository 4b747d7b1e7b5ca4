"""``bubbleviz view``: what it takes, and that nobody else is served."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from bubbleviz.cli.serving import serving
from bubbleviz.report.saved import read_document
from tests.support.places import CHECKOUT

ONE = str(CHECKOUT / "fixtures" / "1f1b")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("view") / "report.json"
    assert main(["analyze", ONE, "--json", str(file)]) == 0
    return file


def asked(url: str, host: str | None = None) -> tuple[int, bytes]:
    """Return the status and the content of an answer."""
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


def test_only_the_address_itself_is_answered() -> None:
    with serving(b"page") as served:
        answering = threading.Thread(target=served.forever)
        answering.start()
        try:
            base = served.url.rsplit("/", 2)[0]
            found = [
                asked(served.url),
                asked(served.url, host="example.org"),
                asked(f"{base}/"),
                asked(f"{base}/guess/"),
                asked(served.url.rstrip("/")),
            ]
        finally:
            served.stop()
            answering.join()

    assert served.url.startswith("http://127.0.0.1:")
    assert found == [(200, b"page"), *[(404, b"")] * 4]


def test_every_page_has_an_address_of_its_own() -> None:
    with serving(b"") as one, serving(b"") as other:
        assert one.url.split("/")[-2] != other.url.split("/")[-2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("source", ["profiles", "report"])
def test_a_page_is_served_until_it_is_interrupted(
    source: str, number: signal.Signals, saved: Path
) -> None:
    given = ONE if source == "profiles" else str(saved)
    # What runs in the background ignores Ctrl-C, and so would what it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [sys.executable, "-m", "bubbleviz", "view", given, "--no-browser"],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        url = running.stdout.readline().strip()
        status, page = asked(url)
        running.send_signal(number)
        out, err = running.communicate(timeout=300)

    assert (status, page[:15]) == (200, b"<!doctype html>")
    assert (running.returncode, out, err) == (0, "", "")


def test_a_report_can_come_through_a_pipe(saved: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "report"
    os.mkfifo(pipe)
    writing = threading.Thread(target=lambda: pipe.write_bytes(saved.read_bytes()), daemon=True)
    writing.start()

    assert read_document(str(pipe)) == read_document(str(saved))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--skip", "1"], 2, "apply to profiles"),
        (["-j", "2"], 2, "apply to profiles"),
        ([ONE], 2, "view shows one report"),
    ],
)
def test_what_does_not_go_with_a_report_is_refused(
    arguments: list[str],
    code: int,
    said: str,
    saved: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["view", str(saved), *arguments, "--no-browser"]) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "bubbleviz.report/1"}', "[]", "\0"])
def test_what_is_no_report_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    file.write_text(text, encoding="utf-8")

    assert main(["view", str(file), "--no-browser"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version"', '"x": 1e400, "version"'),
        ('"version"', f'"x": {"9" * 5000}, "version"'),
        ('"version"', f'"x": {"[" * 1000}{"]" * 1000}, "version"'),
        ('"version"', '"\udcff": 1, "version"'),
        ('"version"', '"x": "\udcff\udcfe", "version"'),
        ('"phase": [', '"phase": [-1, '),
    ],
)
def test_a_report_with_values_that_cannot_be_is_refused(
    saved: Path, tmp_path: Path, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    text = saved.read_text()
    compact = text.replace('"phase":[', '"phase": [')
    assert old in compact
    file.write_bytes(compact.replace(old, new, 1).encode("utf-8", "surrogateescape"))

    assert main(["view", "--no-browser", str(file)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"bubbleviz: {file}: ")
    assert said.count("\n") == 1
