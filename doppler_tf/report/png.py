"""Figures as PNG."""

from __future__ import annotations

import io
import warnings

from matplotlib.figure import Figure


def png_bytes(figure: Figure) -> bytes:
    """The picture; characters that the font does not have are boxes in it, which needs no warning."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        figure.savefig(content, format="png")
    return content.getvalue()
