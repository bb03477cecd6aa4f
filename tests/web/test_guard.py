"""Only the browser with the token, on this machine, from the desk's own pages, can use the desk."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tramark.web.guard import Guard


def test_the_token_becomes_a_cookie_that_no_script_and_no_other_site_has(guard: Guard, stranger: TestClient) -> None:
    welcome = stranger.get(f"/?token={guard.token}")
    assert (welcome.status_code, welcome.headers["location"]) == (303, "/")
    cookie = welcome.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert guard.token not in cookie
    assert "Who leaked it?" in stranger.get("/").text


@pytest.mark.parametrize("path", ["/", "/?token=", "/?token=wrong", "/cases", "/vault", "/cases/1/statement.json"])
def test_nobody_else_is_let_in(stranger: TestClient, path: str) -> None:
    refused = stranger.get(path)
    assert refused.status_code == 403
    assert "mayo" not in refused.text
    assert "set-cookie" not in refused.headers
    assert stranger.get(path, cookies={"tramark-8000": "guessed"}).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1", "127.0.0.1:8001", ""])
def test_another_name_does_not_lead_to_the_desk(auditor: TestClient, host: str) -> None:
    assert auditor.get("/", headers={"host": host}).status_code == 421
    assert auditor.get("/static/web.js", headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8001"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_other_pages_give_no_orders(guard: Guard, auditor: TestClient, headers: dict[str, str]) -> None:
    refused = auditor.post("/vault/audit", data={"form_token": guard.form_token}, headers=headers)
    assert refused.status_code == 403


@pytest.mark.parametrize("path", ["/vault/audit", "/unlock", "/traces"])
def test_a_form_without_its_token_does_nothing(auditor: TestClient, path: str) -> None:
    for given in ({}, {"form_token": "guessed"}):
        refused = auditor.post(path, data=given)
        assert refused.status_code == 422
        assert "not of the desk that runs now" in refused.text


def test_bodies_are_limited_whether_or_not_they_say_how_long_they_are(guard: Guard, auditor: TestClient) -> None:
    large = b"x" * (guard.largest + (2 << 20))
    refused = auditor.post("/traces", files={"file": ("a.onnx", large)}, data={"form_token": guard.form_token})
    assert refused.status_code == 413

    def chunks() -> Iterator[bytes]:
        yield b"--b\r\nContent-Disposition: form-data; name=file; filename=a.onnx\r\n\r\n"
        for start in range(0, len(large), 1 << 16):
            yield large[start : start + (1 << 16)]

    headers = {"content-type": "multipart/form-data; boundary=b"}
    refused = auditor.post("/traces", content=chunks(), headers=headers)
    assert refused.status_code == 413
    assert "Up to 1 MiB are taken here" in refused.text
    # Other forms are small.
    assert auditor.post("/vault/audit", content=b"x" * (1 << 20) + b"x").status_code == 413


@pytest.mark.parametrize("path", ["/", "/cases", "/vault", "/nothing", "/static/web.js", "/static/../guard.py"])
def test_every_response_forbids_what_comes_from_elsewhere(auditor: TestClient, path: str) -> None:
    headers = auditor.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
