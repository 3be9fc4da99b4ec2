"""The user's `tf.device` scopes: which device texts an operation stands in, and the one pin that they make of a vertex."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from data.capture.operations import ALIASES, CALLS, CONTROL_FLOW, READERS
from data.capture.program import Node, Variable, library_functions

_Spec = tf.DeviceSpec
# They compute nothing, so that it does not matter where they stand.
_NOTHING = ALIASES | {"Const", "NoOp", "Placeholder"}


class Scopes:
    """Reads the device texts of operations, as TensorFlow merges them: what the operation leaves open, the call around it says."""

    def __init__(self, functions: Mapping[str, Any]):
        """Args: functions: FunctionDefs by name."""
        self._functions = functions

    def merged(self, record: tf.compat.v1.NodeDef, outside: str) -> str:
        """The text of an operation in a function that is called within `outside`."""
        return _spec(outside).make_merged_spec(_spec(record.device)).to_string() if record.device else outside

    def of(self, record: tf.compat.v1.NodeDef, outside: str) -> tuple[str, ...]:
        """All texts of an operation; a loop or branch has those of the operations that it runs, too."""
        text = self.merged(record, outside)
        inside = self._inside(record, text, set()) if record.op in CONTROL_FLOW else ()
        return tuple(dict.fromkeys(each for each in (text, *inside) if each and not _is_default(each)))

    def _inside(self, record: tf.compat.v1.NodeDef, outside: str, known: set[tuple[str, str]]) -> Iterable[str]:
        called = [*library_functions(record.attr), *([record.op] if record.op in self._functions else [])]
        for name in called:
            if (name, outside) in known:
                continue
            known.add((name, outside))
            for node in self._functions[name].node_def:
                text = self.merged(node, outside)
                if node.op not in _NOTHING:
                    yield text
                yield from self._inside(node, text, known)


def moved_to_variables(nodes: Mapping[str, Node], variables: Mapping[str, Variable], handles: Mapping[str, tf.Tensor]) -> None:
    """Gives operations that update or look into a variable its device instead of their own, as TensorFlow does.

    A variable where TensorFlow puts those without a scope asks for nothing; what updates it is free.

    Args: variables: by placeholder; handles: by name.
    """
    home = {key: text for key, variable in variables.items() if not _is_default(text := handles[variable.name].device)}
    for node in nodes.values():
        taken = [x for x, _ in node.inputs if x in variables]
        if taken and node.op not in CONTROL_FLOW | CALLS:
            wanted = tuple(home[x] for x in taken if x in home)[:1]
            node.scopes = wanted or (node.scopes if node.op in READERS else ())


def common_scope(scopes: Iterable[str]) -> str | None:
    """The device text that fulfils all; "" for none. None: they contradict each other."""
    fields: dict[str, object] = {}
    for spec in map(_spec, scopes):
        for key in ("job", "replica", "task", "device_type", "device_index"):
            value = getattr(spec, key)
            if value is not None and fields.setdefault(key, value) != value:
                return None
    return _Spec(**fields).to_string()


def has_one_device(scope: str) -> bool:
    """Whether a device text names kind and number."""
    return _spec(scope).device_index is not None


def _spec(text: str) -> _Spec:
    try:
        return _Spec.from_string(text)
    except ValueError:  # in files of others; TensorFlow itself would refuse to run it
        return _Spec()


@functools.cache
def _is_default(text: str) -> bool:
    """Whether it is the full name of the device where TensorFlow puts what has no scope: optimizers repeat that of their variables."""
    kind, spec = "GPU" if tf.config.list_physical_devices("GPU") else "CPU", _spec(text)
    return not text or (spec.job in ("localhost", "chief") and spec.replica == spec.task == spec.device_index == 0
                        and spec.device_type == kind)
