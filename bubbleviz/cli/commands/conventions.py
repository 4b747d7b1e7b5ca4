"""``bubbleviz conventions``: the built-in conventions of range names."""

from __future__ import annotations

from bubbleviz.cli.terminal import show


def conventions() -> None:
    """List the built-in conventions of range names."""
    from bubbleviz.cli.overview import describe_conventions
    from bubbleviz.conventions.convention_file import built_in

    show(describe_conventions(built_in().values()))
