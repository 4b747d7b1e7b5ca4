"""Ranks that step through the lines of a lowered plan, as plainly as it can be: the reference."""

from __future__ import annotations

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.communication.lowered import (
    LoweredPlan,
    Message,
    Step,
    Transfer,
    Transport,
)
from bubbleviz.schedules.plan import PlannedOperation


class SteppingRanks:
    """Each rank does what it can, again and again, until no rank can do anything."""

    def __init__(self, lowered: LoweredPlan, transport: Transport) -> None:
        self.lowered, self.transport = lowered, transport
        self.placement = lowered.plan.placement
        self.at = [0 for _ in lowered.lines]
        self.begun = [0 for _ in lowered.lines]  # operations of the step, or 1 once it started
        self.computed: set[PlannedOperation] = set()
        self.started: list[list[tuple[Transfer, ...]]] = [[] for _ in lowered.lines]
        self.complete: set[Transfer] = set()

    def end(self) -> bool:
        """Step until nothing moves; return whether all ranks reach the end of their lines."""
        while any(self._step(rank) for rank in range(len(self.at))) or self._move():
            pass
        return all(
            at == len(line) for at, line in zip(self.at, self.lowered.lines, strict=True)
        ) and all(
            transfer in self.complete
            for groups in self.started
            for group in groups
            for transfer in group
        )

    def _step(self, rank: int) -> bool:
        line = self.lowered.lines[rank]
        if self.at[rank] == len(line):
            return False
        step = line[self.at[rank]]
        moved = False
        while self.begun[rank] < len(step.operations):
            operation = step.operations[self.begun[rank]]
            if not self._has_inputs(rank, operation):
                return moved
            self.computed.add(operation)
            self.begun[rank] += 1
            moved = True
        if step.transfers and not self.begun[rank]:
            if not all(self._made(t.message) for t in step.transfers if t.sends):
                return moved
            self.started[rank].append(step.transfers)
            self.begun[rank] = 1
            moved = True
        if not self._released(step):
            return moved
        self.at[rank] += 1
        self.begun[rank] = 0
        return True

    def _released(self, step: Step) -> bool:
        awaited = step.transfers if self.transport.blocking else step.awaited
        return all(transfer in self.complete for transfer in awaited)

    def _made(self, message: Message) -> bool:
        phases = (Phase.F,) if message.phase is Phase.F else (Phase.B, Phase.BW)
        return any(
            PlannedOperation(message.virtual_stage, phase, message.microbatch) in self.computed
            for phase in phases
        )

    def _has_inputs(self, rank: int, operation: PlannedOperation) -> bool:
        stage, phase, mb = operation.virtual_stage, operation.phase, operation.microbatch
        if phase is Phase.W:
            return PlannedOperation(stage, Phase.B, mb) in self.computed
        if phase is not Phase.F and PlannedOperation(stage, Phase.F, mb) not in self.computed:
            return False
        source = stage - 1 if phase is Phase.F else stage + 1
        if not 0 <= source < len(self.placement):
            return True
        message = Message(source, Phase.F if phase is Phase.F else Phase.B, mb)
        if self.placement[source] == rank:
            return self._made(message)
        return Transfer(message, sends=False) in self.complete

    def _move(self) -> bool:
        """Complete what can be; return whether anything was."""
        moved = False
        for rank, groups in enumerate(self.started):
            for transfer in (t for group in groups for t in group if t not in self.complete):
                if self._can_complete(rank, transfer):
                    self.complete.add(transfer)
                    if self.transport.rendezvous:
                        self.complete.add(Transfer(transfer.message, not transfer.sends))
                    moved = True
        return moved

    def _can_complete(self, rank: int, transfer: Transfer) -> bool:
        peer = self.lowered.peer(transfer)
        other = Transfer(transfer.message, not transfer.sends)
        if not self._at_head(rank, peer, transfer):
            return False
        if transfer.sends and not self.transport.rendezvous:
            return True
        if not any(other in group for group in self.started[peer]):
            return False
        return not self.transport.rendezvous or self._at_head(peer, rank, other)

    def _at_head(self, rank: int, peer: int, transfer: Transfer) -> bool:
        """Return whether all that the rank started before is complete, in the same queue."""
        for group in self.started[rank]:
            if transfer in group:
                return True
            for ahead in group:
                same = self.lowered.peer(ahead) == peer
                same &= self.transport.streams or ahead.sends == transfer.sends
                if same and ahead not in self.complete:
                    return False
        return False
