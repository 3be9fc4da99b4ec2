"""Serves an exported policy over HTTP with TensorFlow and Python's standard library alone, in the REST form of TensorFlow Serving.

Run from the repository root, after `export runs/demo --out runs/demo/policies`:
.venv/bin/python -m examples.serve_http runs/demo/policies
then: curl localhost:8501/v1/models/doppler:predict -d @request.json
with {"signature_name": "place", "inputs": {"exec_s": [[1, 2], [2, 1]], "edges": [[0, 1]], ...}}; NaN and Infinity are numbers here.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import tensorflow as tf


def handler(model, version: str) -> type[BaseHTTPRequestHandler]:
    """Answers for one model, version and all."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, {"model_version_status": [{"version": version, "state": "AVAILABLE"}]})

        def do_POST(self) -> None:
            try:
                request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                signature = model.signatures[request.get("signature_name", "serving_default")]
                specs = signature.structured_input_signature[1]
                if missing := sorted(set(specs) - set(request["inputs"])):
                    raise ValueError(f"inputs: expected {missing[0]}, got none")
                inputs = {name: tf.constant(request["inputs"][name], spec.dtype, name=name) for name, spec in specs.items()}
                outputs = {name: value.numpy().tolist() for name, value in signature(**inputs).items()}
            except (ValueError, TypeError, KeyError, tf.errors.InvalidArgumentError) as error:
                self.answer(400, {"error": str(error)})
            else:
                self.answer(200, {"outputs": outputs})

        def answer(self, status: int, content: dict) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def main(folder: str, port: str = "8501") -> None:  # port 0: any that is free
    newest = max((path for path in Path(folder).iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    server = ThreadingHTTPServer(("localhost", int(port)), handler(tf.saved_model.load(str(newest)), newest.name))
    print(f"serving {newest} at http://localhost:{server.server_port}/v1/models/doppler", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
