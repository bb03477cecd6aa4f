"""The federation's own key: questions that the models of all clients answer alike, and the unmarked base does not.

Its answers are drawn like a client's and tested like those of one more client. So it shares the error with the
clients: with n of them there are n + 1 tests. It says that a model comes from the federation where no client can be
named, for example because many clients averaged their models.
"""

FEDERATION = "(federation)"
"""The name that the federation's own key has where clients have theirs. No client can have it."""


def tests(clients: int, common: object) -> int:
    """The number of tests that share the error: one for each client, and one if there are common questions.

    >>> tests(10, ()), tests(10, (3, 7))
    (10, 11)
    """
    return clients + bool(common)
