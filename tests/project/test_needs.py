"""A missing requirement skips a test, or fails it under ``--nothing-missing``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import NEEDS
from tests.support.places import CHECKOUT

pytestmark = pytest.mark.thorough

#: Variables that the nested pytest run must not inherit.
LEFT_OUT = ("BUBBLEVIZ_DATA", "PYTEST_ADDOPTS")


def run_pytest(
    folder: Path, source: str, *options: str, data: Path | None = None
) -> tuple[int, str]:
    """Run pytest on one planted test module, under the project's settings.

    Args:
        folder: Folder for the module.
        source: Text of the module.
        options: Additional arguments for pytest.
        data: Folder of real files, or None to run without real files.

    Returns:
        The exit status, and the complete output.
    """
    module = folder / "test_planted.py"
    module.write_text(f"import pytest\n\n{source}", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    if data is not None:
        environment["BUBBLEVIZ_DATA"] = str(data)
    settings = ("-c", str(CHECKOUT / "pyproject.toml"), "--rootdir", str(CHECKOUT))
    plugins = ("-p", "tests.conftest", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *settings, *plugins, *options, str(module)],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


NEEDY = "@pytest.mark.real_files\ndef test_it() -> None:\n    assert False\n"


def test_a_missing_need_skips_with_its_sentence(tmp_path: Path) -> None:
    code, printed = run_pytest(tmp_path, NEEDY)

    assert code == 0, printed
    assert "1 skipped" in printed
    assert NEEDS["real_files"].sentence in printed


@pytest.mark.parametrize(
    "source",
    [
        NEEDY,
        "def test_it() -> None:\n    pass\n\npytest.skip('all of it', allow_module_level=True)\n",
    ],
    ids=["test", "module"],
)
def test_a_skip_fails_under_nothing_missing(source: str, tmp_path: Path) -> None:
    code, printed = run_pytest(tmp_path, source, "--nothing-missing")

    assert code != 0, printed
    assert "skipped" not in printed.splitlines()[-1]


@pytest.mark.parametrize(
    "source",
    [
        "pytest.skip('in a helper')\n\ndef test_it() -> None:\n    pass\n",
        "@pytest.mark.parametrize('x', [])\ndef test_it(x: int) -> None:\n    pass\n",
        "import nowhere\n\ndef test_it() -> None:\n    pass\n",
        "@pytest.mark.real_file\ndef test_it() -> None:\n    pass\n",
    ],
    ids=["skip while collecting", "no cases", "import", "misspelt marker"],
)
def test_a_mistake_during_collection_fails(source: str, tmp_path: Path) -> None:
    code, printed = run_pytest(tmp_path, source)

    assert code == pytest.ExitCode.INTERRUPTED, printed
    assert "1 error" in printed


def test_pages_in_a_browser_can_be_left_out(tmp_path: Path) -> None:
    source = (
        "@pytest.fixture\ndef browser() -> None:\n    pass\n\n"
        "def test_page(browser: None) -> None:\n    pass\n\ndef test_other() -> None:\n    pass\n"
    )
    code, printed = run_pytest(tmp_path, source, "-m", "not browser")

    assert code == 0, printed
    assert "1 passed, 1 deselected" in printed


def test_a_test_with_a_need_may_not_skip_itself(tmp_path: Path) -> None:
    source = "@pytest.mark.real_files\ndef test_it() -> None:\n    pytest.skip('no reason')\n"
    code, printed = run_pytest(tmp_path, source, "--nothing-missing", data=tmp_path)

    assert code == 1, printed
    assert "1 failed" in printed
