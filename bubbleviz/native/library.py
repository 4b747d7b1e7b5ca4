"""Finds, loads and calls the shared library, with numpy columns as arguments.

Only :mod:`bubbleviz.native.functions` calls the library. Other modules use the functions in that
module.
"""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

#: Name of the library file. The build puts this file next to this module.
FILE = "libbubbleviz.dylib" if sys.platform == "darwin" else "libbubbleviz.so"
#: Environment variable that disables the library if it is set to 0.
SWITCH = "BUBBLEVIZ_NATIVE"

_Ints: TypeAlias = npt.NDArray[np.int64]
_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64


#: Argument of a C function: a column, a 64-bit integer, a tuple of arguments (passed as a pointer
#: to a struct), or None for a null pointer.
Argument: TypeAlias = "npt.NDArray[Any] | int | tuple[Argument, ...] | None"


@dataclass(frozen=True)
class Library:
    """The functions of the loaded library, which release the GIL and do not keep any state."""

    functions: ctypes.CDLL

    def call(self, name: str, *arguments: Argument) -> int:
        """Call a library function, and return its result, a 64-bit integer.

        Contiguous columns are passed by address, so the function can modify them in place. A column
        that is not contiguous is copied first, so changes to it are lost.

        Args:
            name: Name of the function, without the prefix ``bubbleviz_``.
            arguments: Arguments of the function.
        """
        function = getattr(self.functions, f"bubbleviz_{name}")
        function.restype = _I64
        # Objects whose addresses are passed must outlive the call.
        owners: list[Any] = []
        return int(function(*(_convert_argument(argument, owners) for argument in arguments)))


def view_memory(address: int, size: int) -> memoryview:
    """Return a view of ``size`` bytes at an address.

    Unlike with ``ctypes.string_at``, the size may exceed 2 GiB.
    """
    return memoryview((ctypes.c_char * size).from_address(address) if address and size else b"")


def terminate_texts(*texts: str) -> npt.NDArray[np.uint8]:
    """Encode texts as UTF-8, terminate each with a NUL byte, and concatenate them."""
    return np.frombuffer("".join(f"{text}\0" for text in texts).encode(), np.uint8)


def get_pointer(column: npt.NDArray[Any]) -> ctypes.c_void_p:
    """Return the address of a contiguous column."""
    # Reading the attribute "ctypes" would take ten times as long.
    return ctypes.c_void_p(column.__array_interface__["data"][0])


def trim_column(column: _Ints, count: int) -> _Ints:
    """Return the first ``count`` values of a column, and free the rest of its memory.

    Nothing else may refer to the column. The column is shrunk in place if at least half of it
    remains. Otherwise, the values are copied to avoid memory fragmentation.
    """
    if 2 * count < len(column):
        return column[:count].copy()
    column.resize(count, refcheck=False)
    return column


def _convert_argument(argument: Argument, owners: list[Any]) -> Any:
    """Convert an argument to ctypes, and append the objects that own its memory to ``owners``.

    Columns and tuples are passed by address, and integers are passed by value. None becomes a null
    pointer.
    """
    if isinstance(argument, int):
        return _I64(argument)
    if isinstance(argument, np.ndarray):
        owners.append(np.ascontiguousarray(argument))
        return get_pointer(owners[-1])
    if argument is None:
        return _POINTER()
    values = [
        part if isinstance(part, int) else _convert_argument(part, owners) for part in argument
    ]
    owners.append(_make_structure(tuple(map(type, values)))(*values))
    return ctypes.byref(owners[-1])


@cache
def _make_structure(kinds: tuple[type, ...]) -> Any:
    """Return a ctypes structure with members of the given types. ``int`` means a 64-bit integer."""
    types = (_I64 if issubclass(kind, int) else kind for kind in kinds)
    fields = tuple((f"part_{index}", kind) for index, kind in enumerate(types))
    return type("Structure", (ctypes.Structure,), {"_fields_": fields})


def get_library() -> Library | None:
    """Return the library, or None if it is not built, cannot be loaded, or is disabled."""
    return None if os.environ.get(SWITCH) == "0" else _load_once()


def explain_absence() -> str:
    """Return the reason why the library is not used, or "" if it is used."""
    if get_library() is not None:
        return ""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 disables the compiled reader"
    if not Path(__file__).with_name(FILE).exists():
        return "the compiled reader was not built"
    return (
        f"{FILE} cannot be loaded or has a different version; reinstall bubbleviz, or in a source "
        f"checkout run python scripts/build_native.py bubbleviz/native/{FILE}"
    )


@cache
def _load_once() -> Library | None:
    return load(Path(__file__).with_name(FILE))


def load(path: Path) -> Library | None:
    """Load the library from a file.

    Returns:
        The library, or None if it cannot be loaded or was not compiled from the C files in this
        folder. A library compiled from other sources is refused, because its functions may have
        different parameters and could crash.
    """
    sources = sorted(Path(__file__).parent.glob("*.c"))
    try:
        functions = ctypes.CDLL(str(path))
        functions.bubbleviz_source.restype = ctypes.c_uint32
        # scripts/build_native.py compiles the same checksum into the library.
        checksum = zlib.crc32(b"".join(source.read_bytes() for source in sources))
        if sources and functions.bubbleviz_source() != checksum:
            return None
    except (OSError, AttributeError):
        return None
    return Library(functions)
