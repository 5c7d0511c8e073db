"""What moving weights are for, in two minutes on a CPU.

``python -m nanode.demo`` trains four models on digits, ``python -m nanode.demo crossing`` shows
what constant weights can't learn.
"""
