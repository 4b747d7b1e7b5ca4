"""Inputs of ``bubbleviz view``, and requests that its server refuses."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bubbleviz.cli.serving import open_server
from tests.support.command_line import CommandLine
from tests.support.places import CHECKOUT

ONE = str(CHECKOUT / "fixtures" / "1f1b")


def fetch(url: str, host: str | None = None) -> tuple[int, bytes]:
    """Return the status and content of the response for a URL."""
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


def test_only_requests_for_the_exact_address_are_answered() -> None:
    with open_server(b"page") as (url, server):
        answering = threading.Thread(target=server.serve_forever)
        answering.start()
        try:
            base = url.rsplit("/", 2)[0]
            statuses = [
                fetch(url),
                fetch(url, host="example.org"),
                fetch(f"{base}/"),
                fetch(f"{base}/guess/"),
                fetch(url.rstrip("/")),
            ]
        finally:
            server.shutdown()
            answering.join()

    assert url.startswith("http://127.0.0.1:")
    assert statuses == [(200, b"page"), *[(404, b"")] * 4]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "number"),
    [("profiles", signal.SIGINT), ("report", signal.SIGTERM), ("report", signal.SIGHUP)],
)
def test_a_page_is_served_until_it_is_interrupted(
    source: str, number: signal.Signals, saved: Path
) -> None:
    path = ONE if source == "profiles" else str(saved)
    # Background jobs ignore Ctrl-C, and child processes inherit this setting.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [sys.executable, "-m", "bubbleviz", "view", path, "--no-browser"],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        url = running.stdout.readline().strip()
        status, page = fetch(url)
        running.send_signal(number)
        out, err = running.communicate(timeout=300)

    assert (status, page[:15]) == (200, b"<!doctype html>")
    assert (running.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--skip", "1"], 2, "apply only to profiles"),
        (["-j", "2"], 2, "apply only to profiles"),
        ([ONE], 2, "view shows a single report"),
    ],
)
def test_options_that_do_not_apply_to_a_report_are_refused(
    arguments: list[str], code: int, expected: str, saved: Path, cli: CommandLine
) -> None:
    assert expected in cli.refused("view", str(saved), *arguments, "--no-browser", code=code)
