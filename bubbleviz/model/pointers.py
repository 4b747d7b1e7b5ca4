"""Pointers: small texts that stand for files which Git LFS or git-annex did not fetch."""

from __future__ import annotations

from pathlib import Path

from bubbleviz.errors import ProfileError

#: How pointers begin, and what keeps the file and fetches it.
_STORES = {
    b"version https://git-lfs.github.com/spec/": ("Git LFS", "git lfs pull"),
    b"/annex/objects/": ("git-annex", "git annex get"),
}
_MAX_PREFIX = max(map(len, _STORES))


def describe_pointer(head: bytes) -> str | None:
    """Return what a file's first bytes say of a pointer, and what to do; None where it is none."""
    for beginning, (keeper, command) in _STORES.items():
        if head.startswith(beginning):
            return f"a pointer of {keeper}, not the file itself; fetch that with: {command}"
    return None


def refuse_pointer(path: str, head: bytes | None = None) -> None:
    """Raise where a file is a pointer.

    Args:
        path: of the file.
        head: its first bytes; None to read them.

    Raises:
        ProfileError: it is one.
    """
    if head is None:
        try:
            with Path(path).open("rb") as file:
                head = file.read(_MAX_PREFIX)
        except OSError:
            return
    description = describe_pointer(head)
    if description is not None:
        raise ProfileError(f"{path}: {description}")
