"""Pointers: small texts that stand for files which Git LFS or git-annex did not fetch."""

from __future__ import annotations

import re
from pathlib import Path

from bubbleviz.errors import ProfileError, UsageError

#: How pointers begin, and what keeps the file and fetches it.
_KEEPERS = {
    b"version https://git-lfs.github.com/spec/": ("Git LFS", "git lfs pull"),
    b"/annex/objects/": ("git-annex", "git annex get"),
}
_LONGEST = max(map(len, _KEEPERS))


def pointer_words(head: bytes) -> str | None:
    """Return what a file's first bytes say of a pointer, and what to do; None where it is none."""
    for beginning, (keeper, command) in _KEEPERS.items():
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
                head = file.read(_LONGEST)
        except OSError:
            return
    words = pointer_words(head)
    if words is not None:
        raise ProfileError(f"{path}: {words}")


# Lengths on paper: ``89mm``, ``8.9cm``, ``3.5in``, ``252pt``.


_FORM = re.compile(r"\s*([0-9]{1,5}(?:\.[0-9]{1,6})?)\s*(mm|cm|in|pt)\s*")
_MM = {"mm": 1.0, "cm": 10.0, "in": 25.4, "pt": 25.4 / 72}
#: A picture is at least as wide as a small figure, and at most as a poster (A0).
NARROWEST_MM, WIDEST_MM = 40.0, 1189.0


def millimetres(text: str, option: str, least: float = NARROWEST_MM) -> float:
    """Return the length of ``89mm`` or ``3.5in`` in millimetres.

    Raises:
        UsageError: it is not of that form, or no width of a picture.
    """
    shown = repr(text[:60])
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} {shown}: not of the form 89mm (mm, cm, in, pt)")
    length = float(match[1]) * _MM[match[2]]
    if not least <= length <= WIDEST_MM:
        raise UsageError(
            f"{option} {shown}: not between {least:g} and {WIDEST_MM:g} mm; one column is "
            "about 89mm, two are 183mm"
        )
    return length
