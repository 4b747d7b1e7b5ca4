"""Silent workers are detected by their heartbeats, whatever the clocks, and given up in time."""

from __future__ import annotations

from bubbleviz.interpret.fleet.silence import SILENT_S, Heartbeats, Patience

A, B = "tcp://10.0.0.1:1", "tcp://10.0.0.2:1"
LATE_S = SILENT_S + 1


def test_without_workers_nobody_is_silent() -> None:
    heartbeats = Heartbeats()
    assert heartbeats.get_silence_s(100.0) == {}
    heartbeats.update({}, 100.0)
    assert heartbeats.get_silence_s(200.0) == {}


def test_a_worker_is_silent_once_its_stamp_stays_the_same() -> None:
    heartbeats = Heartbeats()
    # The clock of the scheduler is an hour off.
    heartbeats.update({A: 3_600.0, B: 3_600.0}, 0.0)
    heartbeats.update({A: 3_600.0, B: 3_605.0}, 5.0)

    assert heartbeats.get_silence_s(SILENT_S) == {}
    assert heartbeats.get_silence_s(LATE_S) == {A: LATE_S}
    heartbeats.update({A: 3_612.0, B: 3_605.0}, LATE_S)
    assert heartbeats.get_silence_s(LATE_S) == {}


def test_a_worker_that_left_is_not_silent() -> None:
    heartbeats = Heartbeats()
    heartbeats.update({A: 1.0, B: 1.0}, 0.0)
    heartbeats.update({B: 1.0}, LATE_S)

    assert heartbeats.get_silence_s(LATE_S) == {B: LATE_S}


def test_each_silence_is_reported_once() -> None:
    patience = Patience(60.0)
    assert patience.update_heartbeats({A: 1.0}, 0.0) == []
    assert patience.update_heartbeats({A: 1.0}, LATE_S) == [A]
    assert patience.take_unreported([A]) == [A]
    assert patience.take_unreported([A]) == []
    assert patience.update_heartbeats({A: 2.0}, LATE_S) == []
    assert patience.update_heartbeats({A: 2.0}, 2 * LATE_S) == [A]
    assert patience.take_unreported([A]) == [A]


def test_the_wait_is_over_if_neither_heartbeat_nor_result_comes() -> None:
    patience = Patience(60.0)
    patience.record_result(0.0)
    patience.update_heartbeats({A: 1.0, B: 1.0}, 0.0)
    patience.update_heartbeats({A: 1.0, B: 2.0}, 59.0)

    assert not patience.is_over([A], 59.0)
    assert patience.is_over([A], 60.0)
    assert not patience.is_over([B], 60.0)
    assert not patience.is_over([], 60.0)
    # Other workers still deliver results.
    patience.record_result(50.0)
    assert not patience.is_over([A], 109.0)
    assert patience.is_over([A], 110.0)
