"""When a change of a frozen variable is noticed."""

from __future__ import annotations

import warnings

import pytest
import tensorflow as tf

from runtime.models.fingerprints import Fingerprints


def test_the_first_call_looks_and_those_right_after_it_do_not():
    changed, updated = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    fingerprints = Fingerprints({"changed": changed.handle, "updated": updated.handle}, ["updated"])
    updated.assign(4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fingerprints.check("f")  # what the function updates itself does not count
        changed.assign([1.0, 0.0])
        fingerprints.check("f")
    fingerprints = Fingerprints({"changed": changed.handle}, [])
    changed.assign([0.0, 0.0])
    with pytest.warns(UserWarning, match="^f: variable 'changed' has changed since the function was distributed"):
        fingerprints.check("f")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fingerprints.check("f")  # it is told once
