"""Blocks: an iteration of a rank, from its open ranges to the bytes that are written of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from bubbleviz import recording_layout as layout

#: A range that is over: its name, whether it only started transfers, its thread, when it was
#: entered and left by the host's monotonic clock, and its timing events, None for none. A plain
#: tuple: one is made for each range, while training waits.
Stamp: TypeAlias = "tuple[str, bool, int, int, int, tuple[Any, Any, Any] | None]"
#: Places in a stamp.
END: Final = 4
EVENTS: Final = 5


@dataclass(eq=False)
class Block:
    """The operations of one iteration of a rank.

    Attributes:
        number: of the iteration; None where no range names it.
        recorded: whether its operations are recorded; else they are left out on purpose.
        after_pause: whether iterations before it were left out on purpose.
        start_ns: when it began.
        end_ns: when its range was left, or its last operation ended.
        over: whether the next forward outside a range of an iteration begins another one.
        stamps: its operations, in the order in which they ended.
        spans: device start and end of each operation, in the same order, once read.
        anchor: the timing event at its beginning; None without a GPU.
        device_ns: the host's clock less the device's.
        lost: operations of earlier iterations that ended too late to be recorded.
        sealed: whether it takes no more operations.
        on_device: whether its operations are timed on a GPU.
    """

    number: int | None
    recorded: bool
    after_pause: bool
    start_ns: int
    end_ns: int = layout.NONE
    over: bool = False
    stamps: list[Stamp] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    anchor: Any = None
    device_ns: int = 0
    lost: int = 0
    sealed: bool = False
    on_device: bool = False


def events_of(block: Block) -> list[Any]:
    """Return the timing events of a block, in the order in which they were recorded."""
    pairs = [events[1:] for stamp in block.stamps if (events := stamp[EVENTS]) is not None]
    return [block.anchor, *(event for pair in pairs for event in pair)]


class ClockPair(NamedTuple):
    """UTC and the monotonic clock at one moment, and how far the pair can be off, nanoseconds."""

    monotonic_ns: int
    utc_ns: int
    half_width_ns: int


class Names:
    """Numbers of texts in one file, which get a record when they first occur, and of threads."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._threads: dict[int, int] = {}

    def thread(self, ident: int) -> int:
        """Return the number of a thread, of 16 bits."""
        return self._threads.setdefault(ident, len(self._threads)) & 0xFFFF

    def number(self, name: str, into: bytearray) -> int:
        """Return the number of a name, whose text is appended if it is new."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            into += text_records(layout.TEXT_NAME, number, name)
        return number


def text_records(of: int, number: int, text: str) -> bytes:
    """Return a text as records, of 32 bytes of UTF-8 each."""
    encoded = text.encode("utf-8", "replace")[: layout.LONGEST_TEXT]
    step = layout.TEXT_BYTES
    return b"".join(
        layout.TEXT.pack(
            layout.KIND_TEXT, of, len(encoded[at : at + step]), number, encoded[at : at + step]
        )
        for at in range(0, max(len(encoded), 1), step)
    )


def packed(block: Block, names: Names, clock: ClockPair) -> bytes:
    """Return the bytes of a block.

    Args:
        block: whose ``spans`` are read, or empty for a host's own times.
        names: of the file that it goes to.
        clock: when it is written.
    """
    texts, operations = bytearray(), bytearray()
    spans = block.spans or [(layout.NONE, layout.NONE)] * len(block.stamps)
    for stamp, (start_ns, end_ns) in zip(block.stamps, spans, strict=True):
        name, launches, thread, host_start_ns, host_end_ns, _ = stamp
        lost = bool(block.spans) and start_ns == layout.NONE and not launches
        operations += layout.OPERATION.pack(
            layout.KIND_OPERATION,
            layout.LAUNCHES * launches | layout.TIMES_LOST * lost,
            names.thread(thread),
            names.number(name, texts),
            host_start_ns,
            host_end_ns,
            start_ns,
            end_ns,
        )
    body = texts + operations
    body += layout.CLOCK.pack(
        layout.KIND_CLOCK,
        min(clock.half_width_ns, 0xFFFFFFFF),
        clock.monotonic_ns,
        clock.utc_ns,
        block.device_ns,
        0,
    )
    return bytes(body) + _end(block, body)


def _end(block: Block, body: bytearray) -> bytes:
    """Return the record that closes a block, with the CRC of all of it."""
    end = bytearray(
        layout.END.pack(
            layout.KIND_END,
            layout.NAMED * (block.number is not None) | layout.AFTER_PAUSE * block.after_pause,
            0,
            layout.NONE if block.number is None else block.number,
            block.start_ns,
            block.end_ns,
            len(body) // layout.RECORD_BYTES + 1,
            block.lost,
        )
    )
    end[layout.END_CRC] = zlib.crc32(body + end).to_bytes(4, "little")
    return bytes(end)
