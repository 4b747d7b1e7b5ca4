"""Writes a profile in which every string contains hostile text."""

from __future__ import annotations

import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

from tests.support.nsys_exports import C, K, R, T, write_profile

#: Ranges of the smallest run that has a ratio: one rank with two microbatches.
NAMES = ("F0.0.0", "B0.0.0", "F1.0.0", "B1.0.0", "Optimizer")

CALLS = [C(100 * i + 10, 100 * i + 20, i) for i in range(len(NAMES))]

KERNELS = [K(100 * i + 30, 100 * i + 80, i) for i in range(len(NAMES))]

RANGES = [R(100 * i, 100 * i + 90, name) for i, name in enumerate(NAMES)]

CONVENTION = r"""
name = "hostile"

[[pattern]]
glob = "*"
match = '(?s) (?P<phase>[FBWR]|Optimizer)(?:(?P<microbatch>[0-9]+).*)?\Z'
"""

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "attribute": "\"'><svg onload=alert(1)>",
    "cdata": "]]><!-- &amp; &#0; <?xml ?>",
    "newlines": "one\ntwo\r\nthree\x0b\x0c\x85\u2028\u2029four",
    "emoji": "\N{PILE OF POO}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}",
    "long": "x" * 10_000,
    "nul": "before\0after",
    "control": "\x01\x07\x08\x1b[31m\x1b]0;title\x07\x7f\x9b2J",
    "bidi": "\u202e\u2066right to left",
    "equals": "=cmd|' /C calc'!A0",
    "plus": "+1+2",
    "minus": "-1-2",
    "at": "@SUM(1,2)",
    "tab": "\t=1+1",
    "markup": "[red]bold[/red] [link=x]",
    "latex": r"\input{/etc/passwd} $x_1$ %&#{}~^",
    "format": "{0} {report} %s %(x)s",
    "surrogate": "\N{NO-BREAK SPACE}\ufffd\ufffe\uffff",
}

#: Characters that control a terminal or change the layout of text.
DIRECTING = frozenset(
    chr(code)
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code)) in {"Cc", "Cs", "Zl", "Zp"}
    or unicodedata.bidirectional(chr(code)) in {"LRO", "RLO", "LRE", "RLE", "LRI", "RLI", "FSI"}
) - {"\n"}


def hostile_profile(folder: Path, text: str) -> Path:
    """Write a profile in which every name is ``text``."""
    stray = len(NAMES)
    return write_profile(
        folder,
        [
            *(replace(kernel, name=f"{text}{kernel.correlation}") for kernel in KERNELS),
            K(600, 700, stray, text),
            K(800, 900, 99, f"nccl {text}"),
        ],
        [*CALLS, C(590, 599, stray, tid=2, name=text)],
        [
            *(replace(r, name=f"{text} {r.name}") for r in RANGES),
            *(R(580 + i, 605 - i, text, tid=2) for i in range(3)),
        ],
        threads=[T(1, text), T(2, text)],
        hostname=text,
    )
