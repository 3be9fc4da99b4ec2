"""`doppler_tf.distribute`: a function of the user's own on two devices, in one call."""

from __future__ import annotations

import gc
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given, settings
from tf_keras import layers

import doppler_tf
from doppler_tf.api.distribution import fastest
from doppler_tf.errors import ConfigError, ExecutionError
from runtime.calls import CapturedCall
from runtime.models.captured import CapturedModel
from tests.crossed import crossed
from tests.messages import assert_says, refusal
from tests.signatures import equal, functions


def towers():
    x = tf_keras.Input((8, 8, 3), batch_size=2)
    sides = [layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, activation="relu")(x)) for _ in range(2)]
    return tf_keras.Model(x, {"joined": layers.Dense(3)(layers.Concatenate()(sides)), "left": sides[0]})


def batch(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 8, 8, 3)).astype(np.float32)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_model_gives_what_it_gave(in_flight, tmp_path):
    model = towers()
    with doppler_tf.distribute(model, batch(0), topology="cpu:2", budget_s=0.2, in_flight=in_flight, executor="engine") as placed:
        for seed in (1, 2):
            found, expected = placed(batch(seed)), model(batch(seed))
            assert found.keys() == {"joined", "left"}
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
        batches = [batch(seed) for seed in range(5)]
        for found, x in zip(placed.map(batches), batches, strict=True):
            np.testing.assert_allclose(found["joined"], model(x)["joined"], rtol=1e-5, atol=1e-6)
        assert placed.predicted_s > 0
        assert len(placed.pattern) == in_flight
        assert any("conv2d" in name for name in placed.graph.names)
        with pytest.warns(UserWarning, match=r"inputs: expected float32 of shape \[2, 8, 8, 3\], as in the example, got .*\[1, 8, 8, 3\]"):
            np.testing.assert_allclose(placed(batch(0)[:1])["joined"], model(batch(0)[:1])["joined"], rtol=1e-5, atol=1e-6)
        assert_says(refusal(ConfigError, placed, batch(0), True), "argument training: expected False, a Python value")
        lines = str(placed).splitlines()
        assert lines[0] == "Distributed"
        assert [name for name in ("function: ", "runs on: ", "measured: ", "lower bound: ", "last run: ") if name not in str(placed)] == []
        assert len(lines) <= 9
        bound = re.search(r"lower bound: ([\d.,]+)", str(placed))[1]
        simulated = re.search(r"simulated ([\d.,]+)", str(placed))  # there is none of what XLA compiles
        if in_flight == 1 and simulated:
            assert float(bound.replace(",", "")) <= float(simulated[1].replace(",", ""))  # both in larger calls
        assert "data:image/png;base64," in placed._repr_html_()
        assert placed.plot().axes
        placed.export(tmp_path / "placed")
    exported = tf.saved_model.load(str(tmp_path / "placed")).signatures["serving_default"]
    (argument,) = exported.structured_input_signature[1]
    found = exported(**{argument: tf.constant(batch(1))})
    np.testing.assert_allclose(sorted(found.items())[0][1], model(batch(1))["joined"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_seed_gives_each_batch_its_own_numbers(in_flight):
    """Each call that is built for itself would begin the sequence anew."""
    x = tf.ones((3, 4))

    @tf.function
    def noisy(x):
        return tf.nn.relu(x) + tf.random.normal((3, 4), seed=3) * tf.reduce_mean(x)

    with doppler_tf.distribute(noisy, x, topology="cpu:2", budget_s=None, in_flight=in_flight, executor="engine") as placed:
        found = [placed(x), *placed.map([x] * 5), placed(x), *placed.map([x] * 3)]
    assert len({float(y[0, 0]) for y in found}) == len(found)


@pytest.mark.parametrize("in_flight", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_training_step_has_the_losses_of_the_original(in_flight):
    tf_keras.utils.set_random_seed(0)
    model = tf_keras.Sequential([layers.Dense(8, activation="relu", input_shape=(4,)), layers.Dense(1)])
    optimizer = tf_keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(6, 1)).astype(np.float32)) for _ in range(20)]
    before = [variable.numpy() for variable in model.variables]
    with doppler_tf.distribute(step, data[0], topology="cpu:2", budget_s=0.2, in_flight=in_flight) as placed:
        losses = [float(placed(*pair)) for pair in data] if in_flight == 1 else [float(loss) for loss in placed.map(data)]
        variables = placed.variables
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)  # its variables are copies
    expected = [float(step(*pair)) for pair in data]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for variable in model.variables:
        np.testing.assert_allclose(variables[variable.name.partition(":")[0]], variable, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pieces", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_a_model_that_is_cut_gives_what_it_gave(pieces, tmp_path):
    model = towers()
    with doppler_tf.distribute(model, batch(0), topology="cpu:2", budget_s=0.2, pieces=pieces) as placed:
        cut = [name for v in placed.graph.work_vertices for name in placed.graph.kernel[v].params["nodes"] if "Conv2D/tile_" in name]
        assert len(cut) == 2 * pieces
        for name, value in model(batch(1)).items():
            np.testing.assert_allclose(placed(batch(1))[name], value, rtol=1e-5, atol=1e-6)
        placed.export(tmp_path / "placed")
    exported = tf.saved_model.load(str(tmp_path / "placed")).signatures["serving_default"]
    (argument,) = exported.structured_input_signature[1]
    found = exported(**{argument: tf.constant(batch(1))})
    np.testing.assert_allclose(sorted(found.items())[0][1], model(batch(1))["joined"], rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module", params=[1, 2])
def counting(request):
    """A step that counts its calls and sums its batches, placed; and what TensorFlow gives for batches, from the start."""
    total, count = tf.Variable(tf.zeros(3), name="total"), tf.Variable(0, name="count")

    @tf.function
    def step(x, scale=2.0):
        tf.debugging.assert_less(x, 100.0)
        count.assign_add(1)
        total.assign_add(tf.reduce_sum(x, axis=0) * scale)
        return {"sum": total + 0.0, "x": x * tf.cast(count, tf.float32), "parts": tf.IndexedSlices(x, tf.range(tf.shape(x)[0]))}

    def from_the_start(batches):
        total.assign(tf.zeros(3))
        count.assign(0)
        return [step(x) for x in batches]

    with doppler_tf.distribute(step, rows(4), topology="cpu:2", budget_s=None, pieces=1, in_flight=request.param,
                               executor="engine") as placed:
        yield placed, from_the_start


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def streamed(placed, batches):
    """All results of a stream that starts with fresh variables, and the error at its end."""
    placed.variables = {"total": np.zeros(3, np.float32), "count": np.int32(0)}
    found = []
    try:
        for result in placed.map(batches):
            found.append(result)
    except Exception as error:
        return found, error
    return found, None


def test_batches_of_another_size_are_run_by_the_original_with_the_present_variables(counting):
    placed, from_the_start = counting
    batches = [rows(4, 1), rows(4, 2), rows(2, 3), rows(4, 4), rows(1, 5)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found, error = streamed(placed, batches)
    assert error is None
    equal(found, from_the_start(batches))
    assert placed.variables["count"] == 5
    assert len([x for x in told if "run by the original function" in str(x.message)]) == 1  # once, also by the test before
    np.testing.assert_allclose(placed.variables["total"], found[-1]["sum"], rtol=1e-5)


@pytest.mark.parametrize(("values", "words"), [
    ({"total": np.zeros(4)}, "variables['total']: expected float32 of shape [3], got float64 of shape [4]"),
    ({"total": ["a", "b", "c"]}, "variables['total']: expected float32 of shape [3], got str32 of shape [3]"),
    ({"total": np.ones(3), "count": 1.5}, "variables['count']: expected int32 of shape [], got float64 of shape []"),
    ({"other": 1.0}, "variables: expected those that it updates: "),
])
def test_values_that_variables_cannot_have_are_refused_when_they_are_set(counting, values, words):
    placed, _ = counting
    placed.variables = {"total": [1, 2, 3], "count": 7}
    assert words in refusal(ConfigError, setattr, placed, "variables", values)
    assert placed.variables["total"].dtype == np.float32  # integers fit into it
    assert (placed.variables["total"].tolist(), placed.variables["count"]) == ([1.0, 2.0, 3.0], 7)  # as before


def test_what_is_done_is_yielded_before_an_error_is_raised(counting):
    placed, from_the_start = counting
    good = [rows(4, seed) for seed in range(3)]

    def stops():
        yield from good
        raise KeyError("mine")

    for batches, kind in [(stops(), KeyError), ([*good, rows(4) + 1000.0, rows(4)], ExecutionError), ([*good, "text"], ConfigError),
                          ([*good, rows(2) + 1000.0], ConfigError), ([*good, np.ones((4, 5), np.float32)], ConfigError)]:
        found, error = streamed(placed, batches)
        assert type(error) is kind
        assert len(str(error).splitlines()) == 1
        equal(found, from_the_start(good))
        assert placed.variables["count"] == 3


def test_batches_are_calls_by_position_or_by_name(counting):
    placed, from_the_start = counting
    x = rows(4)
    found, error = streamed(placed, [x, (x,), (x, 2.0), {"x": x}, {"x": x, "scale": 2.0}])
    assert error is None
    equal(found, from_the_start([x] * 5))


@pytest.mark.thorough
@settings(max_examples=30)
@given(functions())
def test_placed_functions_give_the_structure_types_and_values_of_the_original(drawn):
    with doppler_tf.distribute(drawn.function, drawn.example, topology="cpu:2", budget_s=None, pieces=1,
                               example_keywords=drawn.keywords) as placed:
        for args, kwargs in drawn.calls:
            equal(placed(*args, **kwargs), drawn.function(*args, **kwargs))


@pytest.mark.parametrize(*crossed(executor=["engine", "TensorFlow's executor", "TensorFlow alone"], in_flight=[2, 1]))
def test_every_way_gives_the_same_and_keeps_variables(executor, in_flight):
    if executor == "TensorFlow's executor" and in_flight > 1:
        message = refusal(ConfigError, doppler_tf.distribute, towers(), batch(0), "cpu:2", None, in_flight, executor=executor)
        assert_says(message, "TensorFlow's executor runs one call at a time")
        return
    seen, weight = tf.Variable(0, name="seen"), tf.Variable(tf.ones([3, 3]), name="weight")

    @tf.function
    def step(x):
        seen.assign_add(1)
        return x @ weight * tf.cast(seen, tf.float32)

    with doppler_tf.distribute(step, rows(4), "cpu:2", None, in_flight, executor=executor) as placed:
        assert placed.executor == executor
        assert placed.chosen in placed.ways
        assert all(name.startswith(executor) for name in placed.ways)
        assert f"{placed.chosen} (chosen)" in placed.report()
        assert placed.variables == {"seen": 0}
        found = list(placed.map([rows(4, seed) for seed in range(3)]))
        equal(found, [tf.constant(rows(4, seed)) @ tf.ones([3, 3]) * (seed + 1.0) for seed in range(3)])
        assert placed.variables["seen"] == 3
        placed.variables = {"seen": 0}
        equal(placed(rows(4)), tf.constant(rows(4)) @ tf.ones([3, 3]))
        assert (placed.trace is None) == (executor != "engine")
        assert_says(refusal(ConfigError, setattr, placed, "variables", {"weight": 1}), "those that it updates: seen")


@pytest.mark.parametrize("limits", [{}, {"memory_bytes": 1e6}])
def test_a_weight_that_is_returned_is_a_tensor(limits):
    weight = tf.Variable(np.arange(9, dtype=np.float32).reshape(3, 3))
    function = tf.function(lambda x: {"product": x @ weight, "weight": weight.read_value()})
    with doppler_tf.distribute(function, batch(0)[0, 0, :, :3], topology="cpu:2", budget_s=0.2, executor="engine", **limits) as placed:
        found = placed(batch(1)[0, 0, :, :3])
    assert all(isinstance(each, tf.Tensor) for each in found.values())
    np.testing.assert_array_equal(found["weight"], weight)


@pytest.mark.parametrize(("compiled_s", "tried"), [(2.5, True), (3.5, True), (4.0, False)])
def test_xla_compiles_our_calls_where_tensorflow_alone_is_faster_so(monkeypatch, compiled_s, tried):
    """TensorFlow alone takes 3 s, ours 2 s, those that XLA compiles 0.5 s; all that is timed runs before."""
    timed = fastest._Contest._timed

    def made_up(self, name):
        timed(self, name)
        if name.startswith("TensorFlow alone"):
            return compiled_s if name.endswith("xla") else 3.0
        return 0.5 if name.endswith("xla") else 2.0 if name.startswith("engine") else 5.0

    monkeypatch.setattr(fastest._Contest, "_timed", made_up)
    model, x = towers(), batch(0)
    with doppler_tf.distribute(model, x, "cpu:2", None, pieces=2) as placed:
        assert any(name.startswith("engine") and name.endswith("xla") for name in placed.ways) is tried
        assert placed.chosen.endswith("xla") is tried
        assert placed.executor == "engine"
        equal(placed(x), model(x))
        assert placed.trace is not None


@pytest.mark.parametrize(("available_bytes", "together"), [(1e3, False), (1e12, True)])
def test_without_memory_for_all_ways_they_run_one_after_another(monkeypatch, available_bytes, together):
    timed, there = fastest._Contest._timed, []

    def noted(self, name):
        took_s = timed(self, name)
        there.append(len(self._running))
        return took_s

    monkeypatch.setattr(fastest._Contest, "_timed", noted)
    monkeypatch.setattr("runtime.graph_calls.available_bytes", lambda: available_bytes)
    model, x = towers(), batch(0)
    with doppler_tf.distribute(model, x, "cpu:2", None) as placed:
        assert {"TensorFlow alone, plain", "TensorFlow alone, frozen"} <= placed.ways.keys()
        assert (max(there) > 2) is together
        equal(placed(x), model(x))


def test_who_distributes_again_and_again_keeps_no_model():
    """Four models are kept for whoever reads them next."""
    def alive() -> tuple[int, int]:
        gc.collect()
        found = [type(each) for each in gc.get_objects()]
        return found.count(CapturedModel), found.count(CapturedCall)

    model, x, counts = towers(), batch(0), []
    for _ in range(7):
        with doppler_tf.distribute(model, x, "cpu:2", None, pieces=1, executor="engine") as placed:
            equal(placed(x), model(x))
        del placed
        counts.append(alive())
    assert counts[-1] == counts[-2] == counts[-3]


@pytest.mark.parametrize(("executor", "in_flight", "limits"), [
    ("engine", 2, {}), ("TensorFlow's executor", 1, {}), ("TensorFlow alone", 1, {}), ("TensorFlow alone", 2, {}),
    ("engine", 2, {"memory_bytes": 130}), pytest.param("engine", 5, {"memory_bytes": 130}, marks=pytest.mark.thorough)])
def test_what_came_before_a_batch_that_fails_counts_once(executor, in_flight, limits):
    seen = tf.Variable(0, name="seen")

    @tf.function
    def step(x):
        tf.debugging.assert_less(x, 100.0)
        return x * tf.cast(seen.assign_add(1), tf.float32)

    devices = 1 if limits else 2  # on one device two calls exceed the limit, whatever the order
    with doppler_tf.distribute(step, rows(4), f"cpu:{devices}", None, in_flight, executor=executor, **limits) as placed:
        results = placed.map([rows(4, 1), rows(4, 2), rows(4) + 1000.0, rows(4)])
        equal([next(results), next(results)], [tf.constant(rows(4, 1)), tf.constant(rows(4, 2)) * 2.0])
        with pytest.raises(ExecutionError):
            next(results)
        if limits:  # under which one call fits, and two at once need the host
            assert placed.trace.peak_tensor_bytes[0] <= 130
            assert placed.trace.peak_tensor_bytes.size == (2 if in_flight == 2 else 1)


def test_a_variable_that_changes_afterwards_is_told(monkeypatch):
    weight = tf.Variable(tf.ones([3, 3]), name="weight")
    with doppler_tf.distribute(lambda x: x @ weight, rows(4), "cpu:2", None) as placed:
        monkeypatch.setattr("runtime.models.fingerprints._BETWEEN_S", 0.0)
        placed(rows(4))
        weight.assign_add(tf.ones([3, 3]))
        with pytest.warns(UserWarning, match="variable 'weight' has changed since the function was distributed"):
            equal(placed(rows(4)), tf.constant(rows(4)) @ tf.ones([3, 3]))


def test_numbers_that_are_none():
    for name in ("in_flight", "pieces"):
        message = refusal(ConfigError, doppler_tf.distribute, towers(), batch(0), **{name: 0})
        assert_says(message, f"{name}: expected an integer >= 1, got 0")


def weighted(x, splits, scale):
    """Fails with splits, a sum or a scale that are drawn."""
    tf.debugging.assert_equal(tf.reduce_sum(x), 6.0)
    sums = tf.reduce_sum(tf.RaggedTensor.from_row_splits(x, splits), axis=1)
    return tf.ensure_shape(tf.boolean_mask(x, x > 1.0), [2]) * scale, sums


@pytest.mark.parametrize("in_flight", [1, 2])
def test_kernels_are_measured_with_the_values_of_the_example(in_flight):
    x, splits = np.array([1.0, 2.0, 3.0], np.float32), tf.constant([0, 2, 3])
    with doppler_tf.distribute(weighted, (x, splits, 2.0), topology="cpu:2", budget_s=None, pieces=1, in_flight=in_flight) as placed:
        equal(placed(x, splits, 2.0), weighted(x, splits, tf.constant(2.0)))
        ensured = refusal(ExecutionError, placed, np.array([4.0, 1.0, 1.0], np.float32), splits, 2.0)
    assert_says(ensured, "expected shape [2]")


def test_values_with_which_a_function_fails_are_the_users():
    x, splits = np.array([1.0, 2.0, 3.0], np.float32), tf.constant([0, 2, 3])
    for example, words in [((tf.TensorSpec([3]), splits, 2.0), "got drawn numbers for x: "), ((x + 1.0, splits, 2.0), "got others: ")]:
        message = refusal(ConfigError, doppler_tf.distribute, weighted, example, "cpu:2", None, pieces=1)
        assert_says(message, f"weighted: example_inputs: expected values with which the function runs, {words}")
