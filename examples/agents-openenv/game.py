"""The game "guess": a number from 1 to 3, two guesses, and a hint."""

import random

NUMBERS, GUESSES = 3, 2


class Game:
    """One game; the seed selects the number."""

    def __init__(self, seed):
        self.secret, self.guesses = random.Random(seed).randint(1, NUMBERS), 0

    def guess(self, number):
        """(hint, reward, whether the game is over)."""
        self.guesses += 1
        if number == self.secret:
            return "right", 1.0, True
        return "higher" if number < self.secret else "lower", 0.0, self.guesses == GUESSES
