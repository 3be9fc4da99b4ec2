"""The paper's figures, for comparison with ours: Yao et al., ICLR 2026, arXiv 2505.23131; milliseconds on 4 x P100."""

from __future__ import annotations

SOURCE = "Yao et al., ICLR 2026, arXiv 2505.23131"
_GRAPHS = ("chainmm", "ffnn", "llama_block", "llama_layer")


def _row(*figures_ms: float) -> dict[str, float]:
    return dict(zip(_GRAPHS, figures_ms, strict=True))


def _transfer(llama_block_ms: float, llama_layer_ms: float) -> dict[str, float]:
    return {"llama_block": llama_block_ms, "llama_layer": llama_layer_ms}


# Milliseconds by row and workload. Rows of the transfer table name the workload of the training.
FIGURES_MS: dict[str, dict[str, float]] = {
    "critical path": _row(230.4, 217.8, 230.9, 292.6),
    "Placeto": _row(137.1, 126.3, 411.5, 295.1),
    "GDP": _row(198.0, 100.3, 336.5, 231.5),
    "EnumOpt": _row(139.0, 50.2, 172.7, 174.8),
    "stages I+II": _row(122.5, 49.9, 191.5, 167.0),
    "all stages": _row(123.4, 47.4, 160.3, 150.6),
    "SEL only": _row(127.0, 59.1, 175.6, 161.7),
    "PLC only": _row(121.6, 63.2, 172.9, 159.5),
    "FFNN, zero-shot": _transfer(251.0, 206.1),
    "FFNN, 2,000 episodes": _transfer(165.3, 158.2),
    "FFNN, 4,000 episodes": _transfer(159.4, 155.8),
    "ChainMM, zero-shot": _transfer(242.3, 338.2),
    "ChainMM, 2,000 episodes": _transfer(184.9, 164.4),
    "ChainMM, 4,000 episodes": _transfer(174.0, 156.4),
}
# Times relative to the reference, if the paper gives no milliseconds (25% and 35% less than a synchronous system).
RATIOS: dict[str, dict[str, float]] = {"work conserving": {"chainmm": 0.75, "ffnn": 0.65}}
ROWS = (*FIGURES_MS, *RATIOS)
