"""The shared library: finds and loads it, and passes numpy columns to it.

:mod:`bubbleviz.native.functions` calls its functions; other modules use the functions there.
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

#: The file that the build puts beside this one.
FILE = "libbubbleviz.dylib" if sys.platform == "darwin" else "libbubbleviz.so"
#: Set to 0, it leaves the compiled part out.
SWITCH = "BUBBLEVIZ_NATIVE"

_Ints: TypeAlias = npt.NDArray[np.int64]
_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64


#: A column, a number, or a structure of such; None is no column.
Argument: TypeAlias = "npt.NDArray[Any] | int | tuple[Argument, ...] | None"


@dataclass(frozen=True)
class Library:
    """The loaded functions. Threads may call them at the same time; they hold no lock."""

    functions: ctypes.CDLL

    def call(self, name: str, *arguments: Argument) -> int:
        """Return what a function gives that takes columns, 64-bit integers and structures of these.

        Columns that are not contiguous are copied, so that none of these may be written to.
        """
        function = getattr(self.functions, f"bubbleviz_{name}")
        function.restype = _I64
        # What an address is of must outlive the call.
        kept: list[Any] = []
        return int(function(*(_passed(argument, kept) for argument in arguments)))


def memory_at(address: int, size: int) -> memoryview:
    """Return so many bytes at an address; ``ctypes.string_at`` counts them in 32 bits."""
    return memoryview((ctypes.c_char * size).from_address(address) if address and size else b"")


def ended(*texts: str) -> npt.NDArray[np.uint8]:
    """Return texts one behind another, each ended by NUL."""
    return np.frombuffer("".join(f"{text}\0" for text in texts).encode(), np.uint8)


def pointer(column: npt.NDArray[Any]) -> ctypes.c_void_p:
    """Return the address of a contiguous column."""
    # The attribute "ctypes" takes ten times as long.
    return ctypes.c_void_p(column.__array_interface__["data"][0])


def cut(column: _Ints, count: int) -> _Ints:
    """Return the first values of a column that nothing else uses, so that the rest is freed.

    Many of them stay where they are; few would lie in the way of the next column as long as this.
    """
    if 2 * count < len(column):
        return column[:count].copy()
    column.resize(count, refcheck=False)
    return column


def _passed(argument: Argument, kept: list[Any]) -> Any:
    """Return an argument as C takes it; what must not be freed meanwhile is kept."""
    if isinstance(argument, int):
        return _I64(argument)
    if isinstance(argument, np.ndarray):
        kept.append(np.ascontiguousarray(argument))
        return pointer(kept[-1])
    if argument is None:
        return _POINTER()
    values = [part if isinstance(part, int) else _passed(part, kept) for part in argument]
    kept.append(_structure_of(tuple(map(type, values)))(*values))
    return ctypes.byref(kept[-1])


@cache
def _structure_of(kinds: tuple[type, ...]) -> Any:
    types = (_I64 if issubclass(kind, int) else kind for kind in kinds)
    fields = tuple((f"part_{place}", kind) for place, kind in enumerate(types))
    return type("Structure", (ctypes.Structure,), {"_fields_": fields})


def library() -> Library | None:
    """Return the compiled part; None where it was not built, or is switched off."""
    return None if os.environ.get(SWITCH) == "0" else _loaded()


def absence() -> str:
    """Return why there is no compiled part; "" where there is one."""
    if library() is not None:
        return ""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 switches the compiled reader off"
    if not Path(__file__).with_name(FILE).exists():
        return "the compiled reader was not built"
    return (
        f"{FILE} cannot be loaded or is of another version; install bubbleviz again, or in a "
        f"checkout run python scripts/build_native.py bubbleviz/native/{FILE}"
    )


@cache
def _loaded() -> Library | None:
    return load(Path(__file__).with_name(FILE))


def load(path: Path) -> Library | None:
    """Return the library in a file; None where it cannot be loaded, or is of another source.

    A function of another source may take other arguments, and would crash.
    """
    sources = sorted(Path(__file__).parent.glob("*.c"))
    try:
        functions = ctypes.CDLL(str(path))
        functions.bubbleviz_source.restype = ctypes.c_uint32
        # scripts/build_native.py passes the same on.
        checksum = zlib.crc32(b"".join(source.read_bytes() for source in sources))
        if sources and functions.bubbleviz_source() != checksum:
            return None
    except (OSError, AttributeError):
        return None
    return Library(functions)
