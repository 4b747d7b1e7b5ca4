"""The message as protobuf's text (https://protobuf.dev/reference/protobuf/textformat-spec/)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bubbleviz.analyses.pgle.files import Format

_ESCAPED = {
    **{byte: f"\\{byte:03o}" for byte in (*range(0x20), *range(0x7F, 0x100))},
    **{ord(own): f"\\{own}" for own in "\"'\\"},
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}
_TOKEN = re.compile(
    rb"""(?P<space>[ \t\r\n\f\v]+|\#[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[-+]?[A-Za-z0-9_.](?:[A-Za-z0-9_.]|(?<=[0-9.][eE])[-+])*)
    |(?P<sign>[{}<>:;,\[\]-])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))"
)
_LETTERS = {
    **dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True)),
    **{own: own for own in b"\"'\\?"},
}
_CLOSING = {b"{": b"}", b"<": b">", b"[": b"]"}


def write(costs: Mapping[str, float]) -> bytes:
    """Return one line an instruction, as JAX's ``pgo_nsys_converter.py`` writes them."""
    lines = [
        f'costs {{ name: "{_quoted(n)}" cost_us: {float(us)!r} }}\n' for n, us in costs.items()
    ]
    return "".join(lines).encode("ascii")


def _quoted(name: str) -> str:
    """Return a name with everything but printable ASCII escaped, byte by byte."""
    # Each byte of UTF-8 is one character of Latin-1.
    return name.encode("utf-8", errors="replace").decode("latin-1").translate(_ESCAPED)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: bytes
    line: int


def read(content: bytes) -> list[tuple[str, float]]:
    """Return the costs; other fields are passed over.

    Raises:
        ValueError: it is no such message; it says the line.
    """
    tokens = _Tokens(content)
    costs = []
    while tokens.ahead.kind != "end":
        if tokens.field() == b"costs":
            costs.append(_cost(tokens))
        else:
            tokens.skip_value()
    return costs


def _cost(tokens: _Tokens) -> tuple[str, float]:
    name, cost_us = b"", 0.0
    closing = tokens.opened()
    while tokens.ahead.text != closing:
        field = tokens.field()
        if field == b"name":
            name = tokens.string()
        elif field == b"cost_us":
            cost_us = tokens.number()
        else:
            tokens.skip_value()
    tokens.take()
    tokens.separated()
    return name.decode("utf-8", errors="replace"), cost_us


class _Tokens:
    """The tokens of a text, one at a time."""

    def __init__(self, content: bytes) -> None:
        self._rest = _tokens(content)
        self.ahead = next(self._rest)

    def take(self) -> _Token:
        """Return the next token."""
        taken = self.ahead
        if taken.kind != "end":
            self.ahead = next(self._rest)
        return taken

    def refuse(self, wanted: str) -> ValueError:
        """Return why the next token cannot stand there."""
        shown = self.ahead.text[:40].decode("utf-8", errors="replace")
        found = "its end" if self.ahead.kind == "end" else repr(shown)
        return ValueError(f"line {self.ahead.line}: {found} in place of {wanted}")

    def field(self) -> bytes:
        """Return the name of a field."""
        if self.ahead.kind != "word" or not self.ahead.text[:1].isalpha():
            raise self.refuse("a field")
        name = self.take().text
        if self.ahead.text == b":":
            self.take()
        elif self.ahead.text not in {b"{", b"<"}:
            raise self.refuse("a colon")
        return name

    def opened(self) -> bytes:
        """Take the beginning of a message, and return what ends it."""
        if self.ahead.text not in {b"{", b"<"}:
            raise self.refuse("'{'")
        return _CLOSING[self.take().text]

    def separated(self) -> None:
        """Take what may stand between fields."""
        if self.ahead.text in {b",", b";"}:
            self.take()

    def string(self) -> bytes:
        """Return a string; several one after the other are one."""
        if self.ahead.kind != "text":
            raise self.refuse("a name in quotes")
        parts = []
        while self.ahead.kind == "text":
            parts.append(_unescaped(self.take().text[1:-1]))
        self.separated()
        return b"".join(parts)

    def number(self) -> float:
        """Return a number."""
        wanted = "microseconds"
        negative = self.ahead.text == b"-"
        if negative:
            self.take()
        if self.ahead.kind != "word":
            raise self.refuse(wanted)
        text = self.ahead.text.decode("ascii").lower()
        try:
            value = float(text.removesuffix("f") if text[-2:-1] in ".0123456789" else text)
        except ValueError:
            raise self.refuse(wanted) from None
        self.take()
        self.separated()
        return -value if negative else value

    def skip_value(self) -> None:
        """Pass over a value, a message or a list, whatever it holds."""
        open_ones: list[bytes] = []
        while True:
            token = self.take()
            if token.kind == "end" or (token.text in _CLOSING.values() and not open_ones):
                raise ValueError(f"line {token.line}: a value is missing, or has no end")
            if token.kind == "sign" and token.text in _CLOSING:
                open_ones.append(_CLOSING[token.text])
            elif open_ones and token.kind == "sign" and token.text == open_ones[-1]:
                open_ones.pop()
            if not open_ones and token.text != b"-":
                break
        while token.kind == "text" and self.ahead.kind == "text":
            self.take()
        self.separated()


def _tokens(content: bytes) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(content):
        found = _TOKEN.match(content, at)
        if found is None or found.lastgroup is None:
            shown = content[at : at + 20].decode("utf-8", errors="replace")
            raise ValueError(f"line {line}: {shown!r} cannot stand there")
        if found.lastgroup != "space":
            yield _Token(found.lastgroup, found[0], line)
        line += found[0].count(b"\n")
        at = found.end()
    yield _Token("end", b"", line)


def _unescaped(text: bytes) -> bytes:
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[bytes]) -> bytes:
    octal, hexadecimal, short, long, letter = found.groups()
    if letter is not None:
        if letter[0] not in _LETTERS:
            raise ValueError(f"no escape is written {found[0].decode('latin-1')!r}")
        return bytes([_LETTERS[letter[0]]])
    if short is not None or long is not None:
        return chr(int(short or long, 16)).encode("utf-8", errors="replace")
    return bytes([int(octal, 8) & 0xFF if octal is not None else int(hexadecimal, 16)])


FORMAT = Format(".pbtxt", binary=False, write=write, read=read)
