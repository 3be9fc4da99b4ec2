"""Programs in Python files: built like named ones, found again from the graph's record, and refused with the file and the expression."""

from __future__ import annotations

import pytest

from data import build_tilings, build_workload, evaluate_program, execute_tiles, relative_error, workload_cuts, workload_program
from doppler_tf.api.executors import Program
from doppler_tf.errors import ConfigError, FormatError, GraphError
from doppler_tf.formats.graph_json import read_graph, write_graph
from tests.commands import ROOT, doppler
from tests.messages import assert_says, refusal

HEADER = "from data import EinsumProgram, Training, Workload, contract, elementwise, reduction, tensor_input\n"
PROGRAM = HEADER + """
bare = EinsumProgram({"i": 12, "k": 8, "j": 6}, {"A": tensor_input("i k"), "B": tensor_input("k j")},
                     (contract("AB", "i k, k j -> i j", "A", "B"), elementwise("y", "relu", "i j -> i j", "AB")))
trained = Workload({}, {}, lambda sizes: bare, training=Training("mean_squared_error", "y", ("A",)))
number = 3
"""


def file_with(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("name", "optimizer"), [("bare", None), ("trained", None), ("trained", "adam")])
def test_tile_by_tile_equals_unsharded(tmp_path, name, optimizer):
    path = file_with(tmp_path, PROGRAM)
    graph = build_workload(f"{path}:{name}", 3, "small", seed=5, optimizer=optimizer)
    write_graph(tmp_path / "g.json", graph)
    record = read_graph(tmp_path / "g.json").attributes["workload"]
    program = workload_program(record)
    tensors = program.draw_inputs(record["seed"])
    assert relative_error(execute_tiles(graph, tensors), evaluate_program(program, tensors)) <= 1e-6
    assert graph.name == (f"{name}_training" if optimizer else name)
    assert workload_cuts(record).keys() == {e.name for e in program.expressions}


def test_sizes_scales_and_a_tiling_of_ones_own():
    name = f"{ROOT / 'examples' / 'own_program.py'}:mixer"
    graph = build_workload(name, 4, "small", batch=8)
    record = graph.attributes["workload"]
    assert record["options"]["batch"] == 8
    assert {cuts["b"] for cuts in workload_cuts(record).values()} == {4}
    assert next(iter(build_tilings(name, 2, "small"))) == "published"
    assert "option: expected one of batch, patches, channels, hidden, dtype_bytes, got 'bach'" in refusal(
        ConfigError, build_workload, name, 4, bach=8)


def test_the_commands_take_it_like_a_named_one(tmp_path):
    path, graph, placed = file_with(tmp_path, PROGRAM), tmp_path / "g.json", tmp_path / "a.json"
    doppler("workload", f"{path}:trained", "--devices", 2, "--training", "--option", "dtype_bytes=4", "--out", graph)
    doppler("place", graph, "--topology", "cpu:2", "--method", "round_robin", "--out", placed)
    run = ("run", graph, "--topology", "cpu:2", "--assignment", placed, "--executor", "tf")
    done = doppler(*run)
    assert done["outputs_match"] is True
    assert done["gradients_match"] is True
    assert 0 < done["gradient_error"] < 1e-14
    path.write_text(PROGRAM + "# a remark changes no program\n")
    assert doppler(*run)["outputs_match"] is True


def test_a_file_that_has_changed_or_is_gone(tmp_path):
    path = file_with(tmp_path, PROGRAM)
    record = build_workload(f"{path}:bare", 2).attributes["workload"]
    path.write_text(PROGRAM.replace('"k": 8', '"k": 9'))
    assert_says(refusal(ConfigError, workload_program, record), str(path), "bare: expected the program from which the graph was made",
                "the file has changed since; make the graph again")
    path.unlink()
    assert_says(refusal(FormatError, workload_program, record), str(path), "no such file")


@pytest.mark.parametrize(("error", "text", "name", "said"), [
    (GraphError, HEADER + 'bad = EinsumProgram({"i": 4, "j": 5}, {"A": tensor_input("i j")},\n'
     '                    (elementwise("double", "mul", "i j, j i -> i j", "A", "A"),))', "bad",
     ("mine.py: program: expression 'double': labels of 'A': expected labels of sizes (4, 5)", "(mine.py:2)")),
    (GraphError, HEADER + 'def make(sizes):\n    return contract("AB", "i k -> i", "A", "B")\nbad = Workload({}, {}, make)', "bad",
     ("bad: program: expression 'AB': pattern: expected 2 operand(s)", "(mine.py:3)")),
    (GraphError, HEADER + 'bad = EinsumProgram({"i": 4}, {"A": tensor_input("i")},\n'
     '                    (elementwise("y", "scale", "i -> i", "A", factor="2", offset=0),))', "bad",
     ("mine.py: program: expression 'y': factor: expected an int or a float, got '2'",)),
    (ConfigError, "1 / 0", "bad", ("mine.py: expected a module that can be imported, got ZeroDivisionError", "(mine.py:1)")),
    (ConfigError, "import sys\nsys.exit(3)", "bad", ("mine.py: expected a module that can be imported, got SystemExit: 3", "(mine.py:2)")),
    (GraphError, HEADER + 'bad = EinsumProgram({"i": 4}, {"A": tensor_input("i")}, (elementwise(5, "relu", "i -> i", "A"),))', "bad",
     ("mine.py: program: expression 5: name: expected a text, got 5",)),
    (ConfigError, PROGRAM + "bad = Workload(None, {}, lambda sizes: bare)", "bad",
     ("mine.py: bad: paper: expected sizes by name, as {'rows': 64}, got None",)),
    (ConfigError, PROGRAM, "number", ("mine.py: number: expected a data.EinsumProgram or a data.Workload, got 3",)),
    (ConfigError, PROGRAM + "bad = Workload({}, {}, lambda sizes: None)", "bad",
     ("bad: program: expected a function that returns a data.EinsumProgram, got 'NoneType'",)),
    (ConfigError, PROGRAM, "absent", ("mine.py: program: expected one of bare, trained, got 'absent'",)),
    (ConfigError, PROGRAM + "bad = Workload({}, {}, lambda sizes: bare, lambda program, devices: {'z': {'i': devices}})", "bad",
     ("bad: tiling: expression: expected one of AB, y, got 'z'",)),
])
def test_errors_name_the_file_and_the_expression(tmp_path, error, text, name, said):
    path = file_with(tmp_path, text)
    assert_says(refusal(error, build_workload, f"{path}:{name}", 2), *said)


