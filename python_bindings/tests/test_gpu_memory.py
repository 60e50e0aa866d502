"""The check of a GPU's memory, on figures that are made up: it finds leaks, and other processes do not disturb it."""

import pytest

pytest.importorskip("torch")
from gpu_memory import ROUNDS, grows


class Card:
    """Memory in use: by a step that leaks `leak` bytes, and by others, who hold `others[i]` at the i-th reading."""

    def __init__(self, leak=0, others=()):
        self.own, self.leak, self.others, self.reading = 1000, leak, others, 0

    def step(self):
        self.own += self.leak

    def used(self):
        at = min(self.reading, len(self.others) - 1)
        self.reading += 1
        return self.own + (self.others[at] if self.others else 0)

    def grows(self, alone):
        return grows(self.step, self.used, alone=alone, pause=0)


@pytest.mark.parametrize("alone", [True, False])
def test_alone_on_the_card(alone):
    assert not Card().grows(alone)
    assert Card(leak=1).grows(alone)


def test_beside_others():
    starting = list(range(0, 5000, 100))
    assert not Card(others=starting).grows(alone=False)
    assert Card(leak=1, others=starting).grows(alone=False)
    assert Card(leak=1, others=[0, 5] * ROUNDS).grows(alone=False)


def test_one_round_decides_where_nobody_else_counts():
    card = Card()
    assert not card.grows(alone=True)
    assert card.reading == 2
