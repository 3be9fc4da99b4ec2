"""The Llama block, the whole layer with its head, and stacks of layers (Touvron et al., arXiv 2302.13971; 7B shapes).

For 4 devices, block and layer are tiled like the paper's. Every block of a stack is tiled like the layer's; a stack of one is the layer.

Differences from the published graphs for 4 devices (182 vertices and 234 edges, here 178 and 232; the layer 229, here 213):
  - Their graphs have 19 vertices that seem to cast between float16 and float32. Here a tile has one type throughout.
  - The rotary embedding is x cos + rotate_half(x) sin, with four maps per tile. Theirs has five, to complex numbers and back.
  - A tile of several producers is assembled by a re-tiling vertex (5; 6 in the layer). Their consumers read the producers directly.
  - Every norm is tiled tokens x features, like their first. Their second runs on whole tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from data.einsum_program import EinsumProgram, contract, elementwise, normal, reduction, tensor_input, view
from data.steps import Expression, Input, View
from data.tiling import Tiling
from data.training import Training
from data.workloads.workload import Workload, fitted, near_square
from doppler_tf.errors import ConfigError, field_error

NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0
MASKED = -1e4  # finite even in float16; its exp is 0 in every precision


def _norm(name: str, source: str, dim: int) -> tuple[Expression, ...]:
    """RMSNorm (Zhang & Sennrich, arXiv 1910.07467): x / sqrt(mean(x^2) + eps) * weight."""
    return (elementwise(f"{name}_square", "square", "t c -> t c", source),
            reduction(f"{name}_total", "sum", "t c -> t", f"{name}_square"),
            elementwise(f"{name}_mean", "scale", "t -> t", f"{name}_total", factor=1 / dim, offset=NORM_EPSILON),
            elementwise(f"{name}_rsqrt", "rsqrt", "t -> t", f"{name}_mean"),
            elementwise(f"{name}_unit", "mul", "t c, t -> t c", source, f"{name}_rsqrt"),
            elementwise(name, "mul", "t c, c -> t c", f"{name}_unit", f"{name}_weight"))


def _rotary(name: str, source: str, time: str) -> tuple[Expression, ...]:
    """Rotary embedding (Su et al., arXiv 2104.09864) with paired halves: x cos + rotate_half(x) sin."""
    at = f"{time} h d"
    return (elementwise(f"{name}_turned", "rotate_half", f"{at} -> {at}", source),
            elementwise(f"{name}_cos", "mul", f"{at}, {time} d -> {at}", source, "cos"),
            elementwise(f"{name}_sin", "mul", f"{at}, {time} d -> {at}", f"{name}_turned", "sin"),
            elementwise(name, "add", f"{at}, {at} -> {at}", f"{name}_cos", f"{name}_sin"))


def _attention(causal: bool, factor: float) -> tuple[Expression, ...]:
    """Queries, keys, values, softmax attention (with a mask if `causal`), and the output projection."""
    mask = (elementwise("masked", "add", "h t s, t s -> h t s", "scaled", "mask"),) if causal else ()
    scores = "masked" if causal else "scaled"
    return (contract("q", "t c, c h d -> t h d", "norm1", "wq"),
            contract("k", "s c, c h d -> s h d", "norm1", "wk"),
            contract("v", "s c, c h d -> s h d", "norm1", "wv"),
            *_rotary("q_rotary", "q", "t"), *_rotary("k_rotary", "k", "s"),
            contract("scores", "t h d, s h d -> h t s", "q_rotary", "k_rotary"),
            elementwise("scaled", "scale", "h t s -> h t s", "scores", factor=factor, offset=0.0), *mask,
            reduction("max", "max", "h t s -> h t", scores),
            elementwise("shifted", "sub", "h t s, h t -> h t s", scores, "max"),
            elementwise("exp", "exp", "h t s -> h t s", "shifted"),
            reduction("total", "sum", "h t s -> h t", "exp"),
            elementwise("weights", "div", "h t s, h t -> h t s", "exp", "total"),
            contract("mixed", "h t s, s h d -> t h d", "weights", "v"),
            contract("projected", "t h d, h d c -> t c", "mixed", "wo"))


def _feed_forward() -> tuple[Expression, ...]:
    """SwiGLU (Shazeer, arXiv 2002.05202): (silu(x W1) * x W3) W2."""
    return (contract("gate", "t c, c f -> t f", "norm2", "w1"),
            elementwise("silu", "silu", "t f -> t f", "gate"),
            contract("up", "t c, c f -> t f", "norm2", "w3"),
            elementwise("gated", "mul", "t f, t f -> t f", "silu", "up"),
            contract("down", "t f, f c -> t c", "gated", "w2"))


def _angles(shape: tuple[int, ...]) -> np.ndarray:
    """Position times frequency, [tokens, head_dim], the same for both halves."""
    half = shape[1] // 2
    angle = np.arange(shape[0])[:, None] * ROTARY_BASE ** (-np.arange(half) / half)
    return np.concatenate([angle, angle], axis=1)


def _inputs(c: int, f: int) -> dict[str, Input]:
    """A block's inputs: activations of unit variance, weights of variance 1 / fan-in, norm weights near 1, and rotary tables."""
    near_one = normal(0.1, 1.0)
    return {"x": tensor_input("t c"), "norm1_weight": tensor_input("c", near_one), "norm2_weight": tensor_input("c", near_one),
            **{name: tensor_input("c h d", normal(c**-0.5)) for name in ("wq", "wk", "wv")},
            "wo": tensor_input("h d c", normal(c**-0.5)),
            "w1": tensor_input("c f", normal(c**-0.5)), "w3": tensor_input("c f", normal(c**-0.5)),
            "w2": tensor_input("f c", normal(f**-0.5)),
            "cos": tensor_input("t d", lambda rng, shape: np.cos(_angles(shape))),
            "sin": tensor_input("t d", lambda rng, shape: np.sin(_angles(shape)))}


