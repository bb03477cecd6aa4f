"""A provisioned FLARE federation, with certificates: parts of it are killed, and nothing is lost."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("nvflare") is None:
    pytest.skip("NVIDIA FLARE is not installed: pip install tramark[nvflare]", allow_module_level=True)

from demo_nvflare import SERVER, Deployment
from deployments import finished, issued, named
from tramark.vault.store import Vault

pytestmark = pytest.mark.slow

SITES = ("site-0", "site-1", "site-2")
LIVE, LOST = SITES[:2], SITES[2]
SETTINGS: dict[str, Any] = {"warmup_rounds": 2, "train_args": "--samples 120 --epochs 2"}


@dataclass(frozen=True)
class Story:
    """What was seen of a federation in which first a site and then the server was killed."""

    without_the_lost: dict[str, tuple[str, ...]]
    rounds_without_the_lost: int
    rounds_at_the_crash: int
    said: str
    in_the_end: dict[str, tuple[str, ...]]
    vault: Path
    left_running: set[int]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    with Deployment(tmp_path_factory.mktemp("deployment"), sites=len(SITES)) as deployment:
        vault = deployment.vault
        deployment.start()

        def traced(sites: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
            return {site: named(vault, deployment.kept / f"{site}.safetensors") for site in sites}

        def sent(rounds: int) -> bool:
            return {client for after, client in issued(vault) if after == rounds} >= set(SITES)

        job = deployment.begin("digits", rounds=4, **SETTINGS)
        deployment.wait(lambda: sent(2), SERVER, "does not send the models of round 3", 900)
        deployment.kill(LOST)
        deployment.finish(job)
        without_the_lost, rounds_without_the_lost = traced(LIVE), finished(vault)

        deployment.start_site(LOST)
        deployment.wait_for_sites(*SITES)
        deployment.begin("digits", rounds=7, **SETTINGS)
        deployment.wait(lambda: sent(5), SERVER, "does not send the models of round 6", 900)
        deployment.kill(SERVER)
        rounds_at_the_crash = finished(vault)
        for file in deployment.kept.iterdir():
            file.unlink()

        deployment.start_server()
        deployment.wait_for_sites(*SITES)
        deployment.finish(deployment.begin("digits", rounds=7, **SETTINGS))
        said, in_the_end = deployment.log(SERVER), traced(SITES)
    return Story(
        without_the_lost=without_the_lost,
        rounds_without_the_lost=rounds_without_the_lost,
        rounds_at_the_crash=rounds_at_the_crash,
        said=said,
        in_the_end=in_the_end,
        vault=vault,
        left_running=deployment.running(),
    )


def test_training_goes_on_without_a_killed_site(story: Story) -> None:
    assert story.rounds_without_the_lost == 4
    assert story.without_the_lost == {site: (site,) for site in LIVE}
    assert {client for after, client in issued(story.vault) if after == 3} == set(LIVE)


def test_a_killed_server_goes_on_after_the_last_finished_round(story: Story) -> None:
    assert story.rounds_at_the_crash == 5
    assert "the vault holds 5 finished rounds: going on with the next" in story.said
    assert finished(story.vault) == 7
    assert sorted({after for after, _ in issued(story.vault)}) == list(range(7))


def test_every_site_is_traced_in_the_end(story: Story) -> None:
    assert story.in_the_end == {site: (site,) for site in SITES}


def test_names_are_those_of_the_certificates(story: Story) -> None:
    with Vault.open(story.vault, readonly=True) as vault:
        assert sorted(vault.keyring.clients) == list(SITES)
        assert sorted(vault.keyring.active) == list(SITES)
        assert vault.audit() == []
    assert "does not check certificates" not in story.said


def test_nothing_is_left_running(story: Story) -> None:
    assert story.left_running == set()
