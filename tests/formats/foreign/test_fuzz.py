"""Whatever stands in a foreign file: it is read, and then works, or it is refused in one line by an error of ours."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler_tf.errors import UserError
from doppler_tf.formats.foreign.conversion import convert
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.simulator import simulate
from tests.formats.foreign.files import DAGGEN, DOT, OLDER_SAGA, PROTOTYPE, SAGA, STG, STG_WITH_COSTS, WFFORMAT, older_wfformat
from tests.formats.test_fuzz import accepted, mutated, write

OLDER = older_wfformat("tasks", "runtime", "size")
PIECES = st.sampled_from(["", " ", "\n", "0", "-1", "1e400", "nan", "99999999999999999999", "a", "é", '"', "->", "--", "{", "}", "[", "]",
                          ";", "=", ":", "<", "<b>", "/*", "//", "#", "\\", "node", "subgraph x", "weight=2", "size=3", "\0"])


def works(path, format):
    found = accepted(lambda: convert(path, format))
    if found is not None:
        costs = accepted(lambda: build_costs(found.graph, found.topology or cpu(2)))
        if costs is not None:
            accepted(lambda: simulate(found.graph, costs, [0] * found.graph.num_vertices))


@given(st.data(), st.sampled_from([(SAGA, "saga"), (OLDER_SAGA, "saga"), (WFFORMAT, "wfformat"), (OLDER, "wfformat")]))
def test_documents(tmp_path_factory, data, case):
    document, format = case
    works(write(tmp_path_factory, data.draw(mutated(document))), data.draw(st.sampled_from([format, None])))


@given(st.data(), st.sampled_from([(STG, "stg"), (STG_WITH_COSTS, "stg"), (PROTOTYPE, "stg"), (DOT, "dot"), (DAGGEN, "dot")]))
def test_texts(tmp_path_factory, data, case):
    text, format = case
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(PIECES) + text[at + data.draw(st.integers(0, 6)):]
    path = tmp_path_factory.getbasetemp() / f"fuzz.{format}"
    path.write_text(text)
    works(path, data.draw(st.sampled_from([format, None])))


@pytest.mark.parametrize("name", ["x.json", "x.stg", "x.dot", "x"])
def test_files_that_are_nothing(tmp_path, name):
    for content in (b"\xff\xfe{", b"[" * 99_999, b'{"task_graph": ' + b"9" * 5000 + b"}", b"", b"\0", b"{}", b"[]", b"3", b"nan"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=r"^[^\n]+$"):
            convert(tmp_path / name)


def test_json_with_infinity_as_other_tools_write_it(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(SAGA).replace("null", "Infinity"))
    assert convert(path).topology.num_devices == 2
