"""Damages cells and columns of CSV files, lines and values of TOML files, and encodings."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from scripts.fuzzing.byte_damage import edit_content
from scripts.fuzzing.values import Random, draw_number, draw_text

#: Encodings that editors and spreadsheets write, and some that they do not write.
_ENCODINGS = ("utf-16", "utf-16-le", "utf-8-sig", "latin-1", "utf-32", "cp037")
_LINE_ENDS = (b"\r", b"\r\n", b"\n\n", b"\0", b"\x85")
#: Values that replace values of TOML.
_TOML_VALUES = (
    '""',
    "0",
    "-1",
    "1e400",
    "nan",
    "true",
    "[]",
    "{}",
    "[[1]]",
    "1979-05-27",
    '"\\u0000"',
    "'('",
    "'[['",
    "'*'",
    "'(?P<phase>'",
    "'(?P<phase>.)(?P<phase>.)'",
    "'\\'",
    "'a{99999}'",
    "'(?P<microbatch>x*)'",
    "'(?i)F'",
    "'(?P<phase>F)'",
    "'['",
    "'\\1'",
    "9" * 5_000,
    "'\x1b[2J'",
)


def damage_csv(path: Path, chance: Random) -> None:
    """Change cells, columns or rows of a table, or its encoding, line ends and delimiter."""

    def edit(content: bytes) -> bytes:
        if chance.random() < 0.08:
            return _reencode(content, chance)
        text = content.decode("utf-8", "replace").replace("\0", "")
        try:
            rows = [row for row in csv.reader(io.StringIO(text)) if row]
        except csv.Error:  # a cell is too long
            return content
        if not rows:
            return content
        _damage_rows(rows, chance)
        written = io.StringIO()
        delimiter = chance.choice(";\t|") if chance.random() < 0.1 else ","
        csv.writer(written, delimiter=delimiter, lineterminator="\n").writerows(rows)
        return written.getvalue().encode("utf-8", "surrogatepass")

    edit_content(path, edit)


def damage_toml(path: Path, chance: Random) -> None:
    """Replace values of a TOML file, or remove, repeat, cut or reorder lines."""

    def edit(content: bytes) -> bytes:
        if chance.random() < 0.1:
            return _reencode(content, chance)
        lines = content.decode("utf-8", "replace").splitlines()
        for _ in range(chance.choice([1, 1, 2, 4])):
            if lines:
                _damage_line(lines, chance)
        return "\n".join(lines).encode()

    edit_content(path, edit)


def _reencode(content: bytes, chance: Random) -> bytes:
    """Return a text in another encoding or with other line ends."""
    if chance.random() < 0.5:
        return content.replace(b"\n", chance.choice(_LINE_ENDS))
    text = content.decode("utf-8", "replace")
    return text.encode(chance.choice(_ENCODINGS), "replace")


def _damage_rows(rows: list[list[str]], chance: Random) -> None:
    for _ in range(chance.choice([1, 1, 2, 5])):
        row = chance.choice(rows) if chance.random() < 0.8 else rows[0]
        column = chance.randrange(max(len(row), 1))
        drawn = chance.randrange(14)
        if drawn < 3:
            row[column : column + 1] = [_draw_cell(chance)]
        elif drawn == 3:
            row[column : column + 1] = chance.choice(rows)[column : column + 1]
        elif drawn < 8:
            _swap_cells(rows, column, chance)
        elif drawn == 8:
            row.append(_draw_cell(chance))
        elif drawn < 11:
            _damage_column(rows, column, chance)
        else:
            _rearrange_rows(rows, chance)


def _damage_column(rows: list[list[str]], column: int, chance: Random) -> None:
    """Remove a column, or give it one value in all rows below the header."""
    value = [] if chance.random() < 0.5 else [_draw_cell(chance)]
    for row in rows if not value else rows[1:]:
        row[column : column + 1] = value


def _rearrange_rows(rows: list[list[str]], chance: Random) -> None:
    """Repeat a row, shuffle the rows below the header, or remove the last rows."""
    drawn = chance.randrange(3)
    if drawn == 0:
        rows.insert(chance.randrange(len(rows) + 1), [*chance.choice(rows)])
    elif drawn == 1:
        header, *rest = rows
        chance.shuffle(rest)
        rows[:] = [header, *rest]
    else:
        del rows[chance.randrange(len(rows)) + 1 :]


def _swap_cells(rows: list[list[str]], column: int, chance: Random) -> None:
    """Swap the cells of two rows below the header, so that each cell remains valid."""
    first, second = chance.choice(rows[1:] or rows), chance.choice(rows[1:] or rows)
    if column < min(len(first), len(second)):
        first[column], second[column] = second[column], first[column]


def _draw_cell(chance: Random) -> str:
    return draw_text(chance) if chance.random() < 0.4 else str(draw_number(chance))


def _damage_line(lines: list[str], chance: Random) -> None:
    number = chance.randrange(len(lines))
    key, equals, _ = lines[number].partition("=")
    drawn = chance.randrange(10)
    if drawn < 2 and equals:
        # A valid value, perhaps of another key.
        _, _, value = chance.choice([line for line in lines if "=" in line]).partition("=")
        lines[number] = f"{key}={value}"
    elif drawn < 4 and equals:
        lines[number] = f"{key}= {chance.choice(_TOML_VALUES)}"
    elif drawn < 4:
        del lines[number]
    elif drawn < 7:
        lines.insert(number, lines[number])
    elif drawn == 7:
        lines[number] = lines[number][: chance.randrange(len(lines[number]) + 1)]
    elif drawn == 8:
        lines[number] = f"{draw_text(chance)} = {chance.choice(_TOML_VALUES)}"
    else:
        chance.shuffle(lines)
