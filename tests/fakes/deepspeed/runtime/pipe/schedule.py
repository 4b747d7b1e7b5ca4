"""Fakes of the instructions of a pipeline schedule."""

from __future__ import annotations


class Instruction:
    pass


class ForwardPass(Instruction):
    pass


class BackwardPass(Instruction):
    pass


class SendActivation(Instruction):
    pass


class RecvActivation(Instruction):
    pass


class SendGrad(Instruction):
    pass


class RecvGrad(Instruction):
    pass


class ReduceGrads(Instruction):
    pass


class ReduceTiedGrads(Instruction):
    pass


class OptimizerStep(Instruction):
    pass


class CommitP2P(Instruction):
    pass
