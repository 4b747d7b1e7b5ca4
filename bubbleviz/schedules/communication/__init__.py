"""Communication of plans: what each device sends and receives, in which place of its order.

A plan is lowered (``lowering``), its lines are checked for deadlocks (``deadlock``), timed
(``timing``), and its transfers are moved where that is faster (``reordering``). PyTorch's file of
it is in ``torch_csv``.
"""
