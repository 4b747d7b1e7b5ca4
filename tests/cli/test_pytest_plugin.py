"""Marks for pytest that limit the bubbles of the run that a test records."""

from __future__ import annotations

import pytest

from tests.support.places import FIXTURES

pytest_plugins = ["pytester"]

#: A test module whose tests "record" a run by copying a fixture.
_MODULE = f"""
import shutil
import pytest

FIXTURE = {str(FIXTURES / "1f1b")!r}

def record(folder):
    shutil.copytree(FIXTURE, folder, dirs_exist_ok=True)
"""


@pytest.fixture(autouse=True)
def _only_the_plugin_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load no installed plugins, so that an installed bubbleviz does not register the plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def _run(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    """Run a test module in a new process, with this plugin."""
    pytester.makepyfile(_MODULE + body)
    return pytester.runpytest_subprocess(
        "-p", "bubbleviz.pytest_plugin", "-p", "no:cacheprovider", "--junitxml=junit.xml"
    )


def test_a_run_within_its_limits_passes_and_is_recorded_in_the_junit_file(
    pytester: pytest.Pytester,
) -> None:
    result = _run(
        pytester,
        f"""
@pytest.mark.limit_bubble("30%", "step=40%")
@pytest.mark.limit_iteration_time("60ms")
@pytest.mark.limit_bubble_increase({str(FIXTURES / "1f1b")!r}, "1pt")
def test_run(bubbleviz_run):
    record(bubbleviz_run)
""",
    )
    result.assert_outcomes(passed=1)
    properties = (pytester.path / "junit.xml").read_text()
    assert 'name="bubbleviz schedule" value="0.2727' in properties


@pytest.mark.parametrize(
    ("mark", "lines"),
    [
        ('limit_bubble("20%")', ["FAILED: schedule 27.27 % is above 20 %*"]),
        ('limit_iteration_time("10ms")', ["FAILED: window of schedule 33.000 ms is above 10 ms*"]),
        ("limit_bubble(30)", ["bubbleviz: limit_bubble '30': must have*did you mean 30%?"]),
        (
            'limit_iteration_time("x")',
            ["bubbleviz: limit_iteration_time 'x': must have the form *"],
        ),
        ('limit_bubble("9%", "8%")', ["bubbleviz: limit_bubble: '' has two limits*"]),
        (
            f'limit_bubble_increase({str(FIXTURES / "1f1b")!r}, "5")',
            ["bubbleviz: limit_bubble_increase '5': must be percentage points*"],
        ),
        ("limit_bubble()", ["bubbleviz: the mark limit_bubble needs at least one limit*"]),
        (
            "limit_bubble_increase()",
            ["bubbleviz: the mark limit_bubble_increase needs a baseline*"],
        ),
        ('limit_bubble_increase("none.json")', ["bubbleviz: *none.json: no such file*"]),
        # Only names of inputs depend on the front end, not paths that look like options.
        ('limit_bubble_increase("a--baseline.json")', ["bubbleviz: *a--baseline.json: no such*"]),
    ],
)
def test_a_run_that_exceeds_a_limit_fails_with_the_line_of_the_gate(
    mark: str, lines: list[str], pytester: pytest.Pytester
) -> None:
    result = _run(
        pytester,
        f"""
@pytest.mark.{mark}
def test_run(bubbleviz_run):
    record(bubbleviz_run)
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(lines)
    result.stdout.no_fnmatch_line("*another exception occurred*")


def test_a_run_with_missing_ranks_fails_unless_its_mark_allows_them(
    pytester: pytest.Pytester,
) -> None:
    result = _run(
        pytester,
        f"""
def record_part(folder):
    for rank in (0, 1, 3):
        shutil.copy(f"{FIXTURES / "zb-v"}/rank{{rank}}.sqlite", folder)

@pytest.mark.limit_bubble("90%")
def test_part(bubbleviz_run):
    record_part(bubbleviz_run)

@pytest.mark.limit_bubble("90%", allow_incomplete=True)
def test_allowed_part(bubbleviz_run):
    record_part(bubbleviz_run)
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["FAILED: *; to check only the recorded ranks, pass allow_incomplete=True"]
    )


def test_a_mark_without_a_run_says_what_to_do(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        """
@pytest.mark.limit_bubble("30%")
def test_without_fixture():
    pass

@pytest.mark.limit_bubble("30%")
def test_without_profiles(bubbleviz_run):
    pass

@pytest.mark.limit_bubble("30%")
def test_that_fails_itself(bubbleviz_run):
    assert False, "no run"
""",
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "the mark limit_bubble needs the fixture bubbleviz_run: add bubbleviz_run*",
            "bubbleviz: *bubbleviz_run: *",
            "*AssertionError: no run",
        ]
    )


def test_a_test_with_an_incorrect_mark_does_not_start(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        """
@pytest.mark.limit_iteration_time("600")
def test_limit_without_unit(bubbleviz_run):
    raise AssertionError("the training run has started")

@pytest.mark.limit_bubble()
def test_no_limit(bubbleviz_run):
    raise AssertionError("the training run has started")
""",
    )

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["bubbleviz: limit_iteration_time *'600'*did you mean 600ms*", "*needs at least one limit*"]
    )
    result.stdout.no_fnmatch_line("*has started*")


def test_the_marks_are_registered(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("-p", "bubbleviz.pytest_plugin", "--markers")
    names = ("limit_bubble(", "limit_iteration_time(", "limit_bubble_increase(")
    for name in names:
        result.stdout.fnmatch_lines([f"@pytest.mark.{name}*"])
