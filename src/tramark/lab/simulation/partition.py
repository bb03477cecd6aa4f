"""How a training set is split among clients: evenly, or by a Dirichlet distribution over each label, where
a small γ gives each client few of the labels. A split is one tensor of indices a client; no sample is in
two of them. `stratified` and `capped` split as the paper's authors' code does."""

import numpy as np
import torch
from torch import Tensor

from tramark.errors import SettingError

# A draw takes well under a millisecond; a split that a thousand of them miss is as good as impossible.
DRAWS = 1000


def iid(
    labels: Tensor,
    clients: int,
    *,
    generator: torch.Generator,
    samples_per_client: int | None = None,
    stratified: bool = False,
) -> list[Tensor]:
    """Equal shares of a random order, at most `samples_per_client` each.

    With `stratified`, the samples of each label are dealt out one by one, so that all have as many of it, give or take
    one.

    >>> shares = iid(torch.zeros(10), 3, generator=torch.Generator().manual_seed(0))
    >>> [len(share) for share in shares]
    [4, 3, 3]
    """
    chosen = _choose(labels, clients, generator, samples_per_client)
    if not stratified:
        return list(chosen.tensor_split(clients))
    dealt = chosen[labels[chosen].argsort(stable=True)]
    shares = (dealt[first::clients] for first in range(clients))
    return [share[torch.randperm(len(share), generator=generator)] for share in shares]


def dirichlet(
    labels: Tensor,
    clients: int,
    *,
    gamma: float,
    generator: torch.Generator,
    samples_per_client: int | None = None,
    minimum: int = 10,
    capped: bool = False,
) -> list[Tensor]:
    """Shares of each label drawn from Dirichlet(γ, …, γ), redrawn until every client has the minimum.

    `samples_per_client` caps the average share: so many for each client are drawn first, and then split. With `capped`,
    a client that has its n-th part of all samples gets nothing of the labels that are still to be shared out.

    >>> labels = torch.arange(1000) % 10
    >>> shares = dirichlet(labels, 5, gamma=0.5, generator=torch.Generator().manual_seed(0))
    >>> sum(len(share) for share in shares)
    1000
    """
    if gamma <= 0:
        raise SettingError(f"gamma is {gamma}; it must be positive (0.5 is far from even, 100 nearly even)")
    chosen = _choose(labels, clients, generator, samples_per_client)
    if len(chosen) < clients * minimum:
        raise SettingError(
            f"{len(chosen)} samples cannot give {clients} clients at least {minimum} each; "
            "ask for fewer clients or a smaller minimum"
        )
    groups = [chosen[labels[chosen] == label] for label in torch.unique(labels[chosen])]
    # torch has no Dirichlet draw that takes a generator; numpy's is seeded from it.
    random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    for _ in range(DRAWS):
        shares = random.dirichlet([gamma] * clients, size=len(groups))
        split = [chosen[:0]] * clients
        for share, group in zip(shares, groups, strict=True):
            if capped:
                share = share * [len(own) < len(chosen) / clients for own in split]
                share = share / share.sum()
            parts = group.tensor_split((np.cumsum(share)[:-1] * len(group)).astype(int).tolist())
            split = [torch.cat(own) for own in zip(split, parts, strict=True)]
        if min(len(own) for own in split) >= minimum:
            return split
    raise SettingError(
        f"in {DRAWS} draws, no Dirichlet split with gamma {gamma} gave each of {clients} clients "
        f"{minimum} of {len(chosen)} samples; ask for a larger gamma, fewer clients or a smaller minimum"
    )


def _choose(labels: Tensor, clients: int, generator: torch.Generator, samples_per_client: int | None) -> Tensor:
    """The indices to be split, in random order."""
    if clients < 1:
        raise SettingError(f"clients is {clients}; there must be at least one")
    if samples_per_client is not None and samples_per_client < 1:
        raise SettingError(f"samples_per_client is {samples_per_client}; it must be at least 1")
    if clients > len(labels):
        raise SettingError(f"{clients} clients cannot share {len(labels)} samples; each needs at least one")
    order = torch.randperm(len(labels), generator=generator)
    return order if samples_per_client is None else order[: clients * samples_per_client]
