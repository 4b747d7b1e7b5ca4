"""Find the causes of the ranks' idle time.

The causes are listed in ``cause.py``. ``idle_ranks.py`` splits the idle time of ranks by cause, and
``forward_waits.py`` splits it further for inference runs. ``cause_times.py`` sums the times of each
cause in each window, and ``bubbles.py`` lists the pieces as a table.
"""
