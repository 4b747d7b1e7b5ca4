"""Settings and fixtures for all tests."""

import os
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.command_line import CommandLine
from tests.support.needs import NEEDS
from tests.support.places import FIXTURES

# Hypothesis examples have no deadline because the machine may be busy.
# A test whose examples take more than 20 ms each runs fewer examples.
settings.register_profile(
    "bubbleviz", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bubbleviz")

# Signals are ignored under nohup or after "&" in a script, and child processes inherit this.
# Tests that end a process with a signal would then wait forever.
if threading.current_thread() is threading.main_thread():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)

# The width of printed tables depends on the environment, which pytest-xdist sets in its workers.
for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
    os.environ.pop(name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nothing-missing",
        action="store_true",
        help="fail tests whose files or programs are missing instead of skipping them",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that open a page in a browser, so that ``-m browser`` selects these tests."""
    for item in items:
        if {"browser", "firefox"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("browser")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose requirement this machine lacks, or fail it under ``--nothing-missing``."""
    required = [need for name, need in NEEDS.items() if item.get_closest_marker(name)]
    for need in required:
        if need.is_met():
            continue
        if item.config.getoption("--nothing-missing"):
            pytest.fail(need.sentence, pytrace=False)
        pytest.skip(need.sentence)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under ``--nothing-missing``, fail every test that is skipped for any reason."""
    report = yield
    is_expected_failure = hasattr(report, "wasxfail")
    is_skip = report.skipped and not is_expected_failure
    if is_skip and item.config.getoption("--nothing-missing"):
        report.outcome = "failed"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Under ``--nothing-missing``, fail a module that is skipped completely."""
    report = yield
    if report.skipped and collector.config.getoption("--nothing-missing"):
        report.outcome = "failed"
    return report


def pytest_xdist_auto_num_workers() -> int:
    """Use one worker more than there are cores, because some tests wait for other programs."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(autouse=True, scope="session")
def one_core() -> Iterator[None]:
    """By default, read files in this process only, because other test workers need the cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bubbleviz.cli.options.count_cores", lambda: 1)
        yield


@pytest.fixture(autouse=True, scope="session")
def valid_reports() -> Iterator[None]:
    """Check every JSON report that a test writes against its model."""
    from tests.support.valid_reports import check_written_reports

    with pytest.MonkeyPatch.context() as patch:
        check_written_reports(patch)
        yield


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a runner of the command line that captures its output."""
    return CommandLine(capsys)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the saved report of the 1F1B example, which no test changes."""
    from bubbleviz.cli.app import main

    file = tmp_path_factory.mktemp("saved") / "report.json"
    assert main(["analyze", str(FIXTURES / "1f1b"), "--json", str(file)]) == 0
    return file
