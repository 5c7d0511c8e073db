"""Moving digits one at a time in plain Python, written from the laws' description.

The draws are those of the package's documentation, made here with Python's whole numbers.
"""

import hashlib
import math

import numpy as np

WORD = 2**64


def splitmix(start, number):
    """Output ``number`` of SplitMix64 (Steele, Lea, Flood 2014) begun at ``start``."""
    z = (start + (number + 1) * 0x9E3779B97F4A7C15) % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


class Draws:
    """The draws of one digit of one sequence."""

    def __init__(self, seed, name, sequence, digit):
        key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        self.start = splitmix(splitmix(int.from_bytes(key, "big"), sequence), digit)

    def word(self, number):
        return splitmix(self.start, number)

    def between(self, number, low, high):
        """Uniform on low..high."""
        return low + (self.word(number) // 2**32) * (high - low + 1) // 2**32


def stochastic_path(draws, images, length):
    """The digit, and (y, x) in each frame."""
    which = draws.between(0, 0, images - 1)
    x, y = draws.between(1, 0, 31), draws.between(2, 0, 31)
    dx, dy = draws.between(3, -4, 4), draws.between(4, -4, 4)
    corners = []
    for t in range(length):
        number = 5 + 4 * (t - 1)
        if y < 0:
            y = 0
            dy, dx = draws.between(number, 1, 4), draws.between(number + 1, -4, 4)
        elif y >= 32:
            y = 31
            dy, dx = -draws.between(number, 1, 4), draws.between(number + 1, -4, 4)
        if x < 0:
            x = 0
            dx, dy = draws.between(number + 2, 1, 4), draws.between(number + 3, -4, 4)
        elif x >= 32:
            x = 31
            dx, dy = -draws.between(number + 2, 1, 4), draws.between(number + 3, -4, 4)
        corners.append((y, x))
        y, x = y + dy, x + dx
    return which, corners


def deterministic_path(draws, images, length):
    """As above, in floating point."""
    which = draws.between(0, 0, images - 1)
    x, y = draws.word(1) / WORD, draws.word(2) / WORD
    angle = 2 * math.pi * (draws.word(3) // 2**48) / 2**16
    vx, vy = math.cos(angle), math.sin(angle)
    corners = []
    for _ in range(length):
        x, y = x + 0.1 * vx, y + 0.1 * vy
        if x <= 0:
            x, vx = 0.0, -vx
        if x >= 1:
            x, vx = 1.0, -vx
        if y <= 0:
            y, vy = 0.0, -vy
        if y >= 1:
            y, vy = 1.0, -vy
        corners.append((int(36 * y), int(36 * x)))
    return which, corners


def stochastic_frames(paths, images):
    """Digits of 32 pixels that add, clipped at 1; ``paths`` is one (which, corners) a digit."""
    frames = np.zeros((len(paths[0][1]), 64, 64))
    for which, corners in paths:
        for t, (y, x) in enumerate(corners):
            frames[t, y : y + 32, x : x + 32] += images[which] / 255
    return np.minimum(frames, 1)


def deterministic_frames(paths, images):
    """Digits of 28 pixels of which the brighter is seen."""
    frames = np.zeros((len(paths[0][1]), 64, 64))
    for which, corners in paths:
        for t, (y, x) in enumerate(corners):
            part = frames[t, y : y + 28, x : x + 28]
            frames[t, y : y + 28, x : x + 28] = np.maximum(part, images[which] / 255)
    return frames
