"""Receives that are queued behind others: what another order saves is what the same job then takes.

Ranks post all receives at once, in the order in which data comes where all operations take equally
long; some take longer, so that the data of others is there first.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.advice import advice_of
from bubbleviz.schedules.known import schedule_named
from tests.support.operation_tables import csv_of

PLAN = schedule_named("interleaved-1f1b").plan(4, 8, 2)
#: Phase, virtual stage and microbatch.
Key = tuple[str, int, int]
MOVES_NS = 200_000
ORDERS = [[(o.phase.label, o.virtual_stage, o.microbatch) for o in own] for own in PLAN.orders]


def sent(phase: str, virtual: int, microbatch: int) -> list[Key]:
    """Return what an operation receives from another rank."""
    producer = virtual + (-1 if phase == "F" else 1)
    return [(phase, producer, microbatch)] * (0 <= producer < PLAN.virtual_stages)


def ran(
    length_ns: dict[Key, int], queues: list[list[Key]] | None
) -> tuple[dict[Key, int], dict[Key, tuple[int, int]]]:
    """Return when operations end, and from when to when what they receive takes.

    Args:
        length_ns: of each.
        queues: operations of each rank in the order of their receives; None for any order.
    """
    ended: dict[Key, int] = {}
    received: dict[Key, tuple[int, int]] = {}
    free_ns, queue_ns = [0] * 4, [0] * 4
    todo = [list(own) for own in ORDERS]
    waiting = [[key for key in own if sent(*key)] for own in (queues or ORDERS)]
    while any(todo):
        for rank in range(4):
            heads = waiting[rank][:1] if queues else list(waiting[rank])
            for key in (key for key in heads if sent(*key)[0] in ended):
                posted_ns = queue_ns[rank] if queues else 0
                there_ns = max(posted_ns, ended[sent(*key)[0]]) + MOVES_NS
                received[key], queue_ns[rank] = (posted_ns, there_ns), there_ns
                waiting[rank].remove(key)
            key = todo[rank][0] if todo[rank] else ("", 0, 0)
            own = [("F", *key[1:])] * (key[0] == "BW")
            if (
                key in length_ns
                and all(k in ended for k in own)
                and (key in received or not sent(*key))
            ):
                ready_ns = max(free_ns[rank], received.get(key, (0, 0))[1])
                free_ns[rank] = ended[key] = ready_ns + length_ns[key]
                todo[rank].pop(0)
    return ended, received


@pytest.mark.parametrize("seed", range(4))
def test_another_order_of_receives_saves_what_is_promised(seed: int, tmp_path: Path) -> None:
    keys = [key for own in ORDERS for key in own]
    usual_ns = {key: 2_000_000 * len(key[0]) for key in keys}
    planned = ran(usual_ns, None)[0]
    queues = [
        sorted((k for k in own if sent(*k)), key=lambda k: planned[sent(*k)[0]]) for own in ORDERS
    ]
    draw = random.Random(seed)
    length_ns = {key: round(own * draw.uniform(0.5, 2.0)) for key, own in usual_ns.items()}
    ended, received = ran(length_ns, queues)
    faster = ran(length_ns, None)[0]
    saved = 1 - max(faster.values()) / max(ended.values())
    rows = []
    for key, end_ns in ended.items():
        phase, virtual, microbatch = key
        rank = PLAN.device_of(virtual)
        start_ns = end_ns - length_ns[key]
        rows.append((phase, virtual, microbatch, rank, start_ns, end_ns))
        if key in received:
            (_, producer, _), times = sent(*key)[0], received[key]
            kind = "F" if phase == "F" else "B"
            other = PLAN.device_of(producer)
            rows.append((f"RECV_{kind}", virtual, microbatch, rank, *times))
            sent_ns = ended[sent(*key)[0]]
            rows.append((f"SEND_{kind}", producer, microbatch, other, sent_ns, times[1]))
    names = ("phase", "virtual_stage", "microbatch", "rank", "start_ns", "end_ns")
    table = {
        name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    table["chunk"] = [PLAN.chunk_of(virtual) for virtual in table["virtual_stage"]]
    table |= {"stage": table["rank"], "iteration": [0] * len(rows)}
    report = bubbleviz.analyze(csv_of(tmp_path / "operations.csv", table))
    advice = {one.kind: one for one in advice_of(report)}

    assert ("queue" in advice) == (saved > 0)
    if saved:
        assert advice["queue"].saving_ratio == pytest.approx(saved, abs=1e-3)
        assert "wait behind one" in advice["queue"].text
