"""Devices beside the process's own: what they know, what they forget, and what they leave as it is."""

import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe

from runtime.calls import XLA, CapturedCall, _zeros, execute_on
from runtime.devices import context_of, make_known
from tests.captured_models import Spec


@pytest.fixture
def device(four_devices):
    if "CPU" not in four_devices[3]:
        pytest.skip("GPUs have no devices beside")
    return four_devices[3]


def traced(compute):
    return tf.function(compute, autograph=False).get_concrete_function(Spec([2]))


def known(device, name):
    return pywrap_tfe.TFE_ContextHasFunction(context_of(device), name)


def test_a_device_is_in_both_contexts(device):
    assert device in [each.name for each in tf.config.list_logical_devices()]
    (made,) = execute_on(device, "Identity", [tf.ones([2])], ("T", tf.float32.as_datatype_enum))
    np.testing.assert_array_equal(made + 1.0, [2.0, 2.0])  # the process's own context takes it
    assert context_of(device) is not context_of("/device:GPU:77")


@pytest.mark.parametrize("beside", [True, False])
def test_what_two_threads_fill_on_one_device_keeps_its_shape(device, beside):
    """TensorFlow may exchange the operands of operations that start together; a hundredth of these fills had another's shape."""
    where, shapes = (device if beside else f"/job:localhost/replica:0/task:0{device}"), [(i, 5 - i) for i in range(1, 5)]

    def fill(i):
        return tuple(_zeros(tf.TensorSpec(shapes[i % 4], tf.float32), where).shape)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(fill, range(4000))) == shapes * 1000


def test_a_call_that_two_threads_make_at_once_stays(device):
    """What the slower of them had made was forgotten with it, and the call named it."""
    for _ in range(5):
        call, together = CapturedCall("twice", traced(lambda x: x * 2.0), build=XLA), Barrier(2)

        def first(_, call=call, together=together):
            together.wait()
            return call([tf.ones([2])], device)[0].numpy().tolist()

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(first, range(2))) == [[2.0, 2.0]] * 2
        gc.collect()
        np.testing.assert_array_equal(call([tf.ones([2])], device)[0], [2.0, 2.0])


def test_functions_are_forgotten_with_the_last_that_calls_them(device):
    inner = traced(lambda x: x * 2.0)
    outers = [traced(lambda x, k=k: inner(x) + float(k)) for k in range(2)]
    names = [inner.name, *(outer.name for outer in outers)]
    for function in (*outers, inner, inner):
        make_known(function, device)
    assert all(known(device, name) for name in names)
    del outers[0], function
    gc.collect()
    assert [known(device, name) for name in names] == [True, False, True]
    np.testing.assert_array_equal(execute_on(device, names[2], [tf.ones([2])])[0], [3.0, 3.0])
    outers.clear()
    gc.collect()
    assert [known(device, name) for name in names] == [True, False, False]
    np.testing.assert_array_equal(execute_on(device, names[0], [tf.ones([2])])[0], [2.0, 2.0])


def test_the_process_keeps_its_threads(four_devices):
    assert tf.config.threading.get_intra_op_parallelism_threads() == 0
