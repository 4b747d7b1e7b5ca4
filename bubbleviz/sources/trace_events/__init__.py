"""Trace events: the JSON that PyTorch's profiler, JAX and TensorBoard write.

It is Chrome's Trace Event Format (Google, 2016): ``file`` reads a document as blocks of ``events``,
``damaged`` those that are not valid JSON, and ``columns`` makes arrays of them.
"""
