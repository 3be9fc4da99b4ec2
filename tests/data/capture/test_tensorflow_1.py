"""Control flow and variables of TensorFlow 1 are captured whole, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from data.capture import capture
from data.capture.rewriting.functions import check_functions
from data.capture.rewriting.inlining import Inliner
from doppler_tf.errors import ConfigError
from runtime.models.captured import original_function
from tests.captured_models import Spec, close, draw, run_pieces
from tests.crossed import crossed

v1 = tf.compat.v1
X = Spec([2, 3])


@pytest.fixture(autouse=True)
def switches():
    """TensorFlow builds switches and merges."""
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def saved(folder, build, resources: bool):
    """The signature of a SavedModel that TensorFlow 1 would have written."""
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("model", use_resource=resources):
            x = v1.placeholder(tf.float32, [None, 3], name="x")
            y = build(x)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder), {"x": x}, {"y": y})
    return tf.saved_model.load(str(folder)).signatures["serving_default"]


def conditional(x):
    weight, bias = v1.get_variable("weight", [3, 3]), v1.get_variable("bias", [3])
    return v1.cond(tf.reduce_sum(x) > 0.0, lambda: x @ weight, lambda: x + bias) + 1.0


def loop(x):
    weight = v1.get_variable("weight", [3, 3])

    def body(i, y, array):
        halved = v1.cond(tf.reduce_sum(y) > 1.0, lambda: y * 0.5, lambda: y)
        return i + 1, tf.tanh(halved @ weight), array.write(i, tf.reduce_sum(y))

    _, y, array = v1.while_loop(lambda i, *_: i < 3, body, (0, x, tf.TensorArray(tf.float32, 3)))
    return y * 2.0 + tf.reduce_sum(array.stack()) + v1.gradients(y, x)[0]


def updates(x):
    weight = v1.get_variable("weight", [3, 3])
    with tf.control_dependencies([v1.assign_add(weight, tf.ones([3, 3]))]):
        return x @ tf.identity(weight)


@pytest.mark.parametrize(*crossed(build=[conditional, loop], resources=[True, False]))
def test_a_saved_model_is_captured_with_equal_outputs(build, resources, tmp_path):
    signature = saved(tmp_path / "saved", build, resources)
    graphs = [capture(signature, [X], model_folder=tmp_path / f"{grouping}.model", grouping=grouping) for grouping in (False, True)]
    assert sorted(x["variable"] for x in graphs[0].attributes["captured"]["weights"])[-1] == "model/weight"
    for seed in range(4):
        feeds = draw(graphs[0], seed)
        expected = {"y": signature(tf.constant(next(iter(feeds.values()))))["y"].numpy()}
        for graph in graphs:
            close(run_pieces(graph, feeds)[0], expected)
        close(original_function(tmp_path / "True.model")(feeds)[0], expected)


def test_only_what_a_switch_decides_is_in_its_vertex(tmp_path):
    graph = capture(saved(tmp_path / "saved", conditional, True), [X], model_folder=tmp_path / "model", grouping=False)
    kinds = [graph.kinds[v] for v in graph.work_vertices]
    assert kinds == ["Sum", "Greater", "StatefulPartitionedCall", "AddV2"]
    assert graph.names[graph.work_vertices[2]] == "model/cond"


def test_an_update_behind_a_switch_is_found(tmp_path):
    weight = tf.Variable(tf.eye(3), name="weight")

    def function(x):
        def yes():
            with tf.control_dependencies([weight.assign_add(tf.ones([3, 3]))]):
                return x @ weight.read_value()
        return v1.cond(tf.reduce_sum(x) > 0.0, yes, lambda: x * 2.0)

    traced = v1.wrap_function(function, [X])
    graph = capture(traced, [X], model_folder=tmp_path / "model")
    for sign in (1.0, -1.0):
        x = np.full((2, 3), sign, np.float32)
        found, updated = run_pieces(graph, {graph.attributes["captured"]["inputs"][0]["name"]: x})
        weight.assign(tf.eye(3))
        close(found, {next(iter(found)): traced(tf.constant(x)).numpy()})
        close(updated, {"weight": weight.numpy()})


def test_a_reference_variable_that_is_updated_is_refused_by_name(tmp_path):
    signature = saved(tmp_path / "saved", updates, False)
    with pytest.raises(ConfigError, match=r"reference variable of TensorFlow 1.*enable_resource_variables"):
        capture(signature, [X], model_folder=tmp_path / "model")


def test_functions_that_are_not_there_or_call_themselves():
    graph = tf.compat.v1.GraphDef()
    call = graph.node.add(name="call", op="PartitionedCall")
    call.attr["f"].func.name = "f"
    with pytest.raises(ConfigError, match="'f', which the graph does not hold"):
        check_functions(graph, "model")
    function = graph.library.function.add()
    function.signature.name = "f"
    function.node_def.add().CopyFrom(call)
    with pytest.raises(ConfigError, match="'f', which calls itself"):
        check_functions(graph, "model")


def test_operations_in_a_circle_are_refused():
    graph = tf.compat.v1.GraphDef()
    for name, taken in (("a", "b"), ("b", "a")):
        graph.node.add(name=name, op="Neg", input=[taken]).attr["T"].type = tf.float32.as_datatype_enum
    with pytest.raises(ConfigError, match="circle"):
        Inliner(graph, "model").expand(graph, [])
