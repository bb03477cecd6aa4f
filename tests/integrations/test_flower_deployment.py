"""Flower's deployment engine, with TLS and SuperNode authentication: parts of it are killed, and nothing is lost."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from demo import LINK, Deployment
from deployments import finished, issued, named
from tramark.vault.store import Vault

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("flwr") is None, reason="not installed: flwr")]

SITES = ("site-0", "site-1", "site-2")
LIVE, LOST = SITES[:2], SITES[2]
NAMELESS = "site-3"
"""A node whose key is registered without a name."""
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "samples-per-client": 120,
    "local-epochs": 2,
    "warmup-rounds": 3,
    "fraction-evaluate": 0.0,
}


@dataclass(frozen=True)
class Story:
    """What was seen of a federation in which first a node and then the SuperLink was killed."""

    without_the_lost: dict[str, tuple[str, ...]]
    rounds_without_the_lost: int
    rounds_at_the_crash: int
    said_after_the_crash: str
    in_the_end: dict[str, tuple[str, ...]]
    kept: set[str]
    vault: Path
    left_running: set[int]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    out = tmp_path_factory.mktemp("deployment")
    vault = out / "vault"
    settings = SETTINGS | {"vault": str(vault)}
    with Deployment(out, sites=len(SITES) + 1, nameless=[NAMELESS]) as deployment:
        deployment.start()

        def traced(sites: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
            return {site: named(vault, deployment.kept / f"{site}.safetensors") for site in sites}

        def sent(rounds: int) -> bool:
            return any(after == rounds for after, _ in issued(vault))

        run = deployment.begin(settings | {"num-server-rounds": 5})
        deployment.wait(lambda: sent(3), LINK, "does not send the models of round 4", 900)
        deployment.kill(LOST)
        deployment.finish(run)
        without_the_lost, rounds_without_the_lost = traced(LIVE), finished(vault)

        deployment.start_node(LOST)
        deployment.wait_for_nodes(LOST)
        run = deployment.begin(settings | {"num-server-rounds": 8})
        deployment.wait(lambda: sent(6), LINK, "does not send the models of round 7", 900)
        deployment.kill(LINK)
        deployment.kill(run)
        rounds_at_the_crash = finished(vault)
        for file in deployment.kept.iterdir():
            file.unlink()

        deployment.start_link()
        deployment.wait_for_nodes(*SITES)
        run = deployment.begin(settings | {"num-server-rounds": 8})
        deployment.finish(run)
        said, in_the_end = deployment.log(run), traced(SITES)
        kept = {file.stem for file in deployment.kept.iterdir()}
    return Story(
        without_the_lost=without_the_lost,
        rounds_without_the_lost=rounds_without_the_lost,
        rounds_at_the_crash=rounds_at_the_crash,
        said_after_the_crash=said,
        in_the_end=in_the_end,
        kept=kept,
        vault=vault,
        left_running=deployment.running(),
    )


def test_training_goes_on_without_a_killed_node(story: Story) -> None:
    assert story.rounds_without_the_lost == 5
    assert story.without_the_lost == {site: (site,) for site in LIVE}
    assert {client for after, client in issued(story.vault) if after == 4} == set(LIVE)


def test_a_killed_server_goes_on_after_the_last_finished_round(story: Story) -> None:
    assert story.rounds_at_the_crash == 6
    assert "going on with round 7" in story.said_after_the_crash
    assert finished(story.vault) == 8
    assert sorted({after for after, _ in issued(story.vault)}) == list(range(8))


def test_every_node_is_traced_in_the_end(story: Story) -> None:
    assert story.in_the_end == {site: (site,) for site in SITES}


def test_a_node_that_comes_back_with_its_key_is_who_it_was(story: Story) -> None:
    with Vault.open(story.vault, readonly=True) as vault:
        assert sorted(vault.keyring.clients) == list(SITES)
        assert sorted(vault.keyring.active) == list(SITES)
        assert vault.audit() == []
    assert {after for after, client in issued(story.vault) if client == LOST} == {0, 1, 2, 3, 5, 6, 7}


def test_a_node_that_was_registered_without_a_name_gets_no_model(story: Story) -> None:
    assert story.kept == set(SITES)
    assert {client for _, client in issued(story.vault)} == set(SITES)
    assert "no model goes to nodes that were registered without a name (1 here)" in story.said_after_the_crash


def test_nothing_is_left_running(story: Story) -> None:
    assert story.left_running == set()
