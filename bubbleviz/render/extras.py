"""Optional packages that some output formats need."""

from __future__ import annotations

import importlib.util

from bubbleviz.errors import OutputError

#: Error messages for required optional packages that are not installed, keyed by package.
_EXTRAS = {
    "pyarrow": "Parquet output needs pyarrow; install it with: pip install 'bubbleviz[parquet]', "
    "or write CSV instead: -o operations.csv",
    "typst": "PDF and PNG pictures need Typst; install it with: pip install 'bubbleviz[paper]', "
    "or write an SVG instead: -o bubbles.svg",
    "vl_convert": "the interactive report needs Vega-Lite; install it with: "
    "pip install 'bubbleviz[html]', or write a picture instead: -o bubbles.svg",
}


def check_installed(package: str) -> None:
    """Check that an optional package is installed.

    Raises:
        OutputError: The package is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise OutputError(_EXTRAS[package])
