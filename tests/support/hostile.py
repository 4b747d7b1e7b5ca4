"""Names that break every output format that does not escape them."""

from __future__ import annotations

HOSTILE = (
    "<script>alert(1)</script>",
    r"\input{/etc/passwd} \write18{rm} \end{document}",
    "a_b^c~d#e$f&g%h{i}j",
    "}}}{{{",
    "^^M\\par\n\nnext\r\x00\x1b[2J\u2028",
    "[*]=?`!`---<<>>,,''\"",
    "日本 é ü ß µ ± 😀 \uff04 \uff3c \ufb03 a\u0301",
    "=1+1",
    "\\",
    "%",
    "x" * 10_000,
)
