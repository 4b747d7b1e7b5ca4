"""Communication of plans: the order of sends, receives and operations on each device.

``lowered`` describes the steps of a plan with messages, ``deadlocks`` and ``precedence`` check and
time it, ``lowering`` adds messages as PyTorch does, ``reordering`` moves them to run faster, and
``torch_csv`` reads and writes plans.
"""
