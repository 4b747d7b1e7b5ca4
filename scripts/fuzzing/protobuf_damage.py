"""Damages fields of the protobuf messages in XLA's profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from scripts.fuzzing.byte_damage import edit_content
from scripts.fuzzing.values import INTEGERS, Random, draw_number, draw_text
from tests.support.xla_files import build_space_type

_UNSIGNED = (FieldDescriptor.TYPE_UINT64,)


def damage_space(path: Path, chance: Random) -> None:
    """Change, remove, repeat or reorder fields in a file's messages."""

    def edit(content: bytes) -> bytes:
        space = build_space_type()()
        try:
            space.ParseFromString(content)
        except DecodeError:  # an earlier step damaged it
            return content
        for _ in range(chance.choice([1, 1, 2, 5])):
            message = _draw_message(space, chance)
            _change_field(message, chance)
        return bytes(space.SerializeToString(deterministic=True))

    edit_content(path, edit)


def _draw_message(space: Any, chance: Random) -> Any:
    """Return a message at a random depth: the file, a plane, a line, an event or a statistic."""
    message = space
    for _ in range(chance.randrange(6)):
        children: list[Any] = []
        for field, value in message.ListFields():
            if field.message_type is not None:
                children.append(chance.choice(value) if _is_repeated(field) else value)
        if not children:
            return message
        message = chance.choice(children)
    return message


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):  # newer versions deprecate ``label``
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)


def _change_field(message: Any, chance: Random) -> None:
    """Change or clear a random field of a message."""
    field = chance.choice(message.DESCRIPTOR.fields)
    if field.message_type is not None or _is_repeated(field):
        _change_repeated(message, field, chance)
    elif chance.random() < 0.2:
        message.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_DOUBLE:
        setattr(message, field.name, float(draw_number(chance)))
    elif field.type == FieldDescriptor.TYPE_BYTES:
        setattr(message, field.name, draw_text(chance).encode("utf-8", "surrogatepass"))
    else:
        number = chance.choice(INTEGERS)
        setattr(message, field.name, abs(number) if field.type in _UNSIGNED else number)


def _change_repeated(message: Any, field: Any, chance: Random) -> None:
    """Clear a field, or remove, repeat or shuffle the values of a repeated field."""
    if not _is_repeated(field):
        message.ClearField(field.name)
        return
    values = getattr(message, field.name)
    choice = chance.randrange(4)
    if choice == 0 or not len(values):
        message.ClearField(field.name)
    elif choice == 1:
        del values[chance.randrange(len(values))]
    elif choice == 2:
        values.append(chance.choice(values))
    else:
        order = [*values]
        chance.shuffle(order)
        message.ClearField(field.name)
        getattr(message, field.name).extend(order)
