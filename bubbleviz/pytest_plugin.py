"""Plugin for pytest: marks that limit the bubbles and iteration times of a run.

pytest loads the plugin in every environment in which bubbleviz is installed. Therefore, modules of
bubbleviz are imported only if a test has one of the marks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bubbleviz.report.gate import Check, InputNames, Limit
    from bubbleviz.report.ratio_summary import ReportSummary

#: Name of the fixture that returns the folder of the run.
_RUN = "bubbleviz_run"
#: Names of the marks that limit bubbles and times, and that compare the run with an earlier one.
_BUBBLE, _TIME, _INCREASE = "limit_bubble", "limit_iteration_time", "limit_bubble_increase"
#: Description of each mark, as ``pytest --markers`` prints it.
_MARKS = (
    f"{_BUBBLE}(*limits, allow_incomplete=False): fail the test if a bubble ratio of the run in "
    "the folder bubbleviz_run exceeds a limit, such as '30%' or 'step=35%'.",
    f"{_TIME}(*limits, allow_incomplete=False): fail the test if the iterations of the "
    "run in the folder bubbleviz_run take longer than a limit, such as '120ms'.",
    f"{_INCREASE}(baseline, *increases, allow_incomplete=False): fail the test if the run in the "
    "folder bubbleviz_run is worse than the run or report baseline by more than an increase, such "
    "as '1pt' or '2%'.",
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks."""
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)


@pytest.fixture
def bubbleviz_run(tmp_path: Path) -> Path:
    """Return an empty folder for the recording or the profiles of the run that a test measures."""
    folder = tmp_path / _RUN
    folder.mkdir()
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Check the limits of a test after it has passed, and fail the test if one is exceeded.

    Incorrect marks fail the test before it starts, because a test with a training run is slow.
    """
    marks = [mark for mark in item.iter_markers() if mark.name in (_BUBBLE, _TIME, _INCREASE)]
    if marks:
        _require_correct_marks(item, marks)
    result = yield
    if marks:
        _check_run(item, marks)
    return result


def _require_correct_marks(item: pytest.Item, marks: list[pytest.Mark]) -> None:
    """Check that a test has the fixture of the run, and that its limits are well-formed.

    Args:
        item: The test.
        marks: The marks of the test that define limits.

    Raises:
        pytest.fail.Exception: The fixture is missing, or a limit is missing or malformed.
    """
    from bubbleviz.errors import UsageError

    if _RUN not in getattr(item, "funcargs", {}):
        pytest.fail(
            f"the mark {marks[0].name} needs the fixture {_RUN}: add {_RUN} to the arguments of "
            "the test, and write the recording or the profiles of the run to this folder",
            pytrace=False,
        )
    problem = ""
    try:
        for mark in marks:
            _require_arguments(mark)
            if mark.name != _INCREASE:
                _parse_limits(mark)
    except UsageError as error:
        problem = f"bubbleviz: {error}"
    if problem:
        # Within the except block, pytest would also print the message of the caught error.
        pytest.fail(problem, pytrace=False)


def _check_run(item: pytest.Item, marks: list[pytest.Mark]) -> None:
    """Measure the run that a test has recorded, and check its limits.

    The measured values become properties of the test, which JUnit files contain.

    Args:
        item: The test.
        marks: The marks of the test that define limits.

    Raises:
        pytest.fail.Exception: A limit is exceeded, or the limits cannot be checked.
    """
    from bubbleviz.errors import BubblevizError

    folder = str(getattr(item, "funcargs", {})[_RUN])
    checks, problem = [], ""
    try:
        checks = _check_marks(marks, folder, item.config.rootpath)
    except BubblevizError as error:
        problem = f"bubbleviz: {error}"
    if problem:
        # Within the except block, pytest would also print the message of the caught error.
        pytest.fail(problem, pytrace=False)
    lines = "\n".join(check.line for check in checks)
    item.user_properties.extend((f"bubbleviz {check.name}", check.value) for check in checks)
    if not all(check.passed for check in checks):
        pytest.fail(lines, pytrace=False)
    item.add_report_section("call", "bubbleviz", lines)


def _check_marks(marks: list[pytest.Mark], folder: str, root: Path) -> list[Check]:
    """Return one check for each limit of the marks.

    Args:
        marks: The marks that define limits.
        folder: Folder with the recording or the profiles of the run.
        root: Folder to which the paths of baselines are relative.

    Raises:
        BubblevizError: The run cannot be measured, or a limit is malformed or cannot be checked.
    """
    from bubbleviz.report.gate import check_limits

    saved = _summarize(folder)
    checks: list[Check] = []
    for mark in marks:
        allow_incomplete = bool(mark.kwargs.get("allow_incomplete", False))
        limits = list(_list_limits(mark, saved, root))
        checks += check_limits(
            saved, limits, folder, allow_incomplete=allow_incomplete, names=_make_names()
        )
    return checks


def _list_limits(mark: pytest.Mark, saved: ReportSummary, root: Path) -> Iterator[Limit]:
    """Yield the limits of a mark.

    Args:
        mark: The mark.
        saved: Summary of the run to check.
        root: Folder to which the path of a baseline is relative.

    Raises:
        BubblevizError: A limit is malformed, or the baseline cannot be read.
    """
    from bubbleviz.report.gate import INCREASES, make_baseline_limits

    if mark.name != _INCREASE:
        yield from _parse_limits(mark)
        return
    texts = [str(argument) for argument in mark.args]
    path = str(root / texts[0])
    yield from make_baseline_limits(
        _summarize(path),
        texts[1:] or INCREASES,
        path,
        saved,
        allow_incomplete=bool(mark.kwargs.get("allow_incomplete", False)),
        names=_make_names(),
    )


def _require_arguments(mark: pytest.Mark) -> None:
    """Raise a ``UsageError`` if a mark has no arguments."""
    from bubbleviz.errors import UsageError

    if not mark.args:
        required = "a baseline" if mark.name == _INCREASE else "at least one limit"
        raise UsageError(f"the mark {mark.name} needs {required}; see pytest --markers")


def _parse_limits(mark: pytest.Mark) -> list[Limit]:
    """Parse the limits of bubbles or times that a mark defines.

    Raises:
        UsageError: A limit is malformed.
    """
    from bubbleviz.report.gate import LimitKind, parse_limits

    kind = LimitKind.WINDOW if mark.name == _TIME else LimitKind.BUBBLE
    return list(parse_limits([str(argument) for argument in mark.args], kind, _make_names()))


def _make_names() -> InputNames:
    """Return the names that messages of the gate use in tests: marks and their arguments."""
    from bubbleviz.report.gate import InputNames

    return InputNames(
        max_bubble=_BUBBLE,
        max_time=_TIME,
        baseline=_INCREASE,
        max_increase=_INCREASE,
        allow_incomplete="allow_incomplete=True",
    )


def _summarize(path: str) -> ReportSummary:
    """Return the summary of a saved report, or measure and summarize profiles."""
    from bubbleviz.cli.options import MeasurementOptions, recognize_run

    return MeasurementOptions(skip=0, convention=None, jobs=1).read(recognize_run(path))[0]
