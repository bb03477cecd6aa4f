"""Splits among clients: disjoint, complete, repeatable, as uneven as asked for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tramark.lab.simulation.partition import dirichlet, iid


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unevenness(labels: Tensor, split: list[Tensor]) -> float:
    """The mean share of a client's most frequent label."""
    return sum(float(labels[own].bincount().max()) / len(own) for own in split) / len(split)


@given(st.integers(1, 12), st.integers(12, 90), st.none() | st.integers(1, 9), st.integers(0, 99))
def test_iid_shares_are_disjoint_and_even(
    clients: int, samples: int, samples_per_client: int | None, seed: int
) -> None:
    split = iid(torch.zeros(samples), clients, generator=seeded(seed), samples_per_client=samples_per_client)
    sizes = [len(own) for own in split]
    total = samples if samples_per_client is None else min(samples, clients * samples_per_client)
    together = torch.cat(split)
    assert len(sizes) == clients
    assert max(sizes) - min(sizes) <= 1
    assert len(together) == len(together.unique()) == total
    assert 0 <= int(together.min()) <= int(together.max()) < samples


@given(st.integers(1, 8), st.sampled_from([0.3, 1.0, 50.0]), st.none() | st.integers(30, 60), st.integers(0, 99))
def test_dirichlet_shares_are_disjoint_and_have_the_minimum(
    clients: int, gamma: float, samples_per_client: int | None, seed: int
) -> None:
    labels = torch.arange(600) % 5
    split = dirichlet(
        labels,
        clients,
        gamma=gamma,
        generator=seeded(seed),
        samples_per_client=samples_per_client,
        minimum=5,
    )
    together = torch.cat(split)
    assert len(split) == clients
    assert min(len(own) for own in split) >= 5
    assert len(together) == (600 if samples_per_client is None else min(600, clients * samples_per_client))
    assert len(together) == len(together.unique())


def test_small_gamma_is_uneven_and_large_gamma_nearly_even() -> None:
    labels = torch.arange(10_000) % 10
    shares = [
        unevenness(labels, dirichlet(labels, 10, gamma=gamma, generator=seeded(0))) for gamma in (0.1, 1.0, 1000.0)
    ]
    assert shares[0] > 0.5 > shares[1] > 0.2 > shares[2] > 0.1


def test_the_generator_decides() -> None:
    labels = torch.arange(500) % 5

    def split(seed: int) -> list[Tensor]:
        return dirichlet(labels, 4, gamma=0.5, generator=seeded(seed))

    assert all(torch.equal(a, b) for a, b in zip(split(3), split(3), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(split(3), split(4), strict=True))


def test_impossible_splits_are_refused() -> None:
    labels = torch.arange(50)
    generator = seeded(0)
    with pytest.raises(ValueError, match="51 clients cannot share 50 samples"):
        iid(labels, 51, generator=generator)
    with pytest.raises(ValueError, match="at least one"):
        iid(labels, 0, generator=generator)
    with pytest.raises(ValueError, match="samples_per_client is 0"):
        iid(labels, 5, generator=generator, samples_per_client=0)
    with pytest.raises(ValueError, match="gamma is 0"):
        dirichlet(labels, 5, gamma=0, generator=generator)
    with pytest.raises(ValueError, match="cannot give 6 clients at least 10 each"):
        dirichlet(labels, 6, gamma=1, generator=generator)
    with pytest.raises(ValueError, match="ask for a larger gamma"):
        # Four labels that are hardly ever split cannot reach five clients.
        dirichlet(labels % 4, 5, gamma=0.001, generator=generator)


def test_a_stratified_split_gives_everybody_as_many_of_each_label() -> None:
    labels = torch.randint(5, (1003,), generator=torch.Generator().manual_seed(0))
    shares = iid(labels, 4, generator=torch.Generator().manual_seed(1), stratified=True)
    assert sorted(torch.cat(shares).tolist()) == list(range(1003))
    for label in range(5):
        counts = [int((labels[share] == label).sum()) for share in shares]
        assert max(counts) - min(counts) <= 1


def test_a_capped_dirichlet_split_gives_nobody_much_more_than_its_part() -> None:
    labels = torch.arange(5000) % 10
    shares = dirichlet(labels, 5, gamma=0.5, generator=torch.Generator().manual_seed(0), capped=True)
    assert sorted(torch.cat(shares).tolist()) == list(range(5000))
    # Whoever has a fifth gets no further label: at most one label beyond it.
    assert max(len(share) for share in shares) < 1000 + 500
    free = dirichlet(labels, 5, gamma=0.5, generator=torch.Generator().manual_seed(0))
    assert max(len(share) for share in free) > max(len(share) for share in shares)
