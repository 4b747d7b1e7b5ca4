"""Pointer files of Git LFS and git-annex, which replace files that were not downloaded."""

from __future__ import annotations

from pathlib import Path

from bubbleviz.errors import ProfileError

#: The tool's name and the command that fetches a file, keyed by the first bytes of a pointer file.
_STORES = {
    b"version https://git-lfs.github.com/spec/": ("Git LFS", "git lfs pull"),
    b"/annex/objects/": ("git-annex", "git annex get"),
}
_MAX_PREFIX = max(map(len, _STORES))


def describe_pointer(head: bytes) -> str | None:
    """Describe a pointer file and how to fetch its content. Return None for any other file.

    Args:
        head: First bytes of the file.
    """
    for beginning, (keeper, command) in _STORES.items():
        if head.startswith(beginning):
            return f"a {keeper} pointer, not the file itself; fetch the file with: {command}"
    return None


def refuse_pointer(path: str, head: bytes | None = None) -> None:
    """Raise an error if a file is a pointer file. A file that cannot be read is accepted.

    Args:
        path: Path of the file.
        head: First bytes of the file, or None to read them from the file.

    Raises:
        ProfileError: The file is a pointer file.
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
