"""A suspect is traced on the desk from the upload to the signed statement, and nothing is given away."""

import json
import re
from pathlib import Path

import pytest
from desks import CLIENTS, Scene
from starlette.testclient import TestClient

from tramark.evidence.verify import verify_statement
from tramark.vault.store import Vault
from tramark.web.guard import Guard
from tramark.web.pages import Pages


def laid(auditor: TestClient, guard: Guard, file: Path, **fields: str) -> str:
    """The address of a suspect that was put on the desk."""
    with file.open("rb") as content:
        there = auditor.post(
            "/traces", files={"file": (file.name, content)}, data={"form_token": guard.form_token, **fields}
        )
    assert there.status_code == 200, there.text
    return there.url.path


def events(auditor: TestClient, path: str) -> list[dict[str, object]]:
    """All that happens in a trace, until it ends."""
    text = auditor.get(f"{path}/events").text
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def test_from_upload_to_statement(auditor: TestClient, guard: Guard, made: Scene) -> None:
    path = laid(auditor, guard, made.leaked)
    ready = auditor.get(path).text
    assert "leaked model.safetensors" in ready
    assert "as the federation’s own models are" in ready
    assert ready.count("as the suspect sees it") == 8
    assert "It answers as a model does that is fed and read rightly." in ready
    auditor.post(f"{path}/begin", data={"form_token": guard.form_token})
    seen = events(auditor, path)
    assert [one["event"] for one in seen][:2] == ["begin", "step"], seen
    assert seen[0]["clients"] == list(CLIENTS)
    assert (seen[-1]["event"], seen[-1]["accused"]) == ("done", ["mayo"])
    assert "This model carries the mark of mayo." in auditor.get(path).text
    number = int(str(seen[-1]["case"]))
    page = auditor.get(f"/cases/{number}").text
    assert "This model carries the mark of mayo." in page
    assert "<svg" in page
    statement = auditor.get(f"/cases/{number}/statement.json")
    assert statement.headers["content-disposition"].startswith("attachment")
    assert verify_statement(statement.content).clients == ("mayo",)
    report = auditor.get(f"/cases/{number}/report.html", params={"auditor": "Ada", "notes": "<b>seen</b>"}).text
    assert ">Ada<" in report
    assert "&lt;b&gt;seen&lt;/b&gt;" in report
    outside = auditor.get(f"/cases/{number}/public.html").text
    assert set(re.findall("|".join(CLIENTS), outside)) == {"mayo"}
    assert "mayo" in auditor.get("/cases").text
    again = auditor.get("/", params={"case": str(number)}).text
    assert "Trace it again." in again
    assert 'name="case" value=""' in again


def test_a_wrong_file_is_refused_with_the_reason(auditor: TestClient, guard: Guard, tmp_path: Path) -> None:
    wrong = tmp_path / "holiday.jpg"
    wrong.write_bytes(b"\xff\xd8")
    with wrong.open("rb") as content:
        refused = auditor.post(
            "/traces",
            files={"file": (wrong.name, content)},
            data={"form_token": guard.form_token, "size": "16, 16"},
        )
    assert refused.status_code == 422
    assert "no kind of file" in refused.text
    assert 'value="16, 16"' in refused.text
    for fields in ({}, {"url": "file:///etc/passwd"}, {"url": "gopher://x"}):
        assert auditor.post("/traces", data={"form_token": guard.form_token, **fields}).status_code == 422


def test_conventions_change_what_the_suspect_sees(auditor: TestClient, guard: Guard, made: Scene) -> None:
    page = auditor.get(laid(auditor, guard, made.leaked, value_range="0, 255", size="16, 16")).text
    assert "of shape (1, 16, 16), from 0 to 255" in page
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)" alt="Question 1 as', page)
    assert len(set(pictures)) == 2
    assert "16 × 16" in page


def test_a_case_that_was_stopped_goes_on(auditor: TestClient, guard: Guard, made: Scene) -> None:
    token = {"form_token": guard.form_token}
    path = laid(auditor, guard, made.innocent)
    label = path.rpartition("/")[2]
    pages = guard.app.routes[0].endpoint.__self__  # type: ignore[attr-defined]
    assert isinstance(pages, Pages)
    pages.desk.traces[label].stop()
    auditor.post(f"{path}/begin", data=token)
    ended = events(auditor, path)[-1]
    assert ended["event"] == "failed"
    page = auditor.get(f"/cases/{ended['case']}").text
    assert "This trace was interrupted." in page
    form = auditor.get("/", params={"case": str(ended["case"])}).text
    assert f'name="case" value="{ended["case"]}"' in form
    path = laid(auditor, guard, made.innocent, case=str(ended["case"]))
    auditor.post(f"{path}/begin", data=token)
    seen = events(auditor, path)
    assert (seen[-1]["event"], seen[-1]["case"]) == ("done", ended["case"])
    assert [one["query"] for one in seen if one["event"] == "step"] == list(range(1, len(seen) - 1))


def test_the_vaults_page_says_what_was_issued_and_what_survives(auditor: TestClient, guard: Guard) -> None:
    page = auditor.post("/vault/audit", data={"form_token": guard.form_token}).text
    assert "The vault is as it was written." in page
    for client in CLIENTS:
        assert f'<th scope="row">{client}</th><td class="n">10</td><td class="n">9</td>' in page
    assert "99 %" in page
    assert "Survival by round: 99% on average" in page


def test_no_page_has_a_secret(auditor: TestClient, made: Scene) -> None:
    with Vault.open(made.vault, readonly=True) as vault:
        secret = vault.keyring.secret.hex()
    for path in ("/", "/cases", "/cases/1", "/vault"):
        page = auditor.get(path)
        assert secret not in page.text
    assert auditor.get("/cases/999").status_code == 422
    assert auditor.get("/traces/nothing").status_code == 404


def test_the_passphrase_is_asked_for_once(made: Scene) -> None:
    from tramark.errors import NoKey, WrongKey
    from tramark.web.desk import Desk, Openers

    def opened(passphrase: str | None) -> Vault:
        if passphrase is None:
            raise NoKey("the vault needs its passphrase")
        if passphrase != "open sesame":
            raise WrongKey("this passphrase does not open the vault")
        return Vault.open(made.vault, readonly=True)

    desk = Desk(Openers(vault=opened, prepare=lambda vault: None, model=lambda *given: None))
    guard = Guard(Pages(desk, 1 << 20).app(), port=8000, largest=1 << 20)
    auditor = TestClient(guard, base_url="http://127.0.0.1:8000")
    page = auditor.get(f"/?token={guard.token}").text
    assert "Unlock the vault." in page
    assert "mayo" not in auditor.get("/vault").text
    wrong = auditor.post("/unlock", data={"form_token": guard.form_token, "passphrase": "sesame"})
    assert "does not open the vault" in wrong.text
    right = auditor.post("/unlock", data={"form_token": guard.form_token, "passphrase": "open sesame"})
    assert "Who leaked it?" in right.text
    assert "open sesame" not in repr(vars(desk))
    desk.close()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "..", ".bashrc", "a/b\\c.onnx", "", "x" * 400 + ".onnx", "\x00\n"]
)
def test_an_uploads_name_leads_nowhere(name: str) -> None:
    from tramark.web.desk import _safe

    safe = _safe(name)
    assert Path(safe).name == safe
    assert safe not in ("", ".", "..")
    assert len(safe) <= 120