def test_what_a_training_step_refuses(tmp_path):
    path = file_with(tmp_path, PROGRAM + """
loss = Workload({}, {}, lambda sizes: bare, training=Training("hinge", "y"))
of = Workload({}, {}, lambda sizes: bare, training=Training("mean_squared_error", "A"))
data = Workload({}, {}, lambda sizes: bare, training=Training("mean_squared_error", "y", ("C",)))
text = Workload({}, {}, lambda sizes: bare, training=Training("mean_squared_error", "y", "A"))
none = Workload({}, {}, lambda sizes: bare, training=Training("mean_squared_error", "y", None))
nested = Workload({}, {}, lambda sizes: bare, training=Training("mean_squared_error", "y", (["A"],)))
several = Workload({}, {}, lambda sizes: bare, training=Training(["mean_squared_error"], "y", ("A",)))
constants = Workload({}, {}, lambda sizes: bare, training=Training("mean_squared_error", "y", (), ("max",)))
all = Workload({}, {}, lambda sizes: bare, training=Training("mean_squared_error", "y", ("A", "B")))
aside = Workload({}, {}, lambda sizes: bare, training=Training("mean_squared_error", "y", (), ("AB",)))
kind = Workload({}, {}, lambda sizes: bare, training="mean_squared_error")

def named(x, y, loss="mean_squared_error"):
    steps = elementwise("square", "square", "i -> i", x), reduction(y, "sum", "i -> ", "square")
    program = EinsumProgram({"i": 4}, {x: tensor_input("i")}, steps)
    return Workload({}, {}, lambda sizes: program, training=Training(loss, y))

taken, loss_taken, new, slot = named("target", "y"), named("x", "loss"), named("x", "new_x"), named("correction_1", "y")
number = named("x", "y", "softmax_cross_entropy")
""")
    for name, error, said in (
            ("bare", ConfigError, "training: expected a workload with a loss: one of chainmm"),
            ("kind", ConfigError, "training: expected a workload with a loss: one of chainmm"),
            ("text", ConfigError, "training: data: expected a tuple of names, got 'A'; write ('A',)"),
            ("none", ConfigError, "mine.py:none: training: data: expected a tuple of names, got None"),
            ("nested", ConfigError, "training: data: expected a tuple of names, got (['A'],)"),
            ("several", ConfigError, "training: loss: expected a name, got ['mean_squared_error']"),
            ("constants", ConfigError, "training: constants: expected one of AB, y, got 'max'"),
            ("all", ConfigError, "training: data: expected an input at least that is a weight"),
            ("aside", ConfigError, "training: weights: expected inputs on which 'y' depends, got 'A'; name it in data"),
            ("number", ConfigError, "training: of: expected logits, with classes along their last label, got 'y, a number'"),
            ("loss_taken", GraphError, "tensor 'loss': name: expected one that gradients and training do not need"),
            ("new", GraphError, "tensor 'new_x': name: expected one that gradients and training do not need"),
            ("slot", GraphError, "tensor 'correction_1': name: expected one that gradients and training do not need"),
            ("loss", ConfigError, "training: loss: expected one of softmax_cross_entropy, mean_squared_error, got 'hinge'"),
            ("of", ConfigError, "training: of: expected one of AB, y, got 'A'"),
            ("data", ConfigError, "training: data: expected one of A, B, got 'C'"),
            ("taken", GraphError, "tensor 'target': name: expected one that gradients and training do not need, got 'target'; rename it")):
        assert_says(refusal(error, build_workload, f"{path}:{name}", 2, optimizer="adam"), said)


@pytest.mark.parametrize(("error", "fill", "said"), [
    (GraphError, "lambda rng, shape: rng.normal(size=(12, 1))", ("fill: expected values of shape (12, 8), got (12, 1)",)),
    (GraphError, "lambda rng, shape: 2.0", ("fill: expected values of shape (12, 8), got ()",)),
    (ConfigError, "lambda rng, shape: 'text'", ("expected a fill that returns numbers of shape (12, 8), got ValueError",)),
    (ConfigError, "lambda rng, shape: 1 / 0", ("got ZeroDivisionError: division by zero (mine.py:",)),
    (ConfigError, "3.0", ("got TypeError: 'float' object is not callable",)),
])
def test_fills_that_give_no_values_of_their_shape(tmp_path, error, fill, said):
    path = file_with(tmp_path, PROGRAM.replace('tensor_input("i k")', f'tensor_input("i k", {fill})'))
    assert_says(refusal(error, Program, build_workload(f"{path}:bare", 2)), "mine.py: program: input 'A'", *said)