def _head_inputs(c: int) -> dict[str, Input]:
    """A layer's further inputs: the mask, and the weights of the last norm and the head."""
    return {"mask": tensor_input("t s", lambda rng, shape: np.triu(np.full(shape, MASKED), 1)),
            "norm_weight": tensor_input("c", normal(0.1, 1.0)), "head_weight": tensor_input("c v", normal(c**-0.5))}


def _labels(sizes: Mapping[str, int]) -> dict[str, int]:
    dim, heads = sizes["dim"], sizes["heads"]
    if dim % (2 * heads):
        raise field_error(ConfigError, "workload", "llama", "dim", f"a multiple of 2 * heads = {2 * heads}", dim)
    return {"t": sizes["tokens"], "s": sizes["tokens"], "c": dim, "h": heads, "d": dim // heads, "f": sizes["ffn"]}


def _block(dim: int, heads: int, causal: bool) -> tuple[Expression, ...]:
    """Attention and feed-forward with their norms and residuals, from x to y."""
    return (*_norm("norm1", "x", dim), *_attention(causal, (dim // heads) ** -0.5),
            elementwise("attended", "add", "t c, t c -> t c", "x", "projected"),
            *_norm("norm2", "attended", dim), *_feed_forward(), elementwise("y", "add", "t c, t c -> t c", "attended", "down"))


def _head(source: str, sizes: Mapping[str, int], every_token: bool = False) -> tuple[Expression | View, ...]:
    """The logits of every token or of the last one."""
    norm = _norm("norm", source, sizes["dim"])
    if every_token:
        return *norm, contract("head", "t c, c v -> t v", "norm", "head_weight")
    return *norm, view("last", "u c", "norm", u=sizes["tokens"] - 1), contract("head", "u c, c v -> u v", "last", "head_weight")


def _block_program(sizes: Mapping[str, int]) -> EinsumProgram:
    return EinsumProgram(_labels(sizes), _inputs(sizes["dim"], sizes["ffn"]), _block(sizes["dim"], sizes["heads"], causal=False))


def _layer_program(sizes: Mapping[str, int]) -> EinsumProgram:
    return EinsumProgram({**_labels(sizes), "v": sizes["vocab"], "u": 1},
                         _inputs(sizes["dim"], sizes["ffn"]) | _head_inputs(sizes["dim"]),
                         (*_block(sizes["dim"], sizes["heads"], causal=True), *_head("y", sizes)))


def _stack_program(sizes: Mapping[str, int], every_token: bool = False) -> EinsumProgram:
    """Blocks in a row. Each reads the block before and has its own weights. The tensors of block i are named `Li.name`."""
    block, known = _block(sizes["dim"], sizes["heads"], causal=True), _inputs(sizes["dim"], sizes["ffn"])
    inputs = {name: known.pop(name) for name in ("x", "cos", "sin")} | _head_inputs(sizes["dim"])
    steps, x = [], "x"
    for layer in range(sizes["layers"]):
        names = {name: f"L{layer}.{name}" for name in (*known, *(step.name for step in block))}
        inputs |= {names[name]: weight for name, weight in known.items()}
        read = {"x": x, **names}
        steps += [replace(step, name=names[step.name], operands=tuple(replace(use, tensor=read.get(use.tensor, use.tensor))
                                                                      for use in step.operands)) for step in block]
        x = names["y"]
    return EinsumProgram({**_labels(sizes), "v": sizes["vocab"], "u": 1}, inputs, (*steps, *_head(x, sizes, every_token)))


def _tiling(program: EinsumProgram, num_devices: int) -> Tiling:
    """Every contraction has one block per device, a x b. Other expressions are tiled like their neighbours."""
    a, b = near_square(num_devices)
    rows, heads, hidden = {"t": a, "c": b}, {"h": a, "s": b}, {"f": num_devices}
    parts = {"norm1": rows, "q": {"c": b, "h": a}, "k": heads, "v": heads,
             **dict.fromkeys(("scores", "scaled", "masked", "max", "shifted", "exp", "total", "weights", "mixed"), heads),
             "projected": {"h": a, "c": b}, "attended": {"c": b}, "norm2": rows,
             **dict.fromkeys(("gate", "silu", "up", "gated", "down"), hidden),
             "y": rows, "norm": rows, "head": {"v": num_devices}}
    # A name is stem or stem_step, with the prefix "Li." in a stack. The steps of a norm or rotary embedding are tiled like their stem.
    stems = {expression.name: expression.name.rpartition(".")[2].partition("_")[0] for expression in program.expressions}
    return fitted(program, {expression.name: {label: count for label, count in parts[stems[expression.name]].items()
                                              if label in expression.space} for expression in program.expressions})


PAPER, SMALL = {"tokens": 4096, "dim": 4096, "heads": 32, "ffn": 11_008}, {"tokens": 512, "dim": 512, "heads": 8, "ffn": 1376}
PAPER_HEAD, SMALL_HEAD = {**PAPER, "vocab": 32_000}, {**SMALL, "vocab": 2048}
DATA = ("x", "cos", "sin")
NEXT_TOKEN = Training("softmax_cross_entropy", "head", (*DATA, "mask"), ("max",))
LLAMA_BLOCK = Workload(PAPER, SMALL, _block_program, _tiling, Training("mean_squared_error", "y", DATA, ("max",)))
LLAMA_LAYER = Workload(PAPER_HEAD, SMALL_HEAD, _layer_program, _tiling, NEXT_TOKEN)
# A stack learns from the next token of every token, as models of language do.
LLAMA_STACK = Workload({**PAPER_HEAD, "layers": 32}, {**SMALL_HEAD, "layers": 2}, _stack_program, _tiling, NEXT_TOKEN,
                       partial(_stack_program, every_token=True))
