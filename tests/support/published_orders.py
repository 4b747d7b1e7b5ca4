"""Orders and costs that were published by papers and authors, read from reference files."""

from __future__ import annotations

import csv
import re
from functools import cache

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.plan import Plan, PlannedOperation
from tests.support.needs import get_reference_file

LETTERS = {"F": Phase.F, "I": Phase.B, "W": Phase.W, "B": Phase.BW}

#: Names that bubbleviz uses for the schedules in the table.
OURS = {
    "torch:ScheduleGPipe": "gpipe",
    "1F1B": "1f1b",
    "1F1B-I": "interleaved-1f1b",
    "torch:ScheduleInterleaved1F1B": "interleaved-1f1b",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
    "ZB-V-handcrafted": "zb-v",
    "torch:ScheduleZBVZeroBubble": "zb-v",
    "torch:ScheduleLoopedBFS": "looped-bfs",
    "DualPipe/atomicFB": "dualpipe",
    "DualPipeV/atomicFB": "dualpipev",
    "torch:ScheduleDualPipeV/atomicFB": "dualpipev",
    "torch:ScheduleInterleavedZeroBubble": "interleaved-zb",
}

#: Schedules with a fixed order. tests/schedules/test_search.py covers the other schedules.
WITH_ORDER = [one for one in schedules() if one.searched is None or one.searched.limit is None]

Row = dict[str, str]


@cache
def read_reference(name: str) -> list[Row]:
    """Return the rows of a published table, for a test marked ``real_files``."""
    with get_reference_file(name).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def read_numbers(row: Row, *names: str) -> list[int]:
    return [int(row[name]) for name in names]


def parse_listed_plan(row: Row) -> Plan:
    """Parse the order in a row of the published table."""
    orders, placement = [], {}
    for device, text in enumerate(row["order"].split("|")):
        matches = re.findall(r"(\d+)([FIWB])(\d+)", text)
        orders.append(tuple(PlannedOperation(int(s), LETTERS[x], int(m)) for s, x, m in matches))
        placement.update({int(stage): device for stage, _, _ in matches})
    p, m, chunks = read_numbers(row, "p", "m", "chunks")
    placement_ = tuple(placement[stage] for stage in range(len(placement)))
    return Plan(row["schedule"], p, m, chunks, placement_, tuple(orders))


#: Schedules in which microbatches enter the pipeline only at one end.
ONE_WAY = [rule for rule in schedules() if rule.plan(4, 8, rule.chunks).replicas == 1]
