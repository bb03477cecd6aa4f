"""What the tests of the desk share: a vault with a leaked model, and a desk on which it is traced."""

from collections.abc import Iterator

import pytest
from desks import Scene, scene
from starlette.testclient import TestClient

from tramark.web.guard import Guard
from tramark.web.pages import Pages

LARGEST = 1 << 20


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="session")
def guard(made: Scene) -> Iterator[Guard]:
    """A desk with its guard, as at port 8000."""
    desk = made.desk()
    yield Guard(Pages(desk, LARGEST).app(), port=8000, largest=LARGEST)
    desk.close()


@pytest.fixture
def stranger(guard: Guard) -> TestClient:
    """Somebody who does not know the token."""
    return TestClient(guard, base_url="http://127.0.0.1:8000", follow_redirects=False)


@pytest.fixture
def auditor(guard: Guard) -> TestClient:
    """Somebody who opened the address that was printed."""
    known = TestClient(guard, base_url="http://127.0.0.1:8000")
    assert known.get(f"/?token={guard.token}").status_code == 200
    return known
