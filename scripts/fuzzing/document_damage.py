"""Damages the values, keys and structure of JSON, JSON Lines and pickled documents."""

from __future__ import annotations

import json
import pickle
import zlib
from pathlib import Path
from typing import Any

from bubbleviz.recording_layout import CRC_KEY
from scripts.fuzzing.byte_damage import edit_content
from scripts.fuzzing.values import Random, draw_text, draw_value

_Place = tuple[Any, Any]


def damage_json(path: Path, chance: Random) -> None:
    """Change values of a JSON document, or the order of its keys and elements."""

    def edit(content: bytes) -> bytes:
        document = _parse(content)
        if document is None:
            return content
        return _encode(_damage_document(document, chance))

    edit_content(path, edit)


def damage_json_lines(path: Path, chance: Random) -> None:
    """Change values in some lines of JSON, or remove, repeat or reorder lines.

    The checksum of a changed line is usually recomputed, because readers skip lines with a wrong
    checksum.
    """

    def edit(content: bytes) -> bytes:
        lines = content.splitlines()
        if not lines:
            return content
        if chance.random() < 0.3:
            _rearrange(lines, chance)
        for _ in range(chance.choice([1, 1, 3])):
            row = chance.randrange(len(lines)) if lines else 0
            document = _parse(lines[row]) if lines else None
            if isinstance(document, dict):
                lines[row] = _encode_line(document, chance)
        return b"\n".join(lines) + b"\n"

    edit_content(path, edit)


def damage_event_text(path: Path, chance: Random) -> None:
    """Remove, repeat, reorder or cut lines of a file with one JSON event per line."""

    def edit(content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        if lines:
            _rearrange(lines, chance)
        return b"".join(lines)

    edit_content(path, edit)


def damage_pickle(path: Path, chance: Random) -> None:
    """Change values of a pickled document, and perhaps the protocol of the pickle."""
    try:
        document = pickle.loads(path.read_bytes())  # written by this script
    except Exception:  # an earlier step damaged it
        return
    damaged = _damage_document(document, chance)
    path.write_bytes(pickle.dumps(damaged, chance.choice([0, 1, 2, 4, 5])))


def _parse(content: bytes) -> Any:
    """Return a JSON document, or None if an earlier step damaged it."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _encode(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _encode_line(document: dict[str, Any], chance: Random) -> bytes:
    stored_crc = document.pop("crc", None)
    damaged = _damage_document(document, chance)
    body = json.dumps(damaged, separators=(",", ":"))
    if stored_crc is None or not isinstance(damaged, dict):
        return body.encode()
    body = body[:-1]
    crc = zlib.crc32(body.encode()) if chance.random() < 0.8 else stored_crc
    return f"{body}{CRC_KEY}{crc}}}".encode()


def _damage_document(document: Any, chance: Random) -> Any:
    """Return a document with a few changes, which are made in place if possible."""
    if chance.random() < 0.01 or not isinstance(document, dict | list):
        return draw_value(chance)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        places = _list_places(document)
        if not places:
            return draw_value(chance)
        if chance.random() < 0.25:
            _change_all(places, chance)
        else:
            _change_one(*chance.choice(places), chance)
    return document


def _list_places(document: Any) -> list[_Place]:
    """Return pairs of a container and a key or index, except in deeply nested containers."""
    places: list[_Place] = []
    containers = [(document, 0)]
    while containers:
        container, depth = containers.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in items:
            places.append((container, key))
            if isinstance(value, dict | list) and depth < 20:
                containers.append((value, depth + 1))
    return places


def _change_one(container: Any, key: Any, chance: Random) -> None:
    drawn = chance.randrange(10)
    if drawn < 5:
        container[key] = draw_value(chance)
    elif drawn == 5:
        del container[key]
    elif drawn == 6 and isinstance(container, list):
        container.insert(key, container[key])
    elif drawn == 6:
        container[draw_text(chance)] = container.pop(key)
    elif drawn == 7 and isinstance(container, list):
        chance.shuffle(container)
    elif drawn == 7:
        other = chance.choice(list(container))
        container[key], container[other] = container[other], container[key]
    else:
        container[key] = _nudge(container[key], chance)


def _change_all(places: list[_Place], chance: Random) -> None:
    """Change all values of one key in the same way, like a column of the document."""
    named = [(container, key) for container, key in places if isinstance(key, str)]
    if not named:
        return
    _, column = chance.choice(named)
    drawn = chance.randrange(4)
    value = draw_value(chance)
    for container, key in named:
        if key != column or key not in container:
            continue
        if drawn == 0:
            del container[key]
        elif drawn == 1:
            container[key] = value
        else:
            container[key] = _nudge(container[key], chance)


def _nudge(value: Any, chance: Random) -> Any:
    """Return a value that is slightly different, or the same value as another type."""
    if isinstance(value, bool) or value is None:
        return chance.choice([True, False, None, 0, 1])
    if isinstance(value, int | float):
        factor = chance.choice([-1, 0, 2, 1000])
        return chance.choice([value * factor, value + 1, value - 1, str(value), [value]])
    if isinstance(value, str):
        return chance.choice([value + draw_text(chance), value[:-1], value * 2, value.swapcase()])
    return chance.choice([None, [value], [], {}])


def _rearrange(lines: list[bytes], chance: Random) -> None:
    """Remove, repeat, reorder, cut or insert lines in place."""
    row = chance.randrange(len(lines))
    drawn = chance.randrange(6)
    if drawn == 0:
        del lines[row]
    elif drawn == 1:
        lines.insert(row, lines[row])
    elif drawn == 2:
        chance.shuffle(lines)
    elif drawn == 3:
        del lines[row:]
    elif drawn == 4:
        lines[row] = lines[row][: chance.randrange(len(lines[row]) + 1)]
    else:
        lines.insert(row, chance.choice([b"", b"{}", b"[]", b"null", b"\xff\xfe", b"x" * 3_000]))
