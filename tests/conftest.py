"""Settings of all tests."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.command_line import CommandLine
from tests.support.places import FIXTURES

# A busy machine is slow, which is no defect: no example has a deadline. Tests whose examples take
# more than 20 ms ask for fewer of them.
settings.register_profile(
    "bubbleviz", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bubbleviz")

# Under nohup, or behind "&" in a script, signals are ignored, and by processes of tests as well:
# those that are to end by one would run for ever.
if threading.current_thread() is threading.main_thread():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)

# What is printed fits the width that the environment gives, which workers of pytest-xdist set.
for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
    os.environ.pop(name, None)


def pytest_xdist_auto_num_workers() -> int:
    """Run on a worker more than there are cores, for some tests wait for other programs."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(autouse=True, scope="session")
def one_core() -> Iterator[None]:
    """Have commands read files here unless told otherwise: workers are busy with other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bubbleviz.native.library.cores", lambda: 1)
        yield


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line, whose output is taken."""
    return CommandLine(capsys)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the saved report of the 1F1B example, which no test changes."""
    from bubbleviz.cli.app import main

    file = tmp_path_factory.mktemp("saved") / "report.json"
    assert main(["analyze", str(FIXTURES / "1f1b"), "--json", str(file)]) == 0
    return file
