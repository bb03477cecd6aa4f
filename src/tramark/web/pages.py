"""The desk's pages: which address shows what, and what its forms do."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from tramark import __version__
from tramark.errors import SettingError, TramarkError, VaultError
from tramark.evidence.case import Case
from tramark.evidence.published import utc
from tramark.report.page import PAGE, PUBLIC, STATEMENT, templates
from tramark.suspects.probe import QUERIES
from tramark.tracing.handover import make_statement
from tramark.web.desk import Desk
from tramark.web.forms import CHOICES, EDGES, NUMBERS, fields_of, order_in
from tramark.web.guard import TooLarge, too_large
from tramark.web.traces import Trace
from tramark.web.views import case_page, case_values, cases_of, vault_values

STATIC = {"report.css": ("report", "text/css"), "web.css": ("web/static", "text/css")}
STATIC |= {"web.js": ("web/static", "text/javascript"), "icon.svg": ("web/static", "image/svg+xml")}
DOWNLOADS = {PAGE: "text/html", PUBLIC: "text/html", STATEMENT: "application/json"}

FEEDING = (*CHOICES, *EDGES, *NUMBERS, "flat", "threshold", "labels", "model", "template", "headers")
"""Fields that say how a suspect is fed and read."""

_TEMPLATES = templates("web")


@dataclass(frozen=True)
class Pages:
    """The pages of a desk. `largest` is the largest upload, in bytes."""

    desk: Desk
    largest: int

    def app(self) -> Starlette:
        """The application, which `Guard` must stand before."""
        routes = [
            Route("/", self.new),
            Route("/unlock", self.unlock, methods=["POST"]),
            Route("/traces", self.lay, methods=["POST"]),
            Route("/traces/{label}", self.trace),
            Route("/traces/{label}/probe", self.probe, methods=["POST"]),
            Route("/traces/{label}/begin", self.begin, methods=["POST"]),
            Route("/traces/{label}/stop", self.stop, methods=["POST"]),
            Route("/traces/{label}/events", self.events),
            Route("/cases", self.cases),
            Route("/cases/{number:int}", self.case),
            Route("/cases/{number:int}/{name}", self.download),
            Route("/vault", self.vault),
            Route("/vault/audit", self.audit, methods=["POST"]),
            Route("/static/{name}", self.static),
        ]
        handlers: Mapping[Any, Any] = {
            TramarkError: self.problem,
            HTTPException: self.problem,
            TooLarge: self.problem,
            Exception: self.problem,
        }
        return Starlette(routes=routes, exception_handlers=handlers)

    async def new(self, request: Request) -> Response:
        """The form for a new trace; with ?case=N, filled with the conventions of an earlier one."""
        if self.desk.locked:
            return self._shown(request, "unlock")
        number, filled, earlier = request.query_params.get("case", ""), {}, None
        if number.isdecimal():
            earlier = await run_in_threadpool(self.desk.vault.cases.get, int(number))
            filled = fields_of(earlier.conventions) | {"url": earlier.suspect.name if earlier.suspect.remote else ""}
            filled |= {"case": number} if earlier.closed is None else {}
        return await run_in_threadpool(self._form, request, filled, earlier)

    async def unlock(self, request: Request) -> Response:
        """Opens the vault with the passphrase of the form, which is then forgotten."""
        form = await self._owned(request)
        try:
            await run_in_threadpool(self.desk.unlock, form.get("passphrase", ""))
        except VaultError as error:
            return self._shown(request, "unlock", status=422, problem=str(error))
        return RedirectResponse("/", 303)

    async def lay(self, request: Request) -> Response:
        """Puts a suspect on the desk."""
        async with request.form(max_files=1, max_fields=40) as form:
            given = {name: value for name, value in form.items() if isinstance(value, str)}
            self._check(request, given)
            upload = form.get("file")
            sent = upload if isinstance(upload, UploadFile) and upload.filename else None
            try:
                order = order_in(given)
                name, content = (sent.filename or "", sent.file) if sent else ("", None)
                label = await run_in_threadpool(self.desk.lay, order, name, content)
            except TramarkError as error:
                return await run_in_threadpool(self._form, request, given, None, str(error))
        return RedirectResponse(f"/traces/{label}", 303)

    def trace(self, request: Request) -> Response:
        """A suspect before, while and after it is asked."""
        one, vault = self._trace(request), self.desk.vault
        known = list(one.events)
        return self._shown(
            request,
            "trace",
            label=request.path_params["label"],
            state=one.state,
            suspect=one.suspected,
            preview=one.preview(self.desk.keyring),
            probed=one.probed,
            trouble=one.trouble,
            most=QUERIES,
            order=one.order,
            spent=vault.cases.spent,
            limit=vault.cases.limit,
            end=known[-1] if known and one.state in ("done", "failed") else None,
        )

    async def probe(self, request: Request) -> Response:
        """Asks a suspect public inputs, to find out how it is fed and read."""
        await self._owned(request)
        self._trace(request)
        await run_in_threadpool(self.desk.probe, request.path_params["label"])
        return RedirectResponse(f"/traces/{request.path_params['label']}#probe", 303)

    async def begin(self, request: Request) -> Response:
        """Starts to ask a suspect."""
        await self._owned(request)
        self._trace(request).begin(self.desk.vault)
        return RedirectResponse(f"/traces/{request.path_params['label']}", 303)

    async def stop(self, request: Request) -> Response:
        """Ends a trace; its case can go on later."""
        await self._owned(request)
        one = self._trace(request)
        one.stop()
        await run_in_threadpool(one.wait, 5)
        return RedirectResponse(f"/traces/{request.path_params['label']}", 303)

    def events(self, request: Request) -> Response:
        """What happens in a trace, as server-sent events, from the first or from the last that was seen."""
        one, seen = self._trace(request), request.headers.get("last-event-id", "")

        async def stream() -> AsyncIterator[str]:
            sent, quiet = int(seen) + 1 if seen.isdecimal() else 0, 0
            while not await request.is_disconnected():
                while sent < len(one.events):
                    event, quiet = one.events[sent], 0
                    yield f"id: {sent}\nevent: {event['event']}\ndata: {json.dumps(event)}\n\n"
                    sent += 1
                    if event["event"] in ("done", "failed"):
                        return
                await asyncio.sleep(0.05)
                quiet += 1
                if quiet % 200 == 0:
                    yield ": still asking\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    def cases(self, request: Request) -> Response:
        """All cases, and the error that they spend."""
        return self._shown(request, "cases", **cases_of(self.desk.vault))

    def case(self, request: Request) -> Response:
        """One case: the report, and what can be taken away."""
        case = self._case(request)
        if case.closed is None:
            return self._shown(request, "unfinished", unfinished=case, opened=utc(case.opened))
        values = case_values(self.desk.vault, self.desk.keyring, case)
        return self._shown(request, "case", remote=case.suspect.remote, **values)

    def download(self, request: Request) -> Response:
        """A case's report, its page for the outside, or its signed statement, as a file."""
        case, name, vault = self._case(request), request.path_params["name"], self.desk.vault
        if name not in DOWNLOADS:
            raise HTTPException(404)
        if name == STATEMENT:
            content = make_statement(vault, case).text()
        else:
            words = {one: request.query_params.get(one, "").strip()[:2000] for one in ("auditor", "notes")}
            page = case_page(vault, self.desk.keyring, case, outside=name == PUBLIC, **words)
            content = page.encode()
        attached = f"attachment; filename*=UTF-8''{quote(f'case-{case.number}-{name}')}"
        return Response(content, media_type=DOWNLOADS[name], headers={"Content-Disposition": attached})

    def vault(self, request: Request) -> Response:
        """What was issued to whom, survival per round, and the state of the audit."""
        values, (time, problems) = vault_values(self.desk.vault), self.desk.audited
        return self._shown(request, "vault", audited=utc(time), problems=problems, **values)

    async def audit(self, request: Request) -> Response:
        """Audits the vault again."""
        await self._owned(request)
        await run_in_threadpool(self.desk.audit)
        return RedirectResponse("/vault#audit", 303)

    def static(self, request: Request) -> Response:
        """A style sheet, the script, or the icon."""
        if (name := request.path_params["name"]) not in STATIC:
            raise HTTPException(404)
        folder, kind = STATIC[name]
        return Response((files("tramark") / folder / name).read_bytes(), media_type=kind)

    def problem(self, request: Request, error: Exception) -> Response:
        """What went wrong, as a page."""
        status, words = 422, str(error)
        if not isinstance(error, TramarkError | HTTPException | TooLarge):
            # What went wrong may hold a secret: its kind is all that is shown.
            status, words = 500, f"This is a bug in tramark: {type(error).__name__}. Please report it."
        elif isinstance(error, TooLarge):
            status, words = 413, too_large(self.largest)
        elif isinstance(error, HTTPException):
            status, words = error.status_code, "There is no such page, or it is gone since the desk was started."
        if self.desk.locked:
            return RedirectResponse("/", 303)
        return self._shown(request, "problem", status=status, words=words)

    def _form(self, request: Request, filled: Mapping[str, str], earlier: Case | None, problem: str = "") -> Response:
        vault, plain = self.desk.vault, self.desk.vault.sealed_keyring
        return self._shown(
            request,
            "new",
            status=422 if problem else 200,
            filled=filled,
            earlier=earlier,
            problem=problem,
            stated=any(filled.get(name) for name in FEEDING),
            label_answers=plain["assignment"] == "label",
            clients=len(plain["clients"]),
            largest=self.largest,
            too_large=too_large(self.largest),
            **(cases_of(vault)),
        )

    def _shown(self, request: Request, name: str, status: int = 200, **values: Any) -> Response:
        vault = None if self.desk.locked else self.desk.vault
        common = {
            "page": name,
            "form_token": request.scope.get("form_token", ""),
            "vault_id": vault.id[:8] if vault else "",
            "simulated": vault.simulated if vault else False,
            "version": __version__,
        }
        return HTMLResponse(_TEMPLATES.get_template(f"{name}.html.j2").render(common | values), status)

    def _trace(self, request: Request) -> Trace:
        found = self.desk.traces.get(request.path_params["label"])
        if found is None:
            raise HTTPException(404)
        return found

    def _case(self, request: Request) -> Case:
        return self.desk.vault.cases.get(request.path_params["number"])

    async def _owned(self, request: Request) -> dict[str, str]:
        """A small form's fields, if it comes from the desk's own pages."""
        async with request.form(max_files=0, max_fields=8) as form:
            given = {name: value for name, value in form.items() if isinstance(value, str)}
        self._check(request, given)
        return given

    def _check(self, request: Request, given: Mapping[str, str]) -> None:
        if not request.scope["guard"].owns(given.get("form_token", "")):
            raise SettingError("this form is not of the desk that runs now: go back, reload the page, and try again")
