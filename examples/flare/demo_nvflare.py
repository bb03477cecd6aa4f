"""A federation on NVIDIA FLARE, from nothing to a named leaker, all on this machine.

    python examples/flare/demo_nvflare.py --out runs/demo-nvflare

It provisions a project with certificates, starts its server and four sites, trains the job beside this file on them,
takes the model that one of the sites trained, and traces it with the vault that the server filled. Everything is
stopped in the end, whatever happens.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

sys.path.insert(0, str(Path(__file__).parents[1]))

from deployments import BIN, HOST, Processes, finished, free_ports, listens, main, say, trace_all
from job import make_job
from tramark.lab.data import load

SERVER, ADMIN = "server", "admin@example.com"


class Deployment(Processes):
    """A FLARE server and sites named site-0, site-1, …, each in processes of its own, with certificates.

    with Deployment(Path("out"), sites=4) as deployment:
        deployment.start()
        deployment.finish(deployment.begin("digits", rounds=6, warmup_rounds=4))

    What a site last trained is in `kept`, logs are in `logs`, and FLARE's own files in `home`.
    """

    def __init__(self, out: Path, *, sites: int) -> None:
        out = out.absolute()
        self.home, logs, self.kept, self.vault = (out / name for name in ("flare", "logs", "kept", "vault"))
        for folder in (self.home, logs, self.kept):
            folder.mkdir(parents=True)
        self.sites = [f"site-{number}" for number in range(sites)]
        (self.port,) = free_ports(1)
        path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(self.home)}
        super().__init__(logs, at=self.home, environment=path, last=SERVER)
        self._session: Session | None = None
        (self.home / "project.yml").write_text(json.dumps(_project(self.sites, self.port)))
        words = [str(BIN / "nvflare"), "provision", "-p", "project.yml", "-w", "provisioned"]
        subprocess.run(words, cwd=self.home, env=self._environment, capture_output=True, check=True)
        self._kits = self.home / "provisioned" / "demo" / "prod_00"
        _keep_here(self._kits / SERVER, self.home / "storage")

    def start(self) -> None:
        """Start the server and all sites, and wait until they have shown their certificates."""
        self.start_server()
        for site in self.sites:
            self.start_site(site)
        self.wait_for_sites(*self.sites)

    def start_server(self) -> None:
        """Start the server; with what it knew, if it ran before."""
        self._log_out()
        self._run(SERVER, "server.server_train", "fed_server.json", "uid=server")
        self.wait(lambda: listens(self.port), SERVER, "does not listen")

    def start_site(self, site: str) -> None:
        """Start a site; after a crash it comes back with the same certificate."""
        self._run(site, "client.client_train", "fed_client.json", f"uid={site}")

    def wait_for_sites(self, *sites: str) -> None:
        """Wait until the server sees these sites."""

        def registered() -> bool:
            return {client.name for client in self.session.get_system_info().client_info} >= set(sites)

        self.wait(registered, SERVER, f"does not see {', '.join(sites)}")

    def begin(self, data: str, *, rounds: int, warmup_rounds: int, train_args: str = "") -> str:
        """Begin to train; gives the number of the job."""
        job = make_job(
            load(data),
            sites=len(self.sites),
            rounds=rounds,
            warmup_rounds=warmup_rounds,
            vault=self.vault,
            keep=self.kept,
            train_args=train_args,
        )
        job.export_job(str(self.home / "jobs"))
        return str(self.session.submit_job(str(self.home / "jobs" / job.name)))

    def finish(self, job: str, *, seconds: float = 1800) -> None:
        """Wait until a job has ended well."""
        said = [""]

        def ended() -> bool:
            said[0] = str(self.session.get_job_meta(job).get("status"))
            return said[0].startswith("FINISHED")

        self.wait(ended, SERVER, f"does not end job {job}", seconds)
        if said[0] != "FINISHED:COMPLETED":
            raise RuntimeError(f"job {job} is {said[0]}:\n{self.log(SERVER)[-3000:]}")

    @property
    def session(self) -> Session:
        """The operator's session with the server; a new one after a restart."""
        if self._session is None:
            self._session = new_secure_session(ADMIN, str(self._kits / ADMIN), timeout=60)
        return self._session

    def stop(self) -> None:
        self._log_out()
        super().stop()

    def _log_out(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def _run(self, name: str, module: str, config: str, *settings: str) -> None:
        words = ["-m", str(self._kits / name), "-s", config, "--set", "secure_train=true", "config_folder=config"]
        self._start(name, "python", "-u", "-m", f"nvflare.private.fed.app.{module}", *words, "org=demo", *settings)


def _project(sites: list[str], port: int) -> dict[str, Any]:
    """What `nvflare provision` is told; JSON is YAML."""
    server = {"name": SERVER, "type": "server", "org": "demo", "fed_learn_port": port, "admin_port": port}
    builders = ("workspace.WorkspaceBuilder", "static_file.StaticFileBuilder", "cert.CertBuilder")
    return {
        "api_version": 3,
        "name": "demo",
        "description": "sites whose models can be traced",
        "participants": [
            {**server, "default_host": HOST},
            *({"name": site, "type": "client", "org": "demo"} for site in sites),
            {"name": ADMIN, "type": "admin", "org": "demo", "role": "project_admin"},
        ],
        "builders": [{"path": f"nvflare.lighter.impl.{name}"} for name in builders],
    }


def _keep_here(kit: Path, storage: Path) -> None:
    """Let the server listen on this machine alone, keep its files in a folder, and miss a dead site after 30 s."""
    file = kit / "startup" / "fed_server.json"
    config = json.loads(file.read_text())
    service = config["servers"][0]["service"]
    service["target"] = f"{HOST}:{service['target'].rpartition(':')[2]}"
    file.write_text(json.dumps(config))
    local = json.loads((kit / "local" / "resources.json.default").read_text().replace("/tmp/nvflare", str(storage)))
    local["servers"][0]["heart_beat_timeout"] = 30
    (kit / "local" / "resources.json").write_text(json.dumps(local))


def demo(out: Path, rounds: int, leaker: str) -> dict[str, Any]:
    """Train, leak, trace; gives the summary."""
    # Here, and not by four sites at once, for it may have to be fetched.
    data = load("auto").name
    with Deployment(out, sites=4) as deployment:
        say("a server and four sites start, with certificates of one authority")
        deployment.start()
        say(f"{', '.join(deployment.sites)} are registered; they train on {data} for {rounds} rounds")
        deployment.finish(deployment.begin(data, rounds=rounds, warmup_rounds=rounds - 2))
    done = finished(deployment.vault)
    say(f"{done} rounds are done and everything is stopped; a model turns up, and nobody says whose it is")
    kept = {site: deployment.kept / f"{site}.safetensors" for site in deployment.sites}
    return {"data": data, "rounds": done, **trace_all(out, deployment.vault, kept, leaker)}


if __name__ == "__main__":
    main(__doc__, Path("runs/demo-nvflare"), demo)
