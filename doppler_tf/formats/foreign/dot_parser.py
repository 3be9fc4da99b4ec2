"""A parser of DOT, the language of Graphviz: vertices and edges with the attributes that they have or that were set before them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from doppler_tf.errors import FormatError, shown

_TOKEN = re.compile(r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|\#[^\n]*)
                      | (?P<mark>->|--|[{}\[\];,:=+])
                      | (?P<number>-?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][+-]?\d+)?(?![\w.]))
                      | (?P<name>[^\W\d]\w*)
                      | "(?P<text>(?:[^"\\]|\\.)*)" """, re.VERBOSE | re.DOTALL)
_KEYWORDS = ("strict", "graph", "digraph", "node", "edge", "subgraph")
Attributes = dict[str, str]


@dataclass
class DotGraph:
    """What a file says. A port is no part of an end of an edge.

    Attributes:
      vertices: attributes by name, in the order in which the names appear.
      edges: (source, target, attributes).
    """

    name: str = ""
    directed: bool = True
    vertices: dict[str, Attributes] = field(default_factory=dict)
    edges: list[tuple[str, str, Attributes]] = field(default_factory=list)


class _Token(NamedTuple):
    kind: str  # mark, keyword, id or end
    text: str
    at: int


def parse_dot(text: str, where: str) -> DotGraph:
    """Reads the one graph in a text. Args: where: the file, for messages. Raises FormatError with line and column."""
    try:
        return _Parser(text, where).graph()
    except RecursionError:
        raise FormatError(f"{where}: DOT nested too deeply; expected a few subgraphs in one another") from None


class _Parser:
    def __init__(self, text: str, where: str):
        self.text, self.where, self.at = text, where, 0
        self.tokens = self._tokens()
        self.found = DotGraph()
        self.strict: dict[tuple[str, str], Attributes] | None = None

    def graph(self) -> DotGraph:
        if self._take_keyword("strict"):
            self.strict = {}
        kind = self._next()
        if kind.kind != "keyword" or kind.text not in ("graph", "digraph"):
            self._fail("digraph", kind)
        self.found.directed = kind.text == "digraph"
        if self._peek().kind == "id":
            self.found.name = self._id()
        self._expect("{")
        self._statements({}, {})
        if self._peek().kind != "end":
            self._fail("the end of the file, after one graph", self._peek())
        return self.found

    def _statements(self, of_vertices: Attributes, of_edges: Attributes) -> list[str]:
        """Everything up to the closing brace; returns the vertices in it."""
        inside: dict[str, None] = {}
        while not self._take("}"):
            if self._take(";") or self._take(","):
                continue
            token = self._peek()
            if token.kind == "keyword" and token.text in ("graph", "node", "edge"):
                self._next()
                attributes = self._attributes()
                {"node": of_vertices, "edge": of_edges}.get(token.text, {}).update(attributes)
                continue
            ends, alone = self._end(of_vertices, of_edges)
            if alone and self._take("="):
                self._id()  # an attribute of the graph; a vertex of its name it is not
                continue
            self._edges(ends, alone, of_vertices, of_edges, inside)
        return list(inside)

    def _edges(self, first: list[str], alone: bool, of_vertices: Attributes, of_edges: Attributes, inside: dict[str, None]) -> None:
        """A statement of a vertex, a subgraph, or a chain of edges between such."""
        chain = [first]
        while self._peek().kind == "mark" and self._peek().text in ("->", "--"):
            mark = self._next()
            if (mark.text == "->") != self.found.directed:
                self._fail("-> in a digraph, -- in a graph", mark)
            chain.append(self._end(of_vertices, of_edges)[0])
        given = self._attributes() if self._peek().text == "[" and self._peek().kind == "mark" else {}
        for name in (name for ends in chain for name in ends):
            inside[name] = None
            self.found.vertices.setdefault(name, dict(of_vertices))
        if len(chain) == 1 and alone:
            self.found.vertices[first[0]].update(given)
        for sources, targets in itertools.pairwise(chain):
            for source in sources:
                for target in targets:
                    self._edge(source, target, {**of_edges, **given})

    def _edge(self, source: str, target: str, attributes: Attributes) -> None:
        if self.strict is not None:
            if (source, target) in self.strict:
                self.strict[source, target].update(attributes)
                return
            self.strict[source, target] = attributes
        self.found.edges.append((source, target, attributes))

    def _end(self, of_vertices: Mapping, of_edges: Mapping) -> tuple[list[str], bool]:
        """The vertices of a subgraph, or a vertex; and whether it is a vertex."""
        if self._take_keyword("subgraph"):
            if self._peek().kind == "id":
                self._id()
            self._expect("{")
            return self._statements(dict(of_vertices), dict(of_edges)), False
        if self._take("{"):
            return self._statements(dict(of_vertices), dict(of_edges)), False
        name = self._id()
        while self._take(":"):
            self._id()
        return [name], True

    def _attributes(self) -> Attributes:
        found: Attributes = {}
        self._expect("[")
        while True:
            while not self._take("]"):
                name = self._id()
                found[name] = self._id() if self._take("=") else "true"
                if not self._take(","):
                    self._take(";")
            if not self._take("["):
                return found

    def _id(self) -> str:
        token = self._next()
        if token.kind != "id":
            self._fail("a name", token)
        text = token.text
        while self._take("+"):
            text += self._id()
        return text

    def _take(self, mark: str) -> bool:
        token = self._peek()
        if token.kind == "mark" and token.text == mark:
            self.at += 1
            return True
        return False

    def _take_keyword(self, word: str) -> bool:
        if self._peek().kind == "keyword" and self._peek().text == word:
            self.at += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            self._fail(mark, self._peek())

    def _peek(self) -> _Token:
        return self.tokens[self.at]

    def _next(self) -> _Token:
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)  # the end stays
        return token

    def _tokens(self) -> list[_Token]:
        found, at, text = [], 0, self.text
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                if text[at] != "<":
                    self._fail("a name, a number or a mark", _Token("", text[at:at + 20], at))
                end = self._html_end(text, at)
                found.append(_Token("id", text[at:end], at))
                at = end
                continue
            kind = match.lastgroup or ""
            value = match[kind]
            if kind == "text":
                found.append(_Token("id", re.sub(r'\\(["\\\n])', lambda pair: pair[1].strip("\n"), value), at))
            elif kind == "name" and value.lower() in _KEYWORDS:
                found.append(_Token("keyword", value.lower(), at))
            elif kind != "skip":
                found.append(_Token("mark" if kind == "mark" else "id", value, at))
            at = match.end()
        return [*found, _Token("end", "the end of the file", len(text))]

    def _html_end(self, text: str, at: int) -> int:
        depth, end = 0, at
        while end < len(text):
            depth += {"<": 1, ">": -1}.get(text[end], 0)
            end += 1
            if depth == 0:
                return end
        return self._fail(">", _Token("end", "the end of the file", at))

    def _fail(self, expected: str, token: _Token) -> int:
        line = self.text.count("\n", 0, token.at) + 1
        column = token.at - self.text.rfind("\n", 0, token.at)
        raise FormatError(f"{self.where}: malformed DOT at line {line}, column {column}: expected {expected}, got {shown(token.text)}; "
                          f"mend the file")
