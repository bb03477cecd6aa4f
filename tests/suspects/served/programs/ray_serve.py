"""Ray Serve: a deployment that takes numbers in JSON and returns the label."""

import ray
from classifier import HOST, PORT, label
from ray import serve
from starlette.requests import Request


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Leaked:
    async def __call__(self, request: Request) -> dict[str, int]:
        return {"label": label((await request.json())["x"])}


ray.init(address="local", num_cpus=2, include_dashboard=False)
serve.start(http_options={"host": HOST, "port": PORT})
serve.run(Leaked.bind(), route_prefix="/predict", blocking=True)
