"""Damages documents, which are nested lists and dicts (values, keys, structure) or lines of text.

:mod:`scripts.fuzzing.formats` reads files as documents and writes damaged documents back.
"""

from __future__ import annotations

from typing import Any

from scripts.fuzzing.values import Random, draw_text, draw_value

_Place = tuple[Any, Any]


def damage_document(document: Any, chance: Random) -> Any:
    """Return a document with a few changes. Changes are made in place if possible."""
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


def rearrange_lines(lines: list[bytes], chance: Random) -> None:
    """Remove, repeat, reorder, cut or insert lines in place."""
    row = chance.randrange(len(lines))
    choice = chance.randrange(6)
    if choice == 0:
        del lines[row]
    elif choice == 1:
        lines.insert(row, lines[row])
    elif choice == 2:
        chance.shuffle(lines)
    elif choice == 3:
        del lines[row:]
    elif choice == 4:
        lines[row] = lines[row][: chance.randrange(len(lines[row]) + 1)]
    else:
        lines.insert(row, chance.choice([b"", b"{}", b"[]", b"null", b"\xff\xfe", b"x" * 3_000]))


def _list_places(document: Any) -> list[_Place]:
    """Return (container, key or index) pairs, except for deeply nested containers."""
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
    """Replace, remove, repeat, rename, swap or shuffle one value of a container, in place."""
    choice = chance.randrange(10)
    if choice < 5:
        container[key] = draw_value(chance)
    elif choice == 5:
        del container[key]
    elif choice == 6 and isinstance(container, list):
        container.insert(key, container[key])
    elif choice == 6:
        container[draw_text(chance)] = container.pop(key)
    elif choice == 7:
        # A swap of two values usually leaves both values valid.
        keys = list(container) if isinstance(container, dict) else range(len(container))
        other = chance.choice(keys)
        container[key], container[other] = container[other], container[key]
    elif choice == 8 and isinstance(container, list):
        chance.shuffle(container)
    else:
        container[key] = _nudge(container[key], chance)


def _change_all(places: list[_Place], chance: Random) -> None:
    """Change all values of one key in the same way, like a column of a table."""
    with_keys = [(container, key) for container, key in places if isinstance(key, str)]
    if not with_keys:
        return
    _, column = chance.choice(with_keys)
    choice = chance.randrange(4)
    value = draw_value(chance)
    for container, key in with_keys:
        if key != column or key not in container:
            continue
        if choice == 0:
            del container[key]
        elif choice == 1:
            container[key] = value
        else:
            container[key] = _nudge(container[key], chance)


def _nudge(value: Any, chance: Random) -> Any:
    """Return a slightly different value, or the same value as a different type."""
    if isinstance(value, bool) or value is None:
        return chance.choice([True, False, None, 0, 1])
    if isinstance(value, int | float):
        factor = chance.choice([-1, 0, 2, 1000])
        return chance.choice([value * factor, value + 1, value - 1, str(value), [value]])
    if isinstance(value, str):
        return chance.choice([value + draw_text(chance), value[:-1], value * 2, value.swapcase()])
    return chance.choice([None, [value], [], {}])
