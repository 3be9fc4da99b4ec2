"""The page of a `bench` in Markdown: prose as given, tables and pictures as measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from doppler_tf.report.results import Table, markdown_table


def page(title: str, text: str, sections: Sequence[Mapping[str, Any]], failures: Mapping[str, str], made_by: str) -> str:
    """The page.

    Args:
      sections: each with `title`, `text`, `table` (None: prose alone), and `pictures`, paths from the page by caption.
      failures: by cell, why it failed; they end the page.
      made_by: the command, which opens it.
    """
    parts = [f"# {title}" if title else "", f"<!-- made by `{made_by}`; do not edit -->", text.strip()]
    for section in sections:
        parts += [f"## {section['title']}" if section["title"] else "", section["text"].strip()]
        if section["table"] is not None:
            parts.append(markdown_table(section["table"]))
        parts += [f"![{caption}]({path})" for caption, path in section["pictures"].items()]
    if failures:
        table: Table = (["cell", "error"], [[f"`{key}`", error] for key, error in failures.items()])
        parts += ["## Cells that failed", markdown_table(table).replace("---:", "---")]
    return "\n\n".join(part for part in parts if part) + "\n"
