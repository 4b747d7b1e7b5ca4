"""Write a profile of a given size in the layout of ``nsys export --type sqlite``.

As in real exports, kernels and NVTX ranges are sorted by start, so processes are interleaved. API
calls are grouped by (thread, event class) and sorted by time in each group. Correlation ids are
unique only within a process, and there is no index. The writer keeps only one iteration or one
process in memory.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from tests.planting import layout
from tests.planting.host_tables import KERNEL_CONSTANTS, make_process_tables, make_session_tables
from tests.planting.kernels.launches import CALL_NAMES, DRIVER, RUNTIME, Arrays, Block, make_block
from tests.planting.kernels.timetable import DEVICES, Recipe, Timetable, simulate_timetable
from tests.planting.places import EPOCH_NS, HOST_ID
from tests.planting.recorder import KERNEL_NAMES

#: Name of the row that stores the recipe of a profile, and edition of the generator.
#: Increase the edition whenever the generator changes the bytes that a recipe gives.
_RECIPE, _EDITION = "BUBBLEVIZ_BENCHMARK", 2
_PUSH_POP = 59
#: Step between the sparse ids of StringIds, first id, and first id of library ranges.
_ID_STEP, _FIRST_ID, _FIRST_LIBRARY_ID = 4, 71_000, 1_000_000
#: Names of the two library ranges around a launch, without the number at their end.
_OUTER = (
    "aten::linear",
    "aten::view",
    "aten::layer_norm",
    "autograd::engine::evaluate_function: AddmmBackward0",
)
_INNER = ("aten::addmm", "aten::as_strided", "aten::native_layer_norm", "AddmmBackward0")
#: Every n-th library range has a registered string.
_REGISTERED = 3


def write_profile(recipe: Recipe, path: Path) -> Timetable:
    """Write the profile of a recipe, and return its contents.

    Args:
        recipe: Parameters of the profile.
        path: Output file; an existing file is replaced once the new one is complete.
    """
    timetable = simulate_timetable(recipe)
    unfinished = path.with_name(path.name + ".part")
    strings = _assign_string_ids()
    layout.write_export(unfinished, _make_small_tables(recipe, strings))
    with layout.open_for_writing(unfinished) as database:
        if recipe.deep:
            _write_library_strings(database, timetable)
        _write_calls(database, timetable, strings)
        _write_kernels(database, timetable, strings)
        _write_ranges(database, timetable, strings)
    unfinished.replace(path)
    return timetable


def is_made_from(recipe: Recipe, path: Path) -> bool:
    """Return whether this edition of the generator wrote a file from this recipe."""
    if not path.exists():
        return False
    query = "SELECT value FROM META_DATA_EXPORT WHERE name = ?"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return database.execute(query, (_RECIPE,)).fetchall() == [(_sign(recipe),)]
    except sqlite3.DatabaseError:
        return False


def _sign(recipe: Recipe) -> str:
    return f"{recipe}, edition {_EDITION}"


def _get_pid(device: int) -> int:
    return 2_001 + 64 * device


def _get_process(device: int) -> int:
    """Return the globalPid of the process of a device."""
    return HOST_ID | (_get_pid(device) << 24)


def _get_thread(device: int) -> int:
    """Return the globalTid of the main thread of a device's process."""
    return _get_process(device) | _get_pid(device)


def _assign_string_ids() -> dict[str, int]:
    """Return the ids of all texts except library ranges."""
    kernels = [text for names in KERNEL_NAMES for text in names]
    texts = dict.fromkeys([*kernels, *CALL_NAMES, "ncclRecv", "python3"])
    return {text: _FIRST_ID + _ID_STEP * number for number, text in enumerate(texts)}


def _make_small_tables(recipe: Recipe, strings: Mapping[str, int]) -> dict[str, layout.Columns]:
    """Return the tables whose size does not depend on the number of kernels."""
    devices = range(DEVICES)
    exported = (("EXPORT_SCHEMA_VERSION", "3.25.0"), (_RECIPE, _sign(recipe)))
    return {
        "StringIds": {"id": list(strings.values()), "value": list(strings)},
        **make_process_tables("bench0", [_get_pid(device) for device in devices], devices, devices),
        **make_session_tables("bench0", EPOCH_NS, monotonic_ns=5_000_000_000_000),
        "ThreadNames": {
            "nameId": strings["python3"],
            "priority": 20,
            "globalTid": [_get_thread(device) for device in devices],
        },
        "META_DATA_EXPORT": {
            "name": [name for name, _ in exported],
            "value": [value for _, value in exported],
        },
        **layout.make_enums(),
    }


def _make_blocks(timetable: Timetable, iteration: int) -> list[Block]:
    return [make_block(timetable, device, iteration) for device in range(DEVICES)]


