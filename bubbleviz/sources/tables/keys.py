"""Keys: what the texts of a table's cells say that an operation is."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import suggestion
from bubbleviz.sources.tables.cells import Cells, refused, shown, stripped
from bubbleviz.sources.tables.times import whole_numbers

_PHASES = {phase.label.lower(): phase for phase in Phase}
#: A number, or two of an operation that names two things.
_NUMBERS = re.compile(r"([0-9]{1,9})(?:\.0*)?(?:;([0-9]{1,9}))?")
#: The number of an iteration; training scripts may count more than steps in it.
_STEP = re.compile(r"([0-9]{1,18})(?:\.0*)?")
#: Iterations that no range names, beside one that some range does; reports write these.
_BESIDE = re.compile(r"(after|before) -?[0-9]{1,18}(?: \(([0-9]{1,18})\))?")


def phases(cells: Cells) -> Ints:
    """Return the code of each row's phase; in any case of its letters.

    Raises:
        ProfileError: a phase is unknown, or a cell is empty.
    """
    known = ", ".join(phase.label for phase in Phase)
    return _looked_up(
        cells,
        "phase",
        lambda text: _PHASES.get(text.lower()),
        lambda text: (
            f"the phase {shown(text)} is unknown{suggestion(text, [p.label for p in Phase])}; the "
            f"phases are {known}"
        ),
    )


def iterations(cells: Cells) -> tuple[Ints, tuple[str, ...]]:
    """Return the place of each row's iteration among their names, and these; -1 for none.

    Raises:
        ProfileError: one is no whole number.
    """
    column = cells.texts.get("iteration")
    if column is None:
        return np.full(cells.rows, NONE, np.int64), ()
    column = column.occurring()
    names = []
    for place, text in enumerate(column.texts):
        whole = _STEP.fullmatch(text)
        if whole is None and _BESIDE.fullmatch(text) is None:
            row = int((column.code == place).argmax())
            reason = f"the iteration {shown(text)} is no whole number; number the iterations"
            raise refused(cells.path, row, reason)
        names.append(text if whole is None else str(int(whole[1])))
    column = stripped(column.code, names)
    return column.code, tuple(column.texts)


def number_of_iteration(name: str) -> int:
    """Return the number of an iteration; -1 for one that has none, but a place beside another."""
    match = _STEP.fullmatch(name)
    return NONE if match is None else int(match[1])


def paired_numbers(cells: Cells, name: str) -> tuple[Ints, Ints]:
    """Return the number of each row, and its second one, of a column such as microbatches.

    Cells hold ``7``, or ``7;3``; a column ``second_NAME`` holds second ones, too. -1 for none.

    Raises:
        ProfileError: a cell holds something else.
    """

    def parsed(group: int) -> Callable[[str], int | None]:
        def number(text: str) -> int | None:
            if text == "-1":
                return NONE
            match = _NUMBERS.fullmatch(text)
            return None if match is None else int(match[group] or NONE)

        return number

    def reason(text: str) -> str:
        return f"the {name} {shown(text)} is no whole number"

    first = _looked_up(cells, name, parsed(1), reason, needed=False)
    second = _looked_up(cells, name, parsed(2), reason, needed=False)
    told, known = whole_numbers(cells, f"second_{name}", least=NONE)
    return first, np.where(known, told, second)


def names(cells: Cells, phase: Ints) -> tuple[Ints, tuple[str, ...]]:
    """Return the place of each row's name among the texts, and these.

    An operation without a name goes by its phase.
    """
    labels = [item.label for item in Phase]
    column = cells.texts.get("name")
    if column is None:
        return phase.copy(), tuple(labels)
    place = np.where(column.known, column.code, len(column.texts) + phase)
    return place, (*column.texts, *labels)


def _looked_up(
    cells: Cells,
    name: str,
    number: Callable[[str], int | None],
    reason: Callable[[str], str],
    *,
    needed: bool = True,
) -> Ints:
    """Return the number of each row's text; -1 for no text.

    Args:
        cells: of the table.
        name: of the column, which may be missing if it is not needed.
        number: of a text; None where it has none.
        reason: why such a text is refused.
        needed: whether no cell may be empty.

    Raises:
        ProfileError: a cell is refused.
    """
    column = cells.texts.get(name, CodedTexts(np.full(cells.rows, NONE, np.int64), ()))
    if needed and not column.known.all():
        raise refused(cells.path, int((~column.known).argmax()), f"{name} is empty; fill it")
    numbers = []
    for place, text in enumerate(column.texts):
        found = number(text)
        if found is None:
            rows = column.code == place
            # Categories need not occur.
            if rows.any():
                raise refused(cells.path, int(rows.argmax()), reason(text))
            found = NONE
        numbers.append(found)
    # The last place is that of no text.
    return np.array([*numbers, NONE], np.int64)[column.code]
