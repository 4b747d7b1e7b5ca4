"""Events decoded one by one: of the last block of a trace, and of blocks that are not valid JSON.

Real files hold an empty last event, numbers as text, NaN, bytes that are not UTF-8, line breaks in
names, and events that are not JSON. Values that do not fit their field are left out, and objects
that cannot be read are counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Generic, TypeVar, get_args

import msgspec

from bubbleviz.model.values import frozen

#: JSON that cannot be read so near the end of a text may be cut: a number, a word, an escape.
_ENDING = 16
_SPACE = re.compile(r"[\s,]*")
#: Real files hold no object that is nested as deeply as Python's stack is; garbage holds many, each
#: of which takes as long as a thousand others.
_MOST_TOO_DEEP = 100
#: Where an object cannot be read, those inside it are tried; a text is read so many times at most.
_MOST_PASSES = 8
#: So many characters are read at a time, or twice as many while an object does not end there.
_PIECE = 1 << 16
#: Where an event begins, in files whose events are not all JSON.
_BEGINS = re.compile(r'(?<=[},\]\s])\{\s*(?:\}|"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)"\s*:)')

StructT = TypeVar("StructT", bound=msgspec.Struct)
#: Name, name in JSON, type, and the struct in that type, if any.
_Field = tuple[str, str, Any, type[msgspec.Struct] | None]


@frozen
class EventsOneByOne(Generic[StructT]):
    """Events decoded one by one.

    Attributes:
        events: in the order of the file.
        malformed: how many objects are not events.
        rest: the bytes from the end of the list on, or from an event that seems cut.
        list_ended: whether the list of events ends there.
        given_up: whether it is garbage rather than a damaged list, so that ``rest`` was not read.
    """

    events: Sequence[StructT]
    malformed: int
    rest: bytes
    list_ended: bool
    given_up: bool = False


def decode_one_by_one(content: bytes, kind: type[StructT]) -> EventsOneByOne[StructT]:
    """Return the events of a piece of a list, which begins at an event.

    Args:
        content: the piece.
        kind: struct that an event is decoded to.
    """
    text = content.decode("utf-8", errors="surrogateescape")
    walk = _Walk(kind, _MOST_PASSES * len(text))
    at, length = 0, _PIECE
    while True:
        piece = text[at : at + length]
        walked = walk.over(piece)
        ended = piece[walked : walked + 1] == "]"
        at += walked
        if ended or walk.given_up or at + len(piece) - walked >= len(text):
            break
        length = _PIECE if walked else 2 * length
    return EventsOneByOne(
        events=walk.events,
        malformed=walk.malformed,
        rest=text[at:].encode("utf-8", errors="surrogateescape"),
        list_ended=ended,
        given_up=walk.given_up,
    )


class _Walk(Generic[StructT]):
    """The objects of a text, read piece by piece: an error takes as long as its piece.

    Attributes:
        events: that were read.
        malformed: how many objects are not events.
        given_up: whether the text is garbage.
    """

    def __init__(self, kind: type[StructT], patience: int) -> None:
        """Take the struct of events, and how many characters may be read in vain."""
        self.events: list[StructT] = []
        self.malformed = 0
        self.given_up = False
        self._kind, self._patience, self._too_deep = kind, patience, 0
        self._decoder = json.JSONDecoder(strict=False, parse_float=str, parse_constant=_no_number)

    def over(self, text: str) -> int:
        """Read the events of a piece; return where the list ends, or an object that seems cut."""
        at = _behind_space(text, 0)
        while at < len(text) and text[at] != "]" and not self.given_up:
            try:
                value, at = self._decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                if _may_be_cut(text, error):
                    break
                self._blame(error, at)
                begins = _BEGINS.search(text, at + 1)
                at = begins.start() if begins else max(at + 1, len(text) - _ENDING)
                if len(text) > _PIECE:
                    break
            else:
                event = _as_struct(value, self._kind)
                if event is None:
                    self.malformed += 1
                else:
                    self.events.append(event)
            at = _behind_space(text, at)
        return at

    def _blame(self, error: Exception, at: int) -> None:
        """Count an object that cannot be read."""
        self.malformed += 1
        self._too_deep += isinstance(error, RecursionError)
        self._patience -= error.pos - at if isinstance(error, json.JSONDecodeError) else 0
        self.given_up = self._too_deep > _MOST_TOO_DEEP or self._patience < 0


def _behind_space(text: str, at: int) -> int:
    """Return the place behind white space and commas."""
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _may_be_cut(text: str, error: Exception) -> bool:
    """Tell whether unreadable JSON could be read if the text went on."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text) - _ENDING


def _as_struct(value: object, kind: type[StructT]) -> StructT | None:
    """Return an object as a struct, without the values that do not fit; None if it is no object."""
    if not isinstance(value, dict):
        return None
    values = {}
    for name, encoded_name, field_type, inner in _fields(kind):
        field = value.get(encoded_name)
        if field is None:
            continue
        try:
            values[name] = (
                _as_struct(field, inner)
                if inner
                else msgspec.convert(field, field_type, strict=False)
            )
        # Half a surrogate pair is text to JSON, and to nobody else.
        except (msgspec.ValidationError, UnicodeEncodeError):
            continue
    return kind(**values)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[_Field, ...]:
    """Return the fields of a struct.

    Looking into the types takes a millisecond, as long as reading hundreds of events.
    """
    return tuple(
        (
            field.name,
            field.encode_name,
            field.type,
            next(filter(_is_struct, get_args(field.type)), None),
        )
        for field in msgspec.structs.fields(kind)
    )


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _no_number(_: str) -> None:
    """Stand for NaN and Infinity, which JSON does not have."""
