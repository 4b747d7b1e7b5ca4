"""Linking: kernel to launching call to operation range, by these rules and in this order.

1. A kernel's launching call has its correlation id and its process.
2. The call belongs to the innermost range, of those that a convention names, around it on its
   own thread (a start/end range that another thread ends covers the whole process).
3. A call with no such range on its own thread belongs to the innermost backward range open at
   its start on another thread: PyTorch runs backward on a thread of its own.

Nothing else is linked, and what is not linked is counted. Calls come in blocks and are not kept.
"""
