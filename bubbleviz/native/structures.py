"""Structures: what ``launches.c``, ``spans.c`` and ``orders.c`` take, field by field."""

from __future__ import annotations

import ctypes

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t


class LaunchedRows(ctypes.Structure):
    """``struct index``: rows of what was launched, by process and correlation id."""

    _fields_ = (
        ("process", _POINTER),
        ("begin", _POINTER),
        ("known", _POINTER),
        ("near", _POINTER),
        ("processes", _SIZE),
        ("rows", _POINTER),
        ("ids", _POINTER),
    )


class CallBlock(ctypes.Structure):
    """``struct calls``: columns of a block of calls."""

    _fields_ = (
        ("row", _POINTER),
        ("start", _POINTER),
        ("thread", _POINTER),
        ("id", _POINTER),
        ("count", _SIZE),
    )


class LaunchColumns(ctypes.Structure):
    """``struct launches``: row and start of the call of each of what was launched."""

    _fields_ = (("call", _POINTER), ("start", _POINTER))


class FoundLaunches(ctypes.Structure):
    """``struct found``: what a block of calls launched, and what it took from earlier ones."""

    _fields_ = (
        ("place", _POINTER),
        ("activity", _POINTER),
        ("of_call", _POINTER),
        ("pairs", _SIZE),
        ("room", _SIZE),
        ("lost", _POINTER),
        ("lost_start", _POINTER),
        ("losses", _SIZE),
    )


class WorkColumns(ctypes.Structure):
    """``struct work``: kernels and copies, and the operation that owns each."""

    _fields_ = (
        ("owner", _POINTER),
        ("compute", _POINTER),
        ("communication", _POINTER),
        ("start", _POINTER),
        ("end", _POINTER),
        ("count", _SIZE),
    )


class SpanColumns(ctypes.Structure):
    """``struct spans``: when each operation ran."""

    _fields_ = (
        ("start", _POINTER),
        ("end", _POINTER),
        ("kernels", _POINTER),
        ("first", _POINTER),
        ("best", _POINTER),
        ("count", _SIZE),
    )


class PipelineTimes(ctypes.Structure):
    """``struct pipeline``: times and memory of virtual stages, and sizes."""

    _fields_ = (
        ("placement", _POINTER),
        ("length", _POINTER),
        ("down", _POINTER),
        ("up", _POINTER),
        ("held", _POINTER),
        ("kept", _POINTER),
        ("limit", _POINTER),
        ("devices", ctypes.c_int32),
        ("stages", ctypes.c_int32),
        ("microbatches", ctypes.c_int32),
        ("of_cost", ctypes.c_int32),
    )


class OrderColumns(ctypes.Structure):
    """``struct orders``: what devices run, one after the other."""

    _fields_ = (("code", _POINTER), ("offset", _POINTER))


LAUNCHES_LAYOUT = tuple(map(ctypes.sizeof, (LaunchedRows, CallBlock, LaunchColumns, FoundLaunches)))
SPANS_LAYOUT = tuple(map(ctypes.sizeof, (WorkColumns, SpanColumns)))
ORDERS_LAYOUT = tuple(map(ctypes.sizeof, (PipelineTimes, OrderColumns)))
