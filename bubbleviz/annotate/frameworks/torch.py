"""Training steps of PyTorch without stages, of FSDP, DDP or one process.

All ranks are copies of stage 0. The module's own hooks name forwards, and what every ``backward()``
calls names backwards, the loss's among them. When a rank waits for others inside these, a
collective is named: where FSDP gathers parameters or reduces gradients, and in DDP from the last
gradient on.

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
from bubbleviz.annotate.ranges import Range, iteration, phase, recorded_from_now
from bubbleviz.annotate.wrapping import Annotations

#: Where FSDP's groups of parameters are, and which of their methods wait on a CPU or a stream.
_GROUPS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_WAITS = ("unshard", "wait_for_unshard", "post_backward", "finalize_backward")


def annotate(model: Any, record: wrapping.Folder = None) -> Annotations:
    """Name the forwards, backwards, optimizer steps and iterations of a training loop.

    An iteration begins with the first forward after an optimizer step. Forwards without gradients
    are left out, and those that follow each other are counted as microbatches.

    Args:
        model: the module that the loop calls, after DDP, ``fully_shard`` or ``torch.compile``.
        record: folder to which their times are recorded; None for none.

    Raises:
        AnnotationError: PyTorch is not as expected.
    """
    wrap_all = _Steps(model).wrap
    return wrapping.once("PyTorch", wrap_all, record, "2.6 to 2.14")


class _Steps:
    """The iteration that runs, and how many operations of each phase it has had."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._iteration: Range | None = None
        self._forwards: list[Range | None] = []
        self._counts: Counter[str] = Counter()
        self._end_of_wait: Callable[[], None] | None = None

    def wrap(self, annotations: Annotations) -> None:
        torch = annotations.module("torch")
        is_training = annotations.attribute(torch, "is_grad_enabled")

        def begin(*_: object) -> None:
            if annotations.active and is_training() and self._iteration is None:
                self._counts.clear()
                self._iteration = iteration().__enter__()
            self._forwards.append(self._next("F").__enter__() if is_training() else None)

        def end(*_: object) -> None:
            if self._forwards and (forward := self._forwards.pop()) is not None:
                forward.__exit__()

        hooks = (
            self._model.register_forward_pre_hook(begin, prepend=True),
            self._model.register_forward_hook(end, always_call=True),
        )
        for hook in hooks:
            annotations.when_removed(hook.remove)
        autograd = annotations.attribute(torch, "autograd")
        annotations.wrap(autograd, "backward", lambda _args, _kwargs: self._backward())
        wrap_optimizers(annotations, lambda _: self._end())
        group = getattr(sys.modules.get(_GROUPS), "FSDPParamGroup", None)
        for method in _WAITS if group is not None else ():
            annotations.wrap(group, method, wrapping.always(phase, "COLLECTIVE"))
        if hasattr(self._model, "reducer"):  # DDP
            annotations.when_removed(self._wait_for_gradients(torch))

    def _next(self, name: str) -> Range:
        number = self._counts[name]
        self._counts[name] += 1
        return phase(name, microbatch=number, stage=0)

    @contextmanager
    def _backward(self) -> Iterator[None]:
        with self._next("BW"):
            yield
            if self._end_of_wait is not None:
                self._end_of_wait()
                self._end_of_wait = None

    def _wait_for_gradients(self, torch: Any) -> Callable[[], None]:
        """Have the wait for other ranks begin when a backward has its last gradient."""

        def begin(_gradients: object) -> None:
            self._end_of_wait = recorded_from_now(phase("COLLECTIVE").name)

        parameters = [own for own in self._model.parameters() if own.requires_grad]
        remove: Callable[[], None] = torch.autograd.graph.register_multi_grad_hook(
            parameters, begin
        ).remove
        return remove

    def _end(self) -> None:
        if self._iteration is not None:
            self._iteration.__exit__()
            self._iteration = None
