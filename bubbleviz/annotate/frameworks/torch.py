"""Annotate PyTorch training steps without pipeline stages: FSDP, DDP or a single process.

All ranks are replicas of stage 0. Hooks of the model mark forwards. A wrapper around
``torch.autograd.backward``, which every tensor's ``backward()`` calls, marks backwards. The time
during which a forward or backward waits for other ranks is marked as a collective. With FSDP, such
a collective is a parameter gather or a gradient reduction. With DDP, it lasts from the last
gradient to the end of the backward.

Written for PyTorch 2.6 to 2.14, torch/autograd/__init__.py, torch/nn/modules/module.py and
torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bubbleviz.annotate import wrapping
from bubbleviz.annotate.frameworks.torch_pipelining import wrap_optimizers
from bubbleviz.annotate.ranges import Range, iteration, open_in_recorder, phase
from bubbleviz.annotate.wrapping import Annotations

#: Module of FSDP's parameter groups, and the group methods that wait on the CPU or on a stream.
_GROUPS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_WAITS = ("unshard", "wait_for_unshard", "post_backward", "finalize_backward")


def annotate(model: Any, record: wrapping.Folder = None) -> Annotations:
    """Annotate the forwards, backwards, optimizer steps and iterations of a training loop.

    An iteration starts with the first forward after an optimizer step. The forwards in an iteration
    are numbered as microbatches. Forwards without gradients do not get a range.

    Args:
        model: Model that the training loop calls, after DDP, ``fully_shard`` or ``torch.compile``
            has been applied.
        record: Folder in which to record the times of the ranges, or None to record nothing.

    Raises:
        AnnotationError: PyTorch differs from the expected version.
    """
    wrap_all = _Steps(model).wrap
    return wrapping.wrap_once("PyTorch", wrap_all, record, "2.6 to 2.14")


class _Steps:
    """The current iteration, its open ranges, and the number of operations per phase."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._iteration: Range | None = None
        self._forwards: list[Range | None] = []
        self._counts: Counter[str] = Counter()
        self._end_of_wait: Callable[[], None] | None = None

    def wrap(self, annotations: Annotations) -> None:
        """Register hooks on the model, and wrap backwards, optimizer steps and waits.

        If gradients are enabled, the hook before a forward opens a range F. The hook also starts an
        iteration if none is open. The iteration ends at the end of an optimizer step.

        FSDP waits are wrapped if FSDP's module is loaded. DDP waits are marked if the
        model is wrapped in DDP.
        """
        torch = annotations.import_module("torch")
        is_training = annotations.get_attribute(torch, "is_grad_enabled")

        def begin(*_: object) -> None:
            if annotations.active and is_training() and self._iteration is None:
                self._counts.clear()
                self._iteration = iteration().__enter__()
            self._forwards.append(self._make_range("F").__enter__() if is_training() else None)

        def end(*_: object) -> None:
            if self._forwards and (forward := self._forwards.pop()) is not None:
                forward.__exit__()

        hooks = (
            self._model.register_forward_pre_hook(begin, prepend=True),
            self._model.register_forward_hook(end, always_call=True),
        )
        for hook in hooks:
            annotations.append_undo(hook.remove)
        autograd = annotations.get_attribute(torch, "autograd")
        annotations.wrap(autograd, "backward", lambda _args, _kwargs: self._run_backward())
        wrap_optimizers(annotations, lambda _: self._end_iteration())
        group = getattr(sys.modules.get(_GROUPS), "FSDPParamGroup", None)
        for method in _WAITS if group is not None else ():
            annotations.wrap(group, method, wrapping.make_range_factory(phase, "COLLECTIVE"))
        if hasattr(self._model, "reducer"):  # DDP
            annotations.append_undo(self._add_gradient_hook(torch))

    def _make_range(self, name: str) -> Range:
        """Return a range for the next operation of a phase.

        The microbatch is the number of earlier operations of the phase in the iteration.
        """
        number = self._counts[name]
        self._counts[name] += 1
        return phase(name, microbatch=number, stage=0)

    @contextmanager
    def _run_backward(self) -> Iterator[None]:
        """Run a backward inside a range, and close the collective that the gradient hook opened."""
        with self._make_range("BW"):
            yield
            if self._end_of_wait is not None:
                self._end_of_wait()
                self._end_of_wait = None

    def _add_gradient_hook(self, torch: Any) -> Callable[[], None]:
        """Add a hook that opens a collective when the last gradient of a backward is computed.

        The collective is closed at the end of the backward. The collective is only written to
        recording files, not to NVTX or PyTorch's profiler.

        Returns:
            Function that removes the hook.
        """

        def begin(_gradients: object) -> None:
            self._end_of_wait = open_in_recorder(phase("COLLECTIVE").name)

        parameters = [
            parameter for parameter in self._model.parameters() if parameter.requires_grad
        ]
        remove: Callable[[], None] = torch.autograd.graph.register_multi_grad_hook(
            parameters, begin
        ).remove
        return remove

    def _end_iteration(self) -> None:
        if self._iteration is not None:
            self._iteration.__exit__()
            self._iteration = None
