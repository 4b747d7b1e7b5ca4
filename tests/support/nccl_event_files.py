"""Writes event files in the formats of NCCL's profilers.

Times are nanoseconds on a true clock. The clocks of each process and each GPU are offset from the
true clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


def format_line(
    name: str,
    category: str,
    phase: str,
    number: int,
    pid: int,
    ns: int | None,
    arguments: str | None = None,
) -> str:
    """Return one event in the format of ``print_event.cc``. A time of None is printed as 0."""
    arguments_text = "" if arguments is None else f', "args": {{{arguments}}}'
    time = 0.0 if ns is None else ns / 1000
    return (
        f'{{"name": "{name}", "cat": "{category}", "ph": "{phase}", "id": {number}, '
        f'"pid": {pid}, "tid": 1, "ts": {time:f}{arguments_text}}},\n'
    )


@dataclass(frozen=True)
class Step:
    """One step of a network transfer: its consecutive states, and the times between them."""

    states: tuple[str, ...]
    bounds: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """A communication operation of one rank, on the true clock."""

    name: str
    start: int
    end: int | None
    rank: int = 0
    count: int = 1 << 20
    sequence: int = 0
    peer: int | None = None
    communicator: int = 0xFEEDFACECAFEBEEF
    algorithm: str = "RING"
    protocol: str = "SIMPLE"
    channels: int = 2
    steps: tuple[Step, ...] = ()


@dataclass
class Plugin:
    """Builder of an event file of NCCL's profiler plugin.

    Attributes:
        begin: Start of the profiler on the true clock.
        gpu: Offset of the GPU's clock from the true clock.
        lag: For each channel, the delay in ns until the host sees that a kernel has begun.
        valid: Whether pointers and data types are quoted, as in NCCL 2.28 and later.
        gpu_clock: Whether kernel events contain GPU clock times (since version 4 of the interface).
    """

    pid: int = 100
    begin: int = 0
    gpu: int = 1_700_000_000_000_000_000
    lag: tuple[int, ...] = (900, 300)
    valid: bool = True
    gpu_clock: bool = True
    lines: list[str] = field(default_factory=lambda: ["[\n"])
    number: int = 0
    step: int = 0

    def add(self, op: Op) -> None:
        """Write one operation in a separate group."""
        pid, number = self.pid, self.number
        self.number += 1
        enqueued_ns = op.start - self.begin - 5_000
        kind = "COLL" if op.peer is None else "P2P"
        quote = '"' if self.valid else ""
        call = f'"count": {op.count}, "datatype": {quote}ncclFloat32{quote}, '
        call += '"root": 0, ' if op.peer is None else ""
        call += f'"GraphCaptured": 0, "Stream": {quote}0x5020{quote}'
        arguments = f'"CommHash": {op.communicator}, "Rank": {op.rank}, '
        if op.peer is None:
            arguments = f'"SeqNum": {op.sequence}, {arguments}"Count": {op.count}, '
            arguments += f'"Datatype": "ncclFloat32", "Algorithm": "{op.algorithm}", '
            arguments += f'"Protocol": "{op.protocol}", "nChannels": {op.channels}'
        else:
            arguments += f'"Peer": {op.peer}, "Count": {op.count}, "Datatype": "ncclFloat32", '
            arguments += f'"nChannels": {op.channels}'
        group = '"groupApiId": 0, "groupDepth": 1'
        self._write_line("Group API", "GROUP_API", "b", number, enqueued_ns, group)
        self._write_line(op.name, f"{kind}_API", "b", number, None, call)
        self._write_line(op.name, kind, "b", number, enqueued_ns + 1_000, arguments)
        for channel in range(op.channels):
            self._write_channel(op, channel)
        self._write_line(op.name, kind, "e", number, enqueued_ns + 3_000)
        self._write_line(op.name, f"{kind}_API", "e", number, enqueued_ns + 4_000)
        self._write_line("Group API", "GROUP_API", "e", number, enqueued_ns + 4_500)
        assert pid == self.pid

    def _write_channel(self, op: Op, channel: int) -> None:
        """Write the kernel events of an operation on one channel.

        Channel 0 also contains its transfers.
        """
        seen_ns = op.start - self.begin + self.lag[channel % len(self.lag)]
        clock = ""
        if self.gpu_clock:
            stop = 0 if op.end is None else op.end + self.gpu - 100 * channel
            clock = f', "StartGpuClk": {op.start + self.gpu + 10 * channel}, "StopGpuClk": {stop}'
        self._write_line("KernelCh", "GPU", "b", 0, seen_ns, f'"Channel": {channel}{clock}')
        for step in op.steps if channel == 0 else ():
            self._write_proxy(step)
        end_ns = None if op.end is None else op.end - self.begin + 700
        self._write_line("KernelCh", "GPU", "e", 0, end_ns)

    def _write_proxy(self, step_: Step) -> None:
        """Write one step of a network transfer, with its states."""
        first, last = step_.bounds[0] - self.begin, step_.bounds[-1] - self.begin
        name = "ProgressSend" if step_.states[0].startswith("Send") else "ProgressRecv"
        arguments = '"Channel": 0, "Peer": 1, "Steps": 1, "ChunkSize": 1, "transSize": 1'
        self._write_line(name, "PROXY", "b", self.step, first, arguments)
        for state, begin_ns, end in zip(step_.states, step_.bounds, step_.bounds[1:], strict=False):
            self._write_line(state, "NET", "b", self.step, begin_ns - self.begin, '"Step": 0')
            self._write_line(state, "NET", "e", self.step, end - self.begin)
        self._write_line(name, "PROXY", "e", self.step, last)
        self.step += 1

    def _write_line(
        self,
        name: str,
        cat: str,
        phase: str,
        number: int,
        ns: int | None,
        arguments: str | None = None,
    ) -> None:
        self.lines.append(format_line(name, cat, phase, number, self.pid, ns, arguments))

    def text(self, *, closed: bool = True) -> str:
        return "".join(self.lines) + ("{}]\n" if closed else "")


def make_proxy_file(transfers: Sequence[tuple[str, int, int, tuple[int, ...]]]) -> str:
    """Return a file in the format of the old proxy profiler.

    Args:
        transfers: (direction, peer, number of operations, bounds of the states in ns) of each
            transfer.
    """
    states = {
        "Send": ("BufferWait", "GPUWait", "SendWait"),
        "Recv": ("BufferWait", "RecvWait", "FlushWait", "GPUWait"),
    }
    lines = ["[\n"]
    for number, (direction, peer, count, bounds) in enumerate(transfers):
        name = f"{direction}-{peer}-0"
        arguments = f' "opCount": {count}, "proxyOpIndex":3 '
        lines.append(format_line(name, "NET", "b", number, 0, bounds[0], arguments))
        for state, begin_ns, end in zip(states[direction], bounds, bounds[1:], strict=False):
            lines.append(format_line(state, "NET", "b", number, 0, begin_ns))
            lines.append(format_line(state, "NET", "e", number, 0, end))
        lines.append(format_line(name, "NET", "e", number, 0, bounds[-1]))
    number = len(transfers)
    lines.append(format_line("Sleep", "NET", "b", number, -1, 5))
    lines.append(format_line("Sleep", "NET", "e", number, -1, 6))
    return "".join(lines) + "{} ]\n"
