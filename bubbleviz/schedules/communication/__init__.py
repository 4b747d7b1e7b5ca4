"""Communication of plans: what each device sends and receives, in which place of its order.

``lowered`` holds what a line does, finds deadlocks and times lines; ``lowering`` gives a plan its
transfers, where PyTorch has them or where that is faster; ``torch_csv`` reads and writes both.
"""
