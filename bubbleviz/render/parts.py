"""Parts: an output that is a folder of files, each made when it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from bubbleviz.model.values import frozen

#: Name and content of a file.
File: TypeAlias = "tuple[str, str | bytes]"


@frozen
class Parts:
    """A folder of files.

    Attributes:
        files: yields them, one after the other.
    """

    files: Callable[[], Iterator[File]]
