"""Damages cells, columns, rows and tables of SQLite files with SQL statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from scripts.fuzzing.values import FLOATS, INTEGERS, Random, draw_number, draw_text
from tests.support.edited_databases import rebuild_table

#: SQL expressions that change all values of a column; {0} is the column.
_EXPRESSIONS = (
    "NULL",
    "0",
    "-1",
    "'x'",
    "''",
    "x'00ff'",
    "-{0}",
    "{0} + 1000000000",
    "{0} * 1000",
    "{0} / 2",
    "CAST({0} AS TEXT)",
    "CAST({0} AS BLOB)",
    "CAST({0} AS REAL)",
    "{0} || char(27, 10)",
    "9223372036854775807",
    "-9223372036854775808",
    "1e300",
    "rowid",
    "-rowid",
    "rowid * 7919 % 1000",
    "CASE rowid % 3 WHEN 0 THEN NULL ELSE {0} END",
    "CASE rowid % 2 WHEN 0 THEN 'x' ELSE {0} END",
)


def damage_database(path: Path, chance: Random) -> None:
    """Change cells, columns, rows or tables of a database. The file stays a valid database."""
    # An earlier step may have damaged the file, or a constraint may prevent a change.
    refusals = (sqlite3.Error, UnicodeDecodeError, OverflowError)
    with closing(sqlite3.connect(path, isolation_level=None)) as database, suppress(*refusals):
        database.execute("PRAGMA synchronous = OFF")
        database.execute("PRAGMA journal_mode = MEMORY")
        database.execute("PRAGMA legacy_alter_table = ON")
        if _list_tables(database):
            for _ in range(chance.choice([1, 1, 1, 2, 4])):
                _damage_table(database, chance)


def _damage_table(database: sqlite3.Connection, chance: Random) -> None:
    """Change the cells, columns, rows or schema of a random table."""
    tables = _list_tables(database)
    table = chance.choice(tables)
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    if not columns:  # an earlier step damaged the schema
        return
    column = chance.choice(columns)
    choice = chance.randrange(20)
    if choice < 8:
        _change_cells(database, table, column, chance)
    elif choice < 12:
        expression = chance.choice(_EXPRESSIONS).format(f'"{column}"')
        _remove_constraints(database, table)
        database.execute(f'UPDATE "{table}" SET "{column}" = {expression}')
    elif choice < 15:
        _change_columns(database, table, columns, chance)
    elif choice < 18:
        _change_rows(database, table, columns, chance)
    else:
        _change_schema(database, table, tables, chance)


def _list_tables(database: sqlite3.Connection) -> list[str]:
    rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")
    return [name for (name,) in rows if not name.startswith("sqlite_")]


def _remove_constraints(database: sqlite3.Connection, table: str) -> None:
    """Rewrite a table without constraints, so that it accepts any value."""
    for statement in rebuild_table(table):
        database.execute(statement)


def _draw_cell(chance: Random) -> Any:
    """Return a random value that SQLite can store."""
    choice = chance.randrange(5)
    if choice == 0:
        return None
    if choice == 1:
        return draw_text(chance)
    if choice == 2:
        return bytes(chance.randrange(256) for _ in range(chance.choice([0, 1, 8, 40])))
    number = draw_number(chance)
    fits = isinstance(number, float) or abs(number) < 1 << 63
    return number if fits else chance.choice(INTEGERS[:8] + FLOATS[:4])


def _change_cells(database: sqlite3.Connection, table: str, column: str, chance: Random) -> None:
    """Replace one or a few cells of a column with random values."""
    if chance.random() < 0.7:
        _remove_constraints(database, table)
    ids = [number for (number,) in database.execute(f'SELECT rowid FROM "{table}"')]
    for _ in range(chance.choice([1, 1, 2, 6])):
        if ids:
            values = (_draw_cell(chance), chance.choice(ids))
            database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', values)


def _change_columns(
    database: sqlite3.Connection, table: str, columns: Sequence[str], chance: Random
) -> None:
    """Rebuild a table with a column removed, renamed, replaced, converted or set to NULL."""
    column = chance.choice(columns)
    quoted = [f'"{name}"' for name in columns if name != column]
    choice = chance.randrange(6)
    if choice == 0:
        selected = "NULL AS nothing"
    elif choice == 1:
        selected = ", ".join([*quoted, f'"{column}" AS "{draw_text(chance)[:40]}"'])
    elif choice == 2:
        other = chance.choice(columns)
        selected = ", ".join([*quoted, f'"{other}" AS "{column}"'])
    elif choice == 3:
        kind = chance.choice(["TEXT", "REAL", "BLOB", "INTEGER"])
        selected = ", ".join([*quoted, f'CAST("{column}" AS {kind}) AS "{column}"'])
    else:
        selected = ", ".join(quoted) or "1 AS one"
    for statement in rebuild_table(table, selected):
        database.execute(statement)


def _change_rows(
    database: sqlite3.Connection, table: str, columns: Sequence[str], chance: Random
) -> None:
    """Remove, repeat or reorder the rows of a table, or swap two of its columns."""
    choice = chance.randrange(6)
    if choice == 0:
        database.execute(f'DELETE FROM "{table}"')
    elif choice == 1:
        remainder = chance.randrange(3)
        database.execute(f'DELETE FROM "{table}" WHERE rowid % 3 = {remainder}')
    elif choice == 2:
        _remove_constraints(database, table)
        database.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
    elif choice == 3:
        for statement in rebuild_table(table, order="rowid * 7919 % 1009"):
            database.execute(statement)
    elif choice == 4:
        for statement in rebuild_table(table, order="rowid DESC"):
            database.execute(statement)
    else:
        first, second = chance.choice(columns), chance.choice(columns)
        _remove_constraints(database, table)
        database.execute(f'UPDATE "{table}" SET "{first}" = "{second}", "{second}" = "{first}"')


def _change_schema(
    database: sqlite3.Connection, table: str, tables: Sequence[str], chance: Random
) -> None:
    """Remove a table, swap two tables, replace a table with a view, or damage its schema."""
    other = chance.choice(tables)
    choice = chance.randrange(6)
    if choice < 2:
        database.execute(f'DROP TABLE "{table}"')
    elif choice == 2 and other != table:
        database.execute(f'ALTER TABLE "{table}" RENAME TO swapped')
        database.execute(f'ALTER TABLE "{other}" RENAME TO "{table}"')
        database.execute(f'ALTER TABLE swapped RENAME TO "{other}"')
    elif choice == 3:
        database.execute(f'ALTER TABLE "{table}" RENAME TO hidden')
        database.execute(f'CREATE VIEW "{table}" AS SELECT * FROM hidden')
    elif choice == 4:
        database.execute(f'ALTER TABLE "{table}" ADD COLUMN "_rowid_" INT')
    else:
        database.execute(f'CREATE INDEX "an index" ON "{table}" (1)')
        database.execute("PRAGMA writable_schema = ON")
        change = chance.choice(["sql = ''", "rootpage = 3", "name = 'x'", "sql = 'CREATE TABLE'"])
        database.execute(f"UPDATE sqlite_master SET {change} WHERE name = ?", (table,))
