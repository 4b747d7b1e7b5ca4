"""What some tests need besides the test environment: real files, browsers, valgrind.

A test declares a need by a marker of the same name, such as ``@pytest.mark.real_files``. If the
need is not met, the test is skipped with :attr:`Need.sentence`, or fails under
``--nothing-missing``, which CI uses.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.counting.counts import obstacle


@dataclass(frozen=True)
class Need:
    """A program or a folder that some machines lack.

    Attributes:
        sentence: What is needed, and how to provide it.
        is_met: Whether this machine has it.
    """

    sentence: str
    is_met: Callable[[], bool]


def get_data_folder() -> Path | None:
    """Return the folder of real files, or None if ``BUBBLEVIZ_DATA`` names no folder."""
    name = os.environ.get("BUBBLEVIZ_DATA")
    if not name or not Path(name).is_dir():
        return None
    return Path(name).resolve()


def get_real_file(name: str) -> Path:
    """Return the path of a real file or folder, for a test marked ``real_files``.

    Args:
        name: Path relative to the data folder, such as ``nsys/rodinia_report3.sqlite``.
    """
    folder = get_data_folder()
    assert folder is not None, "mark this test with @pytest.mark.real_files"
    return folder / name


def get_reference_file(name: str) -> Path:
    """Return the path of a file in ``reference/``, which is next to the data folder."""
    return get_real_file("").parent / "reference" / name


def has_browsers() -> bool:
    """Return whether Chromium, Firefox and the packages that drive and check them are installed."""
    has_firefox = shutil.which("firefox-esr") or shutil.which("firefox")
    packages = ("playwright", "axe_playwright_python")
    has_packages = all(importlib.util.find_spec(name) for name in packages)
    return bool(shutil.which("chromium") and has_firefox and has_packages)


#: Needs by marker name.
NEEDS: Mapping[str, Need] = {
    "real_files": Need(
        "needs real profiles: set BUBBLEVIZ_DATA to the folder that contains them",
        lambda: get_data_folder() is not None,
    ),
    "browser": Need(
        "needs Chromium, Firefox, Playwright: run scripts/programs (on Debian) and scripts/check",
        has_browsers,
    ),
    "valgrind": Need(
        "needs valgrind and a C compiler: run scripts/programs (on Debian)",
        lambda: not obstacle(),
    ),
}
