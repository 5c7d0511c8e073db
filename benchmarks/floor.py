"""The memory traffic and arithmetic of a solve, counted from its shapes.

What evaluations one after the other can't avoid with batch norm in training and a state in fp32: a
norm must have seen the whole batch before any of it can be normalised, so its input is read once
for the statistics (or when it is made) and once more to be used. (A kernel that finished one
evaluation's cotangent while it undid the evaluation before would save passes over the state that
are counted here.) Passes over the state (256 channels, fp32) and over a
narrow product (64 channels, in f's dtype), per evaluation of the bottleneck:

==================================================  =====  ======
forward                                             state  narrow
==================================================  =====  ======
norm, ReLU, 1×1: read x; write h1                   1      1
norm, ReLU, 3×3: read h1; write h2                         2
norm, ReLU, 1×1, update: read h2, x; write x        2      1
backward
read g, h2; write the cotangent behind the ReLU     1      2
norm's backward, 3×3's: read it, h2 and h1; write          4
norm's backward: read h1, the cotangent; write             3
sums of the first norm: read x, the cotangent       1      1
the state's cotangent: read x, g; write g           3      1
==================================================  =====  ======

States and products that are kept cost nothing extra: they are written anyhow. A state that is
rebuilt costs a read and a write, and the products made again theirs. Coupled Euler mixes two
states in every other evaluation: half a pass more a turn, forward, rebuilding, and backward. Its
last evaluation moves a state that nobody reads, so that the statistics of its norms are all that is
needed of it: x read; h1 written and read, h2 written. Nor is the state that its first evaluation
moves needed from before it: three passes over states and one over h2 less.
"""

from problem import Case

#: Passes over the state and over narrow products, per evaluation.
PASSES = {
    "Backprop": (3 + 5, 4 + 11),
    # Second products are kept; x and h1 are rebuilt: h2 read, h1 written.
    "Checkpointed": (3 + 5 + 2, 4 + 11 + 2),
    # As above, and h2 made again: h1 read, h2 written.
    "Reversal": (3.5 + 5.5 + 2.5, 4 + 11 + 4),
}
#: The same for the one evaluation of which only statistics are wanted.
STATISTICS = (1, 3)
#: And for the rebuilding of the one state that nobody needs.
NOT_REBUILT = (3, 1)
#: Evaluations' worth of arithmetic: f, its two derivatives, and f again where it is.
WORK = {"Backprop": 3.0, "Checkpointed": 3 + 1 / 2, "Reversal": 4.0}


def traffic(case: Case, gradient: str, evaluations: int) -> int:
    """Bytes to and from memory."""
    pixels = case.batch * case.side**2
    state = pixels * case.width * (8 if case.state_dtype == "float64" else 4)
    narrow = pixels * case.hidden * {"bfloat16": 2, "float32": 4, "float64": 8}[case.dtype]
    wide, thin = PASSES[gradient]
    unread = gradient == "Reversal"
    whole = (evaluations - unread) * (wide * state + thin * narrow)
    ends = [a - b for a, b in zip(STATISTICS, NOT_REBUILT, strict=True)]
    return int(whole + unread * (ends[0] * state + ends[1] * narrow))


def operations(case: Case, gradient: str, evaluations: int) -> int:
    """Additions and multiplications in the convolutions."""
    product, middle = case.width * case.hidden, 9 * case.hidden**2
    unread = gradient == "Reversal"
    whole = (evaluations - unread) * WORK[gradient] * (2 * product + middle)
    return int(2 * case.batch * case.side**2 * (whole + unread * (product + middle)))
