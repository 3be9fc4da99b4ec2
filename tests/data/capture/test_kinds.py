"""The table of what stateful operations do: none is missing, none stands in it twice, and nothing new is taken unseen."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from data.capture.kinds import TAKEN, Kind, kind_of, kinds_in_table
from data.capture.rewriting.effects import RESOURCE

# Stateful operations of TensorFlow 2.20 by kind. Where TensorFlow has others, someone has to look which, and to say here how many.
COUNTS = {Kind.PURE: 23, Kind.RANDOM: 26, Kind.CHECK: 2, Kind.REPORT: 3, Kind.VARIABLE: 62, Kind.CALL: 4, Kind.REFERENCE: 4, Kind.HANDLE: 7,
          Kind.TABLE: 21, Kind.DATA: 90, Kind.SUMMARY: 13, Kind.QUEUE: 75, Kind.DEVICES: 32, Kind.TPU: 122, Kind.FILES: 35,
          Kind.NETWORK: 9, Kind.PYTHON: 2, Kind.WORLD: 25}


@pytest.fixture(scope="module")
def registry():
    """All operations of this process."""
    operations = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return {op.name: op for op in operations.op}


def test_every_stateful_operation_is_of_one_kind(registry):
    stateful = [name for name, op in registry.items() if op.is_stateful]
    kinds = {name: kinds_in_table(name) for name in stateful}
    assert {name: found for name, found in kinds.items() if len(found) != 1} == {}
    assert Counter(found[0] for found in kinds.values()) == COUNTS


def test_what_is_taken_is_stateful_and_exists(registry):
    """A name of the table that TensorFlow does not have is a slip of the pen."""
    taken = {name for name in registry if kinds_in_table(name) and kinds_in_table(name)[0] in TAKEN}
    assert all(registry[name].is_stateful for name in taken)
    variables = [name for name in taken if kind_of(name, {}) is Kind.VARIABLE]
    assert all(registry[name].input_arg[0].type == RESOURCE for name in variables)


def test_other_operations_compute_unless_they_are_known_to_do_more(registry):
    others = {name: kind_of(name, {}) for name, op in registry.items() if not op.is_stateful}
    assert {others[name] for name in ("MatMul", "StatelessRandomUniformV2", "StringLength", "TensorListReserve", "NoOp")} == {Kind.PURE}
    assert [others[name] for name in ("ReadFile", "PyFuncStateless", "Abort")] == [Kind.FILES, Kind.PYTHON, Kind.WORLD]
    references = [name for name, op in registry.items() if any(arg.is_ref for arg in (*op.input_arg, *op.output_arg))]
    assert all(kind_of(name, {}) not in TAKEN for name in references)
    computing = [name for name, kind in others.items() if kind is Kind.PURE]
    assert not [name for name in computing if re.search("ReadFile|WriteFile|PyFunc|Dataset|LookupTable|Queue", name)]


def test_what_is_not_of_tensorflow_is_refused():
    assert kind_of("NobodysOperation", {}) is Kind.UNREGISTERED


@pytest.mark.parametrize(("op", "field", "harmless", "file"), [
    ("PrintV2", "output_stream", b"stderr", b"file:///tmp/log"),
    ("FixedUnigramCandidateSampler", "vocab_file", b"", b"/tmp/words"),
])
def test_an_attribute_may_name_a_file(op, field, harmless, file):
    assert kind_of(op, {field: tf.compat.v1.AttrValue(s=harmless)}) in TAKEN
    assert kind_of(op, {field: tf.compat.v1.AttrValue(s=file)}) is Kind.FILES
