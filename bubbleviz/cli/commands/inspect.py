"""``bubbleviz inspect``: a first look at profiles."""

from __future__ import annotations

from typing import Annotated

import typer

from bubbleviz.cli.options import Conventions
from bubbleviz.cli.terminal import show


def inspect(
    profiles: Annotated[list[str], typer.Argument(help="Profiles, or directories of them.")],
    convention: Conventions = None,
) -> None:
    """Show what a profile holds, which NVTX convention it follows, and what is missing."""
    from bubbleviz.sources.paths import find_profiles

    files = find_profiles(profiles)
    from bubbleviz.api import inspect as inspect_profile
    from bubbleviz.cli.overview import inspection_parts

    for file in files:
        show(inspection_parts(inspect_profile(file.path, convention=convention or ())))
