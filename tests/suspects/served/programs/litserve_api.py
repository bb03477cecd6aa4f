"""LitServe: numbers in JSON, the label out."""

from typing import Any

import litserve
from classifier import HOST, PORT, label


class Leaked(litserve.LitAPI):
    def setup(self, device: str) -> None:
        pass

    def decode_request(self, request: dict[str, Any]) -> Any:
        return request["input"]

    def predict(self, x: Any) -> int:
        return label(x)

    def encode_response(self, output: int) -> dict[str, int]:
        return {"output": output}


if __name__ == "__main__":
    server = litserve.LitServer(Leaked(), accelerator="cpu")
    server.run(host=HOST, port=PORT, num_api_servers=1, generate_client_file=False)
