"""docs/files.md is what docs/files.py makes of the first lines, which every file has."""

from __future__ import annotations

from docs import files


def test_the_page_is_up_to_date():
    assert files.page() == files.PAGE.read_text(encoding="utf-8"), "python -m docs.files writes it anew"


def test_every_file_says_in_its_first_line_what_it_does():
    silent = [str(path) for folder in files.folders() for path in folder.glob("*.py")
              if path.name != "__init__.py" and len(files.first_line(path).split()) < 2]
    assert not silent
