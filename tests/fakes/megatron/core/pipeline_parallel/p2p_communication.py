"""Transfers between stages, which do nothing in this fake."""

from __future__ import annotations


class P2PCommunicator:
    def recv_forward(self, tensor_shapes: object, is_first_stage: bool) -> object:
        return None if is_first_stage else tensor_shapes

    def recv_backward(self, tensor_shapes: object, is_last_stage: bool) -> object:
        return None if is_last_stage else tensor_shapes

    def send_forward(self, output_tensors: object, is_last_stage: bool) -> None:
        pass

    def send_backward(self, input_tensor_grads: object, is_first_stage: bool) -> None:
        pass

    def send_backward_recv_forward(self, input_tensor_grads: object, is_first_stage: bool) -> None:
        pass

    def send_forward_recv_forward(
        self, output_tensor: object, recv_prev: bool, overlap_p2p_comm: bool = False
    ) -> None:
        pass

    def send_forward_recv_backward(self, output_tensors: object, is_last_stage: bool) -> object:
        return None if is_last_stage else output_tensors
