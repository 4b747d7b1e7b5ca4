"""``bubbleviz conventions``: the NVTX conventions that are built in."""

from __future__ import annotations

from bubbleviz.cli.terminal import show


def conventions() -> None:
    """List the built-in conventions of range names."""
    from bubbleviz.cli.overview import convention_parts
    from bubbleviz.conventions.convention_file import built_in

    show(convention_parts(built_in().values()))
