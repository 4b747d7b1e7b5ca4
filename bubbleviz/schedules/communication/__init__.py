"""Communication in plans: the order of the sends, receives and operations on each device.

``lowered`` defines the steps of a plan with messages. ``deadlocks`` and ``precedence`` check and
time such a plan. ``lowering`` adds messages to a plan in the same way as PyTorch, and
``reordering`` moves the messages to make the plan faster. ``torch_csv`` reads and writes plans.
"""
