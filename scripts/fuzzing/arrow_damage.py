"""Damage of Arrow and Parquet files: values, types and names of their columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from scripts.fuzzing.values import INTEGERS, Random, draw_number, draw_text, draw_value

#: First bytes of Parquet files and of Arrow files with a footer.
_PARQUET, _ARROW_FILE = b"PAR1", b"ARROW1"


def damage_arrow(path: Path, chance: Random) -> None:
    """Change columns of a table; the file stays a valid file of its format."""
    try:
        table = _read(path)
        damaged = _damage_table(table, chance)
        _write(path, damaged)
    except (pa.ArrowException, OSError, OverflowError, TypeError, ValueError):
        # An earlier step damaged the file, or Parquet does not support the new type.
        return


def _read(path: Path) -> Any:
    content = path.read_bytes()
    if content.startswith(_PARQUET):
        return parquet.read_table(pa.BufferReader(content))
    is_file = content.startswith(_ARROW_FILE)
    open_stream = pa.ipc.open_file if is_file else pa.ipc.open_stream
    return open_stream(pa.BufferReader(content)).read_all()


def _write(path: Path, table: Any) -> None:
    content = path.read_bytes()
    written = pa.BufferOutputStream()
    if content.startswith(_PARQUET):
        parquet.write_table(table, written)
    else:
        is_file = content.startswith(_ARROW_FILE)
        new_stream = pa.ipc.new_file if is_file else pa.ipc.new_stream
        with new_stream(written, table.schema) as writer:
            writer.write_table(table)
    path.write_bytes(written.getvalue().to_pybytes())


def _damage_table(table: Any, chance: Random) -> Any:
    for _ in range(chance.choice([1, 1, 2, 3])):
        if table.num_columns == 0:
            return table
        index = chance.randrange(table.num_columns)
        name = table.column_names[index]
        drawn = chance.randrange(10)
        if drawn < 5:
            column = _draw_column(table.column(index), chance)
            table = table.set_column(index, name, column)
        elif drawn == 5:
            table = table.remove_column(index)
        elif drawn == 6:
            names = [*table.column_names]
            names[index] = chance.choice([draw_text(chance), chance.choice(names)])
            table = table.rename_columns(names)
        elif drawn == 7:
            table = table.slice(0, chance.choice([0, 1, table.num_rows // 2]))
        elif drawn == 8:
            rows = list(range(table.num_rows))
            chance.shuffle(rows)
            table = table.take(pa.array(rows, pa.int64()))
        else:
            table = pa.concat_tables([table, table])
    return table


def _draw_column(column: Any, chance: Random) -> Any:
    """Return a column of the same length: other values, another type, or one value changed."""
    values = column.to_pylist()
    drawn = chance.randrange(8)
    if drawn >= 5 and values:
        # Each value stays valid but moves to another row.
        for _ in range(chance.choice([1, 1, len(values)])):
            first, second = chance.randrange(len(values)), chance.randrange(len(values))
            values[first], values[second] = values[second], values[first]
        return pa.array(values, column.type)
    if drawn == 0:
        kinds = [column.type, pa.null(), pa.int64(), pa.string()]
        return pa.nulls(len(values), chance.choice(kinds))
    if drawn == 1:
        return pa.array([[value] for value in values])
    if drawn == 2:
        return pa.array([None if value is None else str(value) for value in values])
    if drawn == 3 and values:
        values[chance.randrange(len(values))] = draw_value(chance)
        return pa.array(values, column.type)
    return _draw_values(len(values), chance)


def _draw_values(size: int, chance: Random) -> Any:
    """Return a new column of texts, numbers, times or truth values."""
    drawn = chance.randrange(4)
    if drawn == 0:
        kind = chance.choice([pa.string(), pa.binary()])
        return pa.array([draw_text(chance) for _ in range(size)], kind)
    if drawn == 1:
        numbers = [float(draw_number(chance)) for _ in range(size)]
        return pa.array(numbers, chance.choice([pa.float64(), pa.float32()]))
    if drawn == 2:
        return pa.array([chance.choice(INTEGERS) for _ in range(size)], pa.int64())
    kind = chance.choice([pa.timestamp("us"), pa.duration("ns"), pa.uint64(), pa.bool_()])
    bits = 1 if pa.types.is_boolean(kind) else 62
    return pa.array([chance.getrandbits(bits) for _ in range(size)], pa.int64()).cast(kind)
