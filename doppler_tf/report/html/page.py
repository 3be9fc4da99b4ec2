"""The page: template, style sheet and scripts in one file that needs no other."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from doppler_tf.report.html.pictures import MOST_BARS, MOST_VERTICES
from doppler_tf.report.html.section import Outcome, section
from doppler_tf.report.tables import over, percent, quantity

_HERE = Path(__file__).parent
# The order matters, because the scripts share one scope.
_SCRIPTS = ("dom", "view", "gantt", "graph", "charts", "main")


def page(run: str, config: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    """The page of a training run. All names in it are escaped.

    Args:
      run: the run folder's name.
      config: the run's settings.
      outcomes: one per graph.
    """
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True)
    environment.filters |= {"over": over, "percent": percent, "quantity": quantity}
    script = "(() => {\n\"use strict\";\n" + "".join(_text(f"script/{name}.js") for name in _SCRIPTS) + "})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html.jinja").render(
        run=run, config=config, sections=[section(outcome) for outcome in outcomes], style=Markup(_text("style.css")),
        script=Markup(script), script_hash=digest, most_bars=MOST_BARS, most_vertices=MOST_VERTICES)


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
