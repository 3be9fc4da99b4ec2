"""What the command line names: SavedModels, functions in Python files, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from data.capture import capture, read_source
from doppler_tf.errors import UserError
from tests.captured_models import Spec, close, run_pieces

MODULE = """
import dataclasses
import typing
import tensorflow as tf
from neighbour import FACTOR
model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,))])

@tf.function(input_signature=[tf.TensorSpec([None, 3], name="x")])
def signed(x):
    return x * FACTOR

def plain(x, y, scale=2.0):
    return x + y * scale

def skips(x, training=False, mask=None):
    y = x + 100.0 if training else x * 2.0
    return y if mask is None else y * mask

def nested(d, *rest, only, **more):
    return d["zeta"] * d["list"][0] + rest[0] * only + more["extra"]

@tf.function(input_signature=[{"ids": tf.TensorSpec([None, 3], name="own_name")}])
def signed_dict(d):
    return d["ids"] * FACTOR

a, b = tf.keras.Input((3,), name="left"), tf.keras.Input((3,), name="right")
two = tf.keras.Model([a, b], tf.keras.layers.Add()([a, b]))

@dataclasses.dataclass
class Record:
    one: tf.Tensor
    other: typing.Any = 2

class Pair(typing.NamedTuple):
    first: Record
    second: tf.Tensor

def annotated(pair: Pair, record: "Record"):
    return pair.first.one * pair.first.other + pair.second + record.one * record.other

def any_more(x, *rest, **more):
    return x + sum(rest) + sum(more.values())

