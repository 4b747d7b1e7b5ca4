"""Requirements that some tests have beyond the test environment, such as files or browsers.

A test declares its requirement with a marker such as ``@pytest.mark.real_files``. If the
requirement is not met, the test is skipped with :attr:`Need.sentence`, or fails under
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
    """A program or folder that is not available on every machine.

    Attributes:
        sentence: Skip message that names the requirement and says how it can be met.
        is_met: Whether this machine meets the requirement.
    """

    sentence: str
    is_met: Callable[[], bool]


def get_data_folder() -> Path | None:
    """Return the folder of real files, or None if ``BUBBLEVIZ_DATA`` is not set to a folder."""
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


#: Requirements, keyed by marker name.
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
