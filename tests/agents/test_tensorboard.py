"""TensorBoard itself, opened in a browser: scalars, pictures and the table of settings are on its pages.

`LOGDIR=runs/demo SCREENSHOTS=FOLDER .venv/bin/python -m pytest tests/agents/test_tensorboard.py` looks at a run of one's own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.config import TrainConfig
from agents.training import summaries
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from tests.quiet_training import train

# All text of a page, that of shadow roots included.
_TEXT = """
const parts = [];
(function walk(node) {
  if (node.nodeType === Node.TEXT_NODE) parts.push(node.textContent);
  if (node.shadowRoot) walk(node.shadowRoot);
  if (!["SCRIPT", "STYLE"].includes(node.nodeName)) node.childNodes.forEach(walk);
})(document.body);
return parts.join(" ");
"""
_PICTURES = """
const found = [];
(function walk(node) {
  if (node.nodeName === "IMG" && node.naturalWidth) found.push([node.src, node.clientWidth, node.naturalWidth, node.naturalHeight]);
  if (node.shadowRoot) walk(node.shadowRoot);
  node.childNodes.forEach(walk);
})(document.body);
return found;
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """The folder to look at: LOGDIR, which holds finished runs, else two small ones of different seeds beside each other."""
    if given := os.environ.get("LOGDIR"):
        return Path(given).absolute()
    folder = tmp_path_factory.mktemp("logs")
    nodes = [{"id": v, "exec_s": 1.0 + v % 2} for v in range(9)]
    edges = [{"source": v, "target": v + 3, "transfer_s": 0.5} for v in range(6)]
    for seed, name in enumerate(("first", "second")):
        config = TrainConfig(imitation=16, simulated=64, batch=8, hidden=8, rounds=1, seed=seed)
        train([graph_from_records(nodes, edges, {"name": "chains"})], ideal(3), folder / name, config, pictures=True)
    return folder


@pytest.fixture(scope="module")
def curves(logs):
    """Names under which TensorBoard shows stage II, one a run and graph."""
    names = sorted({str(path.parent.relative_to(logs)) for path in logs.glob("**/simulated/*/events*")})
    assert names
    return names


@pytest.fixture(scope="module")
def tensorboard(logs):
    """TensorBoard's address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--port", "0", "--host", "localhost",
               "--load_fast", "false"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        try:
            yield next(found[0] for line in server.stderr if (found := re.search(r"http://localhost:\d+/", line)))
        finally:
            server.kill()


@pytest.fixture
def shows(browser, tensorboard, request) -> Callable[..., str]:
    """Opens a page and waits until it shows all of some texts; SCREENSHOTS=FOLDER keeps a picture."""
    def look(page: str, *texts: str, seconds: float = 60) -> str:
        browser.get("about:blank")
        browser.get(f"{tensorboard}{page}")
        end, text = time.monotonic() + seconds, ""
        wanted = ["".join(each.split()) for each in texts]  # pages part tags at the slash
        while time.monotonic() < end and not all(each in text for each in wanted):
            time.sleep(0.5)
            text = "".join(browser.execute_script(_TEXT).split())
        if folder := os.environ.get("SCREENSHOTS"):
            time.sleep(3)  # curves are drawn after their numbers
            browser.save_screenshot(f"{folder}/{request.node.name}.png")
        assert [each for each in wanted if each not in text] == [], text[:3000]
        return text
    return look


def test_scalars(shows, curves):
    shows("?tagFilter=makespan#timeseries", summaries.GREEDY, summaries.OVER_BOUND, *curves)


def test_pictures(shows, curves, browser):
    shows("#images", summaries.GANTT, curves[0])
    pictures = [picture for picture in browser.execute_script(_PICTURES) if "individualImage" in picture[0]]
    assert pictures
    assert all(min(width, height) > 200 for _, _, width, height in pictures)
    assert all(shown == width for _, shown, width, _ in pictures)  # else cards leave pixels out, and no text is legible


def test_settings_and_outcomes(shows, logs):
    runs = [path.parent.parent.name for path in logs.glob("**/outcome")]
    text = shows("#hparams", "learning_rate", "mutations", "best_over_bound", *runs, "Show Metrics")
    if len(runs) > 1:
        assert "ShowMetricsseed" in text  # the first column: in what these runs differ
    assert summaries.LOSS not in text  # outcomes alone are metrics


def test_texts(shows):
    shows("#text", summaries.CONFIG_TEXT, summaries.GRAPH_TEXT, "lower bound (ms)")
