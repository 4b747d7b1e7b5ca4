"""TOML, from the standard library where it has it (Python 3.11), else from tomli."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def load_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ValueError: it is not TOML.
    """
    return tomllib.loads(text)
