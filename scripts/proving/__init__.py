"""Run plans and advice on PyTorch, with pipelines whose stages sleep for given times."""
