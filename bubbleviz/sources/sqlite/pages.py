"""Pages of an SQLite file, read without SQLite: whether it is whole, and how much it describes.

SQLite takes ten times as long for three times as many tables, at every opening, and nothing can
interrupt it. Its table of tables is the B-tree of page 1 (https://sqlite.org/fileformat2.html).
"""

from __future__ import annotations

from pathlib import Path

from bubbleviz.errors import ProfileError
from bubbleviz.sources.sqlite.queries import Queries

HEADER_BYTES = 100
#: What SQLite writes beside a file behind its name: before a change, or instead of one.
JOURNAL, LOG = "-journal", "-wal"


def check_pages(path: str, maker: Queries) -> None:
    """Check what SQLite cannot.

    Raises:
        ProfileError: the file is shorter than its own header says, or holds too many tables.
    """
    size = Path(path).stat().st_size
    with Path(path).open("rb") as file:
        head = file.read(HEADER_BYTES)
        page, pages = page_counts(head)
        if len(head) < HEADER_BYTES:
            raise ProfileError(
                f"{path}: was cut short, {size} bytes are no database; {maker.again}"
            )
        if page * pages > size:
            raise ProfileError(
                f"{path}: was cut short, {size} of {page * pages} bytes; {maker.again}"
            )


def check_finished(path: str, maker: Queries) -> None:
    """Check that nothing is writing a file.

    Raises:
        ProfileError: something is, or died meanwhile.
    """
    for beside in files_beside(path):
        unfinished = beside.name.endswith(LOG) and beside.stat().st_size
        if unfinished or beside.name.endswith(JOURNAL):
            raise ProfileError(
                f"{path}: is still being written, or its writer died ({beside.name} lies beside "
                f"it); wait for {maker.program} to finish, or {maker.again}"
            )


def files_beside(path: str) -> list[Path]:
    """Return the journal, the log and its index that lie beside a file, even if they are empty."""
    real = str(Path(path).resolve())
    beside = (Path(real + suffix) for suffix in (JOURNAL, LOG, "-shm"))
    return [file for file in beside if file.exists()]


def page_counts(head: bytes) -> tuple[int, int]:
    """Return the bytes of a page, and the number of pages, as the head of a file gives them."""
    page_bytes = int.from_bytes(head[16:18], "big")
    return 65536 if page_bytes == 1 else page_bytes, int.from_bytes(head[28:32], "big")
