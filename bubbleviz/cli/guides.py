"""The guides: pages of Markdown in ``bubbleviz/guides``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

_SUFFIX = ".md"


def guide_names() -> list[str]:
    """Return the names of all guides, in alphabetical order."""
    pages = (page.name for page in (files("bubbleviz") / "guides").iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in pages if name.endswith(_SUFFIX))


def guide_pages() -> Mapping[str, str]:
    """Return the Markdown of every guide by name, in alphabetical order."""
    folder = files("bubbleviz") / "guides"
    return {n: (folder / f"{n}{_SUFFIX}").read_text(encoding="utf-8") for n in guide_names()}
