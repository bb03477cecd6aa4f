"""How many questions a federation needs: its clients', and its own."""

import math

CONVICTIONS = 3
"""Convictions for which the federation's own key has questions, if the model bears them."""


def common_needed(clients: int, classes: int, *, false_accusation: float = 1e-6) -> int:
    """The number of common questions that convict once, if all are answered as they should be.

    It is the least k for which the e-value of docs/explanation/evidence.md, with the first look's share of the error,
    reaches (clients + 1) / bound.

    >>> common_needed(10, 10), common_needed(10, 2)
    (8, 27)
    """
    wanted = (max(clients, 10) + 1) / (0.7 / 4 * false_accusation)
    return math.ceil(math.log(wanted) / math.log(0.95 * max(classes, 2) + 0.05))


def common_in(left: int, clients: int, classes: int) -> int:
    """The number of common questions, if so many questions of the pool are left."""
    once = common_needed(clients, classes)
    return once * min(CONVICTIONS, left // once)


def questions_needed(clients: int, classes: int, *, false_accusation: float = 1e-6) -> int:
    """Enough questions that a quarter of the answers, matched, would convict one of `clients` at the bound.

    A match is worth at most a factor of `classes` in evidence, and clients · 1/bound of it is wanted.

    >>> questions_needed(10, 10), questions_needed(10, 2), questions_needed(100, 200)
    (32, 96, 16)
    """
    matches = math.ceil(math.log(max(clients, 10) / false_accusation) / math.log(max(classes, 2)))
    return max(16, 8 * math.ceil(4 * matches / 8))


def questions_at_least(clients: int, classes: int, *, false_accusation: float = 1e-6) -> int:
    """So few questions that a model in which 60 % of the marks survive is still convicted among `clients` at the bound.

    The other answers are right by chance, one in `classes`.

    >>> questions_at_least(10, 10), questions_at_least(10, 2), questions_at_least(100, 200)
    (16, 72, 12)
    """
    chance, survive = 1 / classes, 0.6
    count = 12
    while True:
        matches = range(math.ceil(count * (survive + (1 - survive) * chance)), count + 1)
        tail = sum(math.comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in matches)
        if max(clients, 10) * tail <= false_accusation:
            return count
        count += 4
