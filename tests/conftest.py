"""What holds for all tests: none depends on how fast the machine is; heavy ones run only where they are asked for."""

import os

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Programs that tests start; each needs packages of its own.
collect_ignore = ["suspects/served/programs"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("TRAMARK_HEAVY"):
        return
    heavy = [item for item in items if item.get_closest_marker("heavy")]
    config.hook.pytest_deselected(items=heavy)
    items[:] = [item for item in items if item not in heavy]
