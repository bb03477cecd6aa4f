"""aiohttp: 202 and the number of a job now, the label when it is done."""

import asyncio

from aiohttp import web
from classifier import HOST, PORT, label

jobs: list[asyncio.Task[int]] = []


async def work(x: list[list[list[float]]]) -> int:
    await asyncio.sleep(0.05)
    return label(x)


async def begin(request: web.Request) -> web.Response:
    jobs.append(asyncio.create_task(work((await request.json())["x"])))
    return web.json_response({"job": len(jobs) - 1}, status=202)


async def look(request: web.Request) -> web.Response:
    job = jobs[int(request.match_info["job"])]
    return web.json_response({"status": "done", "label": job.result()} if job.done() else {"status": "running"})


app = web.Application()
app.add_routes([web.post("/jobs", begin), web.get("/jobs/{job}", look)])
web.run_app(app, host=HOST, port=PORT, print=None)
