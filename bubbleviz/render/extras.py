"""Optional packages that some output formats need."""

from __future__ import annotations

import importlib.util

from bubbleviz.errors import OutputError, describe_installation

#: Error messages for required optional packages that are not installed, keyed by package.
_EXTRAS = {
    "pyarrow": f"Parquet output needs pyarrow; {describe_installation('parquet')}, "
    "or write CSV instead: -o operations.csv",
    "typst": f"PDF and PNG pictures need Typst; {describe_installation('paper')}, "
    "or write an SVG instead: -o bubbles.svg",
    "vl_convert": f"the interactive report needs Vega-Lite; {describe_installation('html')}, "
    "or write a picture instead: -o bubbles.svg",
}


def check_installed(package: str) -> None:
    """Check that an optional package is installed.

    Raises:
        OutputError: The package is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise OutputError(_EXTRAS[package])
