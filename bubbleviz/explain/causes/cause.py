"""The causes of idle time: where each counts, what it means, and how advice states it."""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import NamedTuple


class Region(Enum):
    """The part of a rank's window in which a cause counts."""

    WINDOW = auto()  # all of it
    EDGE = auto()  # before the rank's first operation or after its last: the place is the cause
    OPERATIONS = auto()  # between the rank's first operation and its last


class Cause(IntEnum):
    """Why a rank was idle; the first that applies counts."""

    PROFILER = 0
    COLLECTIVE = 1
    WARMUP = 2
    DRAIN = 3
    DEPENDENCY = 4
    HOST = 5
    COMMUNICATION = 6
    OTHER = 7
    UNKNOWN = 8
    STAGES = 9
    CHUNKS = 10
    TOKEN = 11
    REQUESTS = 12

    @property
    def label(self) -> str:
        """The name as reports print it."""
        return self.name.lower()

    @property
    def region(self) -> Region:
        """Where it counts."""
        return _DESCRIPTIONS[self].region

    @property
    def meaning(self) -> str:
        """What it means, as tables print it."""
        return _DESCRIPTIONS[self].meaning

    @property
    def sentence(self) -> str:
        """The end of a sentence on one bubble of which nothing more is known."""
        return _DESCRIPTIONS[self].sentence


class _CauseMeaning(NamedTuple):
    region: Region
    meaning: str
    sentence: str


_DESCRIPTIONS = {
    Cause.PROFILER: _CauseMeaning(
        Region.WINDOW,
        "profiler overhead",
        "profiler overhead",
    ),
    Cause.COLLECTIVE: _CauseMeaning(
        Region.WINDOW,
        "a collective moved data, and nothing else ran",
        "a collective moves data, and nothing else runs",
    ),
    Cause.WARMUP: _CauseMeaning(
        Region.EDGE,
        "before the rank's first operation of the iteration",
        "the pipeline fills",
    ),
    Cause.DRAIN: _CauseMeaning(
        Region.EDGE,
        "after the rank's last operation of the iteration",
        "the pipeline drains",
    ),
    Cause.DEPENDENCY: _CauseMeaning(
        Region.OPERATIONS,
        "another rank had not finished the input, or entered the collective",
        "it waits for its input",
    ),
    Cause.HOST: _CauseMeaning(
        Region.OPERATIONS,
        "input ready, host had not launched it",
        "input ready, host has not launched it",
    ),
    Cause.COMMUNICATION: _CauseMeaning(
        Region.OPERATIONS,
        "the input was being transferred",
        "its input is in transfer",
    ),
    Cause.OTHER: _CauseMeaning(
        Region.OPERATIONS,
        "none of these (launch latency)",
        "no recorded cause (launch latency)",
    ),
    Cause.UNKNOWN: _CauseMeaning(
        Region.OPERATIONS,
        "what it waited for is unknown, since stages are unknown or contradict the data",
        "it is unknown what it waits for, since stages are unknown or contradict the data",
    ),
    Cause.STAGES: _CauseMeaning(
        Region.OPERATIONS,
        "the stage before takes longer for a chunk than this one",
        "the stage before takes longer for a chunk than this one",
    ),
    Cause.CHUNKS: _CauseMeaning(
        Region.OPERATIONS,
        "the next chunk is longer than the one before it",
        "the next chunk is longer than the one before it",
    ),
    Cause.TOKEN: _CauseMeaning(
        Region.OPERATIONS,
        "the last stage had not given the token that the next step needs",
        "the last stage has not given the token that the next step needs",
    ),
    Cause.REQUESTS: _CauseMeaning(
        Region.OPERATIONS,
        "the pipeline was empty for longer than a chunk takes: no request was there",
        "the pipeline is empty, and no request is there",
    ),
}
