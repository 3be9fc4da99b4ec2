"""Serves an exported policy over HTTP in TensorFlow Serving's REST format, using only TensorFlow, NumPy and the standard library.

Run from the repository root, after `export runs/demo --out runs/demo/policies`:
.venv/bin/python -m examples.serve_http runs/demo/policies
then: curl localhost:8501/v1/models/doppler:predict -d @request.json
with {"signature_name": "place", "inputs": {"exec_s": [[1, 2], [2, 1]], "edges": [[0, 1]], ...}}. NaN and Infinity are valid numbers.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import tensorflow as tf

MODEL, MOST_BYTES = "/v1/models/doppler", 1 << 30


def predict(model, request) -> dict:
    """The model's answer to a request. Raises ValueError or InvalidArgumentError."""
    if not isinstance(request, dict) or not isinstance(request.get("inputs"), dict):
        raise ValueError("expected an object with an object named inputs, got something else")
    asked, inputs = request.get("signature_name", "serving_default"), request["inputs"]
    if asked not in model.signatures:
        raise ValueError(f"signature_name: expected one of {', '.join(model.signatures)}, got {asked!r}")
    specs = model.signatures[asked].structured_input_signature[1]
    for name in sorted(specs.keys() ^ inputs.keys()):
        raise ValueError(f"inputs: expected {name}, got none" if name in specs else f"inputs: expected no {name}, got one")
    outputs = model.signatures[asked](**{name: tensor(name, inputs[name], spec) for name, spec in specs.items()})
    return {name: value.numpy().decode() if value.dtype == tf.string else value.numpy().tolist() for name, value in outputs.items()}


def tensor(name: str, value, spec: tf.TensorSpec) -> tf.Tensor:
    """A tensor of the model's type from a JSON value. Range is checked because TensorFlow silently wraps large integers."""
    try:
        array = np.array(value)
    except ValueError:
        raise ValueError(f"{name}: expected rows of equal length, got others") from None
    if array.size == 0 and spec.shape.rank:
        array = np.zeros([size or 0 for size in spec.shape], spec.dtype.as_numpy_dtype)
    if array.ndim != spec.shape.rank or array.dtype.kind not in ("i" if spec.dtype.is_integer else "if"):
        raise ValueError(f"{name}: expected {spec.dtype.name} {list(spec.shape)}, got {array.dtype} {list(array.shape)}")
    if spec.dtype.is_integer and array.size and not spec.dtype.min <= array.min() <= array.max() <= spec.dtype.max:
        raise ValueError(f"{name}: expected integers of 32 bits, got {array.min()} to {array.max()}")
    return tf.constant(array, spec.dtype)


def handler(model, version: str) -> type[BaseHTTPRequestHandler]:
    """Answers for one model."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds for a request to arrive in

        def do_GET(self) -> None:
            found = self.path in (MODEL, f"{MODEL}/versions/{version}")
            self.answer(200, {"model_version_status": [{"version": version, "state": "AVAILABLE"}]}) if found else self.nothing_here()

        def do_POST(self) -> None:
            if self.path not in (f"{MODEL}:predict", f"{MODEL}/versions/{version}:predict"):
                return self.nothing_here()
            try:
                length = int(self.headers.get("Content-Length", 0))
                if not 0 <= length <= MOST_BYTES:
                    raise ValueError(f"Content-Length: expected 0 to {MOST_BYTES}, got {length}")
                outputs = predict(model, json.loads(self.rfile.read(length)))
            except (ValueError, RecursionError) as error:
                self.answer(400, {"error": str(error)})
            except tf.errors.InvalidArgumentError as error:  # an error that the model itself reports
                said = error.message.partition("assertion failed:")[2] or error.message
                self.answer(400, {"error": said.strip().splitlines()[0]})
            else:
                self.answer(200, {"outputs": outputs})

        def nothing_here(self) -> None:
            self.answer(404, {"error": f"{self.path}: expected {MODEL} or {MODEL}:predict"})

        def answer(self, status: int, content: dict) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


class Server(ThreadingHTTPServer):
    """Serves each request in a separate thread."""

    request_queue_size = 128  # connections that may wait; more are reset


def main() -> None:
    parser = argparse.ArgumentParser(description="serve the newest policy of a folder that `export` wrote")
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int, nargs="?", default=8501, help="port to listen on; 0: any free port (default: 8501)")
    args = parser.parse_args()
    versions = [int(path.parent.name) for path in args.folder.glob("*/saved_model.pb") if path.parent.name.isdigit()]
    if not versions:
        parser.error(f"{args.folder}: expected numbered folders that `export` wrote, got none")
    newest = args.folder / str(max(versions))
    server = Server(("localhost", args.port), handler(tf.saved_model.load(str(newest)), newest.name))
    print(f"serving {newest} at http://localhost:{server.server_port}{MODEL}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("stopped")


if __name__ == "__main__":
    main()
