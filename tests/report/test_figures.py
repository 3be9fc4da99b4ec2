"""Pictures with letters that the font lacks: they are made, and nothing is said."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from matplotlib.image import imread

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.report.bench.bars import bars_png
from doppler_tf.report.bench.curves import curves_png
from doppler_tf.report.gantt import gantt_figure, gantt_png
from doppler_tf.report.scatter import scatter_png
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.simulator import simulate

NAME = "größe 日本"


def case():
    graph = graph_from_records([{"id": 0, "exec_s": 1.0, "name": NAME}], [], {"name": NAME})
    costs = build_costs(graph, ideal(1))
    return graph, costs, simulate(graph, costs, assignment_from_devices(graph, costs, [0]))


def gantt() -> bytes:
    return gantt_png(*case())


def figure_saved_by_the_user() -> bytes:
    content = io.BytesIO()
    gantt_figure(*case()).savefig(content)
    return content.getvalue()


def bars() -> bytes:
    return bars_png(NAME, [{"method": NAME, "topology": NAME, "graph": NAME, "best_known_s": 1.0, "mean_s": 2.0, "least_s": 1.0,
                            "most_s": 3.0, "greedy_s": None}])


def scatter() -> bytes:
    return scatter_png(NAME, np.array([1.0, 2.0]), {NAME: np.array([1.0, 2.0])}, [NAME, NAME], {NAME: NAME})


def curves() -> bytes:
    return curves_png(NAME, [{"method": NAME, "graph": NAME, "greedy_makespan_s": 1.0, "episodes": 8, "curve": []}], {NAME: 1.0})


@pytest.mark.parametrize("make", [gantt, figure_saved_by_the_user, bars, scatter, curves])
def test_letters_that_the_font_lacks(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert imread(io.BytesIO(make()), format="png").std() > 0