def _sort(columns: Arrays) -> Arrays:
    """Return the columns sorted by ``start``."""
    order = np.argsort(columns["start"], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def _write_calls(
    database: sqlite3.Connection, timetable: Timetable, strings: Mapping[str, int]
) -> None:
    """Write the table of calls.

    Rows are grouped by process, then runtime and driver calls, and sorted by time in each group.
    """
    layout.create_table(database, "CUPTI_ACTIVITY_KIND_RUNTIME")
    names = np.array([strings[name] for name in CALL_NAMES], dtype=np.int64)
    for device in range(DEVICES):
        for event_class in (RUNTIME, DRIVER):
            for iteration in range(timetable.recipe.iterations):
                calls = make_block(timetable, device, iteration).calls
                rows = calls["class"] == event_class
                columns: layout.Columns = {
                    "start": calls["start"][rows],
                    "end": calls["end"][rows],
                    "eventClass": event_class,
                    "globalTid": _get_thread(device),
                    "correlationId": calls["correlation"][rows],
                    "nameId": names[calls["name"][rows]],
                    "returnValue": 0,
                }
                layout.insert_rows(database, "CUPTI_ACTIVITY_KIND_RUNTIME", columns)


def _write_kernels(
    database: sqlite3.Connection, timetable: Timetable, strings: Mapping[str, int]
) -> None:
    """Write the table of kernels, sorted by start within each iteration."""
    layout.create_table(database, "CUPTI_ACTIVITY_KIND_KERNEL")
    names = np.array([[strings[text] for text in texts] for texts in KERNEL_NAMES], dtype=np.int64)
    processes = np.array([_get_process(device) for device in range(DEVICES)], dtype=np.int64)
    n_written = 0
    for iteration in range(timetable.recipe.iterations):
        rows = _sort(_join([_add_device(block) for block in _make_blocks(timetable, iteration)]))
        name_ids = names[rows["name"]]
        columns: layout.Columns = {
            "start": rows["start"],
            "end": rows["end"],
            "deviceId": rows["device"],
            "streamId": rows["stream"],
            "correlationId": rows["correlation"],
            "globalPid": processes[rows["device"]],
            "demangledName": name_ids[:, 0],
            "shortName": name_ids[:, 1],
            "mangledName": name_ids[:, 2],
            "gridId": np.arange(n_written + 1, n_written + 1 + len(name_ids), dtype=np.int64),
            **KERNEL_CONSTANTS,
        }
        layout.insert_rows(database, "CUPTI_ACTIVITY_KIND_KERNEL", columns)
        n_written += len(name_ids)


def _add_device(block: Block) -> Arrays:
    device = np.full(len(block.kernels["start"]), block.device, dtype=np.int64)
    return {**block.kernels, "device": device}


def _join(parts: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _write_ranges(
    database: sqlite3.Connection, timetable: Timetable, strings: Mapping[str, int]
) -> None:
    """Write the table of NVTX ranges, sorted by start within each iteration.

    Library ranges are written only for deep recipes.
    """
    layout.create_table(database, "NVTX_EVENTS")
    first = 0
    for iteration in range(timetable.recipe.iterations):
        rows: list[tuple[int, int, str | None, int | None, int, int]] = []
        for block in _make_blocks(timetable, iteration):
            thread = _get_thread(block.device)
            for item in block.ranges:
                text, by_id = (None, strings[item.text]) if item.nccl else (item.text, None)
                domain = int(item.nccl)
                rows.append((item.start_ns, item.end_ns, text, by_id, domain, thread))
            if timetable.recipe.deep:
                rows += _make_library_rows(block, first, thread)
                first += 2 * len(block.slots)
        rows.sort(key=lambda row: row[0])
        starts, ends, texts, ids, domains, threads = zip(*rows, strict=True)
        columns: layout.Columns = {
            "start": starts, "end": ends, "eventType": _PUSH_POP, "text": texts,
            "globalTid": threads, "textId": ids, "domainId": domains,
        }  # fmt: skip
        layout.insert_rows(database, "NVTX_EVENTS", columns)


def _make_library_rows(
    block: Block, first: int, thread: int
) -> Iterator[tuple[int, int, str | None, int | None, int, int]]:
    """Yield the library ranges of a block.

    ``first`` is the number of library ranges before the block.
    """
    for level, (starts, ends) in enumerate(block.library):
        for order, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            number = first + 2 * order + level
            if number % _REGISTERED == 0:
                yield start, end, None, _get_library_id(number), 0, thread
            else:
                yield start, end, _make_library_text(number), None, 0, thread


def _make_library_text(number: int) -> str:
    stems = _INNER if number % 2 else _OUTER
    return f"{stems[number // 2 % len(stems)]}, op_id = {number}"


def _get_library_id(number: int) -> int:
    return _FIRST_LIBRARY_ID + _ID_STEP * (number // _REGISTERED)


def _write_library_strings(database: sqlite3.Connection, timetable: Timetable) -> None:
    recipe = timetable.recipe
    total = 2 * timetable.operations * recipe.kernels_per_operation
    numbers = range(0, total, _REGISTERED)
    rows = ((_get_library_id(number), _make_library_text(number)) for number in numbers)
    database.executemany("INSERT INTO StringIds (id, value) VALUES (?, ?)", rows)


if __name__ == "__main__":
    write_profile(Recipe(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])), Path(sys.argv[4]))
