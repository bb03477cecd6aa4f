"""A real time-stamping authority on this machine: openssl behind a small HTTP server."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

CONFIG = """
[tsa]
default_tsa = tsa_config
[tsa_config]
serial = {0}/serial
signer_cert = {0}/tsa.pem
signer_key = {0}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
crypto_device = builtin
ess_cert_id_chain = no
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
[tsa_cert]
basicConstraints = CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


def openssl(folder: Path, *words: str) -> str:
    ended = subprocess.run(["openssl", *words], cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def certified(folder: Path) -> Path:
    """A folder with the keys and certificates of an authority, whose root is ca.pem."""
    folder.mkdir()
    (folder / "conf").write_text(CONFIG.format(folder))
    (folder / "serial").write_text("01\n")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-config", "conf")
    days = ("-days", "40000")
    openssl(folder, "req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=root", *days,
            "-extensions", "ca")  # fmt: skip
    openssl(folder, "req", *curve, "-keyout", "tsa.key", "-out", "tsa.csr", "-subj", "/CN=clock")
    openssl(folder, "x509", "-req", "-in", "tsa.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out",
            "tsa.pem", "-extfile", "conf", "-extensions", "tsa_cert", *days)  # fmt: skip
    return folder


@contextmanager
def authority_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """The address of a time-stamping authority, and its folder, which is made."""
    certified(folder)

    class Clock(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            (folder / "query").write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
            openssl(folder, "ts", "-reply", "-queryfile", "query", "-out", "reply", "-config", "conf")
            reply = (folder / "reply").read_bytes() if self.path == "/" else b"no"
            self.send_response(200 if self.path != "/busy" else 503)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *words: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Clock)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    thread.join()
    server.server_close()
