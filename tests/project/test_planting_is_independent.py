"""The planting package checks ``bubbleviz.schedules``, so it must not import it."""

from __future__ import annotations

import subprocess
import sys

from tests.support.places import CHECKOUT

_LOADED = """
import pkgutil, sys
from importlib import import_module
import tests.planting

modules = pkgutil.walk_packages(tests.planting.__path__, "tests.planting.")
names = [module.name for module in modules]
for name in names:
    import_module(name)
print(len(names))
print(*(name for name in sys.modules if name.startswith("bubbleviz.schedules")))
"""


def test_no_module_of_the_planter_loads_schedules() -> None:
    """Indirect imports are also forbidden."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    count, loaded = done.stdout.splitlines()

    assert int(count) >= 15
    assert loaded == ""