number = 3
"""
KERAS_3 = """
import sys
import keras
import numpy as np
x = keras.Input((5, 4))
y = keras.layers.LSTM(8)(keras.layers.MultiHeadAttention(2, 4)(x, x))
model = keras.Model(x, keras.layers.BatchNormalization()(keras.layers.Dense(3)(y)))
model.export(sys.argv[1], verbose=False)
drawn = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
np.savez(sys.argv[2], x=drawn, y=np.asarray(model(drawn)))
"""


@pytest.fixture
def module(tmp_path):
    (tmp_path / "neighbour.py").write_text("FACTOR = 3.0\n")
    (tmp_path / "mine.py").write_text(MODULE)
    return tmp_path / "mine.py"


@pytest.fixture
def saved(tmp_path):
    root = tf.Module()
    root.weight = tf.Variable(tf.ones([3, 2]), name="weight")
    one = tf.function(lambda x: {"y": x @ root.weight}, input_signature=[Spec([None, 3], name="x")])
    two = tf.function(lambda x: {"z": x + 1.0}, input_signature=[Spec([4], name="x")])
    tf.saved_model.save(root, str(tmp_path / "saved"), {"one": one, "two": two})
    return tmp_path / "saved"


@pytest.mark.parametrize(("name", "inputs", "batch", "shapes"), [
    ("signed", [], 5, [[5, 3]]), ("signed", ["x=f32[7,3]"], None, [[7, 3]]), ("plain", ["x=f32[4]", "y=float32[4]"], None, [[4], [4]]),
    ("model", [], 6, [[6, 3]]), ("model.call", ["inputs=f32[1,3]"], None, [[1, 3]]),
])
def test_functions_in_a_file(module, tmp_path, name, inputs, batch, shapes):
    graph = capture(read_source(f"{module}:{name}", None, inputs, batch), model_folder=tmp_path / "model")
    assert [x["shape"] for x in graph.attributes["captured"]["inputs"]] == shapes
    assert graph.attributes["captured"]["function"] == f"{module}:{name}"


def test_inputs_are_bound_by_name(module, tmp_path):
    x, mask = np.array([1.0, 2.0, 3.0], np.float32), np.array([0.0, 1.0, 0.5], np.float32)
    for inputs in (["x=f32[3]", "mask=f32[3]"], ["mask=f32[3]", "x=f32[3]"]):  # the default between them stays
        graph = capture(read_source(f"{module}:skips", inputs=inputs), model_folder=tmp_path / "model")
        close(run_pieces(graph, {"x": x, "mask": mask})[0], {"output": [0.0, 4.0, 3.0]})


@pytest.mark.parametrize(("name", "inputs", "batch", "names"), [
    ("nested", ["only=f32[3]", "d/zeta=f32[3]", "rest/0=f32[3]", "d/list/0=f32[3]", "extra=f32[3]"], None,
     ["d/list/0", "d/zeta", "rest/0", "extra", "only"]),
    ("annotated", ["pair/second=f32[2]", "pair/first/one=f32[2]", "record/one=f32[2]", "record/other=f32[2]"], None,
     ["pair/first/one", "pair/second", "record/one", "record/other"]),
    ("any_more", ["x=f32[2]", "more=f32[2]"], None, ["x", "more"]), ("any_more", ["x=f32[2]", "more/z=f32[2]"], None, ["x", "z"]),
    ("signed_dict", [], 2, ["d/ids"]), ("signed_dict", ["d/ids=f32[2,3]"], None, ["d/ids"]),
    ("signed_dict", ["own_name=f32[2,3]"], None, ["d/ids"]),
    ("two", ["left=f32[2,3]"], 2, ["inputs/0", "inputs/1"]),
    ("two", ["inputs/0=f32[2,3]", "inputs/1=f32[2,3]"], None, ["inputs/0", "inputs/1"]),
])
def test_inputs_are_named_by_their_path(module, tmp_path, name, inputs, batch, names):
    graph = capture(read_source(f"{module}:{name}", None, inputs, batch), model_folder=tmp_path / "model")
    assert [x["name"] for x in graph.attributes["captured"]["inputs"]] == names


def test_a_signature_of_a_saved_model(saved, tmp_path):
    graph = capture(read_source(str(saved), "one", batch=2), model_folder=tmp_path / "model")
    assert graph.name == "saved"
    outputs, _ = run_pieces(graph, {"x": np.ones((2, 3), np.float32)})
    close(outputs, {"y": np.full((2, 2), 3.0)})


@pytest.mark.thorough
def test_a_model_of_keras_3(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    subprocess.run([sys.executable, "-c", KERAS_3, tmp_path / "exported", tmp_path / "expected.npz"], env=environment, check=True,
                   capture_output=True)
    graph = capture(read_source(str(tmp_path / "exported"), batch=2), model_folder=tmp_path / "model", grouping=False)
    expected = np.load(tmp_path / "expected.npz")
    (name,) = (x["name"] for x in graph.attributes["captured"]["inputs"])
    outputs, _ = run_pieces(graph, {name: expected["x"]})
    close(outputs, {"output_0": expected["y"]})
    assert "While" in graph.kinds or "StatelessWhile" in graph.kinds


@pytest.mark.parametrize(("text", "options", "words"), [
    ("MODULE:absent", {}, ["absent", "signed, plain"]),
    ("MODULE:number", {}, ["number", "a function"]),
    ("MODULE:plain", {}, ["input 'x'", "--input x="]),
    ("MODULE:signed", {}, ["(None, 3)", "--batch N"]),
    ("MODULE:signed", {"inputs": ["y=f32[1,3]"]}, ["'y'", "one of x"]),
    ("MODULE:signed", {"inputs": ["x=f32[1,4]"]}, ["float32", "(1, 4)"]),
    ("MODULE:signed", {"inputs": ["x=f99[1,3]"]}, ["x=f99[1,3]", "NAME=TYPE[SHAPE]"]),
    ("MODULE:skips", {"inputs": ["x=f32[3]", "msk=f32[3]"]}, ["'msk'", "one of x, training, mask"]),
    ("MODULE:nested", {"inputs": ["d=f32[3]", "d/zeta=f32[3]"]}, ["'d/zeta'", "not both"]),
    ("MODULE:nested", {"inputs": ["d/zeta=f32[3]"]}, ["input 'only'", "--input only="]),
    ("MODULE:signed_dict", {"inputs": ["d/idx=f32[2,3]"]}, ["'d/idx'", "one of d/ids"]),
    ("MODULE:annotated", {"inputs": ["record/two=f32[2]"]}, ["--input", "the fields of Record at record", "'two'"]),
    ("MODULE:plain", {"inputs": ["x=f32[2]", "x=f32[3]", "y=f32[3]"]}, ["input 'x'", "one shape and type, float32(2,)", "(3,), too"]),
    ("MODULE:plain", {"inputs": ["x=f32[2]", "y=f32[2]"], "batch": 3}, ["--batch", "first axis is open", "got 3"]),
    ("MODULE:plain", {"inputs": ["x=f32[2]", "y=f32[2]"], "signature": "one"}, ["--signature", "'one'", "leave it out"]),
    ("MODULE", {}, ["module.py:function"]),
    ("SAVED", {}, ["one of one, two", "--signature"]),
    ("SAVED", {"signature": "three"}, ["three", "--signature"]),
    ("FOLDER/absent", {}, ["no such folder", "model.export"]),
    ("FOLDER/absent.py:f", {}, ["no such file"]),
    ("FOLDER", {}, ["without saved_model.pb"]),
])
def test_refusals(module, saved, tmp_path, text, options, words):
    text = text.replace("MODULE", str(module)).replace("SAVED", str(saved)).replace("FOLDER", str(tmp_path))
    with pytest.raises(UserError) as caught:
        read_source(text, **options)
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


def test_a_file_that_fails(tmp_path):
    (tmp_path / "broken.py").write_text("import tensorflow\n\nnumber = 1 / 0\n")
    with pytest.raises(UserError, match=r"ZeroDivisionError.*broken\.py:3"):
        read_source(f"{tmp_path / 'broken.py'}:f")


def test_a_file_with_keras_3(tmp_path):
    (tmp_path / "newer.py").write_text("import sys, types\nsys.modules['keras'] = types.ModuleType('keras')\n")
    with pytest.raises(UserError, match=r"Keras 3.*model\.export"):
        read_source(f"{tmp_path / 'newer.py'}:f")
    del sys.modules["keras"]


def test_an_operation_that_is_not_registered(tmp_path):
    module = tf.Module()
    module.f = tf.function(tf.tanh, input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(module, str(tmp_path / "saved"))
    file = tmp_path / "saved" / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for node in (node for f in model.meta_graphs[0].graph_def.library.function for node in f.node_def if node.op == "Tanh"):
        node.op = "NobodysTanh"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"NobodysTanh.*import the package that registers it.*FILE.py:f"):
        read_source(str(tmp_path / "saved"))
