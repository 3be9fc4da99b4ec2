"""Batches of whole episodes in one compiled graph; the choices are those of a policy that runs step by step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from agents.episodes.episode import NEVER, EpisodeState, PaddedGraphs, device_options, extent, finished, initial_state, place_vertex
from agents.policies.losses import EpisodeLogProbability, masked_log_probability, order_log_probability, sums_before
from agents.policies.networks import DualNetwork, Tables
from agents.policies.race import Race, run_on, start_race, winner
from agents.policies.random_numbers import gumbel

_LOG = logging.getLogger(__name__)
# What makes at least so many steps, in all its batches, is compiled with XLA: below, the compiler takes longer than the steps.
STEPS_WORTH_COMPILING = 2000


class Episodes(NamedTuple):
    """The record of B episodes of T steps, with all that an update needs.

    Attributes:
      graph: int32 [B].
      order, device: int32 [B, T], what was chosen; the null vertex after the end.
      features: float32 [B, T, D, F], mask: bool [B, T, D], PLC's view at each step; anything after the end.
    """

    graph: tf.Tensor
    order: tf.Tensor
    device: tf.Tensor
    features: tf.Tensor
    mask: tf.Tensor


class Choice(NamedTuple):
    """One step's actions with PLC's view of it (`Options`)."""

    vertex: tf.Tensor
    device: tf.Tensor
    features: tf.Tensor
    mask: tf.Tensor
    start_s: tf.Tensor


def choose(network: DualNetwork, graphs: PaddedGraphs, tables: Tables, state: EpisodeState, placed: tf.Tensor, race: Race) -> Choice:
    """SEL picks a vertex among the candidates, PLC its device.

    Args:
      placed: float32 [B, D, hidden], `tables.plc_empty` and sums of `tables.plc_placed` by device.
      race: of the candidates of `state`; where it is greedy, PLC is too.
    """
    with tf.name_scope("SEL"):
        vertex = next_vertex(graphs, state, race)
    with tf.name_scope("PLC"):
        options = device_options(graphs, state, vertex)
        logits = device_logits(network, graphs, tables, state, placed, vertex, options.features)
        return Choice(vertex, choose_device(graphs, state, logits, options.mask, race.seed, race.greedy), *options)


def next_vertex(graphs: PaddedGraphs, state: EpisodeState, race: Race) -> tf.Tensor:
    """int32 [B]: SEL's choice. A finished episode has no candidate left; it "chooses" the null vertex."""
    return tf.where(finished(graphs, state), graphs.num_vertices - 1, winner(race))


def choose_device(graphs: PaddedGraphs, state: EpisodeState, logits: tf.Tensor, mask: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor
                  ) -> tf.Tensor:
    """int32 [B]: a device among those where `mask` [B, D] is True, the likeliest where `greedy` [B], else drawn from the softmax of
    `logits` [B, D]; seed: int32 [2]."""
    return draw(state, logits, mask, seed, greedy, tf.range(graphs.num_devices))


def choose_vertex(graphs: PaddedGraphs, state: EpisodeState, logits: tf.Tensor, mask: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor
                  ) -> tf.Tensor:
    """As `choose_device` of the vertices, logits and mask [B, N]; the null vertex where an episode is finished."""
    # Numbers of their own: 0 to D - 1 are the devices'.
    vertex = draw(state, logits, mask, seed, greedy, graphs.num_devices + tf.range(graphs.num_vertices))
    return tf.where(finished(graphs, state), graphs.num_vertices - 1, vertex)


def draw(state: EpisodeState, logits: tf.Tensor, mask: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """int32 [B]: the place of one of K entries (see `choose_device`); numbers: int32 [K], which random numbers each entry has."""
    noise = gumbel(seed, tf.range(tf.shape(logits)[0])[:, None], state.step[:, None], numbers[None])
    noisy = tf.where(greedy[:, None], logits, logits + noise)
    noisy = tf.where(mask, noisy, -tf.float32.max)
    return tf.argmax(noisy, axis=1, output_type=tf.int32)


def device_logits(network: DualNetwork, graphs: PaddedGraphs, tables: Tables, state: EpisodeState, placed: tf.Tensor, vertex: tf.Tensor,
                  features: tf.Tensor) -> tf.Tensor:
    """PLC's logits for `vertex` (int32 [B]) in `state`, float32 [B, D]."""
    return network.device_logits(tf.gather(tables.plc_vertex, state.graph * graphs.num_vertices + vertex), placed, features)


def after_placing(graphs: PaddedGraphs, tables: Tables, state: EpisodeState, placed: tf.Tensor, vertex: tf.Tensor,
                  device: tf.Tensor) -> tf.Tensor:
    """`placed` [B, D, hidden] once `vertex` is on `device`; finished episodes stay as they are."""
    active = tf.cast(tf.logical_not(finished(graphs, state)), tf.float32)
    row = state.graph * graphs.num_vertices + vertex
    added = tf.gather(tables.plc_placed, row) * active[:, None]
    return placed + tf.one_hot(device, graphs.num_devices)[..., None] * added[:, None, :]


class Rollout:
    """A method's episodes in compiled functions, each traced once for each shape of its arguments.

    Attributes:
      run: (graphs, graph, seed, greedy) -> `Episodes` of the policies as they are; graph: int32 [B], which graph each is of; seed: int32
        [2], which random numbers; greedy: bool [B], False samples from the policies, True takes the most likely.
      replay: (graphs, graph, order, device) -> `Episodes` of given choices (int32 [B, T] each), a teacher's for instance.
    """

    def __init__(self, network: tf.Module, jit_compile: bool = True, episodes: Callable[..., Episodes] | None = None,
                 replay: Callable[..., Episodes] | None = None):
        """Args: jit_compile: compile with XLA (once a shape); without it the same graphs run op by op; episodes: (network, graphs, graph,
        seed, greedy), SEL's and PLC's if None; replay: as the attribute, of choices in the order given if None."""
        episodes = episodes or dual_episodes

        def run(graphs: PaddedGraphs, graph: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor) -> Episodes:
            if jit_compile:
                _say_compiling(graphs.padded, graph.shape[0])
            return episodes(network, graphs, graph, seed, greedy)

        self.run = tf.function(run, autograph=False, jit_compile=jit_compile)
        self.replay = tf.function(replay or replayed, autograph=False, jit_compile=jit_compile)


def dual_episodes(network: DualNetwork, graphs: PaddedGraphs, graph: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor,
                  choose: Callable[..., Choice] = choose) -> Episodes:
    """Episodes of SEL and PLC, or of another function `choose` of a step's actions; the other arguments are those of `Rollout.run`.

    The cost of a step does not depend on the number of vertices: the state is updated in place, SEL's choice looks at two blocks
    of the race, PLC's at the neighbours of one vertex.
    """
    with tf.name_scope("encode"):
        tables = network.encode(graphs)
    with tf.name_scope("begin"):
        state = initial_state(graphs, graph)
        race = start_race(graphs, tables, state, seed, greedy)
        placed = tf.gather(tables.plc_empty, graph)

    def step(t: tf.Tensor, state: EpisodeState, placed: tf.Tensor, race: Race):
        choice = choose(network, graphs, tables, state, placed, race)
        with tf.name_scope("place"):
            placed = after_placing(graphs, tables, state, placed, choice.vertex, choice.device)
            state = place_vertex(graphs, state, choice.vertex, choice.device, choice.start_s)
            return choice, state, placed, run_on(graphs, tables, state, race, choice.vertex)

    return record_episodes(graphs, state, step, placed, race)


def replayed(graphs: PaddedGraphs, graph: tf.Tensor, order: tf.Tensor, device: tf.Tensor) -> Episodes:
    """The record of given episodes (int32 [B, T] each) in the order given, for any method's form of the graphs."""
    graphs = graphs.padded

    def step(t: tf.Tensor, state: EpisodeState):
        choice = Choice(order[:, t], device[:, t], *device_options(graphs, state, order[:, t]))
        return choice, place_vertex(graphs, state, choice.vertex, choice.device, choice.start_s)

    return record_episodes(graphs, initial_state(graphs, graph), step)


def _say_compiling(graphs: PaddedGraphs, episodes: int) -> None:
    """For the log, from functions that run only when a new shape is traced."""
    _LOG.info("compiling the policies' episodes with XLA, unless on disk: up to %s vertices and %s edges, %s devices, %s at a time",
              graphs.num_vertices - 1, graphs.edge.shape[0] // graphs.missing.shape[0], graphs.num_devices, episodes)


def record_episodes(graphs: PaddedGraphs, state: EpisodeState, step: Callable, *carried) -> Episodes:
    """Steps until the longest episode ends; `step(t, state, *carried)` gives a choice, and state and what is carried after it."""
    def body(t, state, carried, records):
        choice, state, *carried = step(t, state, *carried)
        records = tuple(record.write(t, value) for record, value in zip(records, choice[:4], strict=True))
        return t + 1, state, tuple(carried), records

    with tf.name_scope("episodes"):
        steps, lengths = graphs.num_vertices - 1, tf.gather(graphs.num_work, state.graph)
        records = tuple(tf.TensorArray(kind, steps) for kind in (tf.int32, tf.int32, tf.float32, tf.bool))
        longest, begin = tf.reduce_max(lengths), (tf.constant(0), state, carried, records)
        records = tf.while_loop(lambda t, *_: t < longest, body, begin, maximum_iterations=steps)[3]
        records = [tf.transpose(record.stack(), [1, 0, *range(2, rank)]) for record, rank in zip(records, (2, 2, 4, 3), strict=True)]
        order, device, features, mask = records
        over = tf.range(steps)[None] >= lengths[:, None]
        return Episodes(state.graph, tf.where(over, steps, order), tf.where(over, 0, device), features, mask | over[..., None])


def log_probability(network: DualNetwork, graphs: PaddedGraphs, episodes: Episodes) -> EpisodeLogProbability:
    """SEL's and PLC's log-probabilities of recorded episodes in one pass, differentiable, and the mask of real steps (bool [B, T])."""
    size, tables, valid = graphs.num_vertices, network.encode(graphs), real_steps(graphs, episodes)
    row = episodes.graph[:, None] * size + episodes.order
    logits = tf.gather(tf.reshape(tables.sel_logit, [-1, size]), episodes.graph)
    sel = order_log_probability(logits, episodes.order, available_steps(graphs, episodes), valid)
    added = tf.gather(tables.plc_placed, row) * tf.cast(valid, tf.float32)[..., None]
    placed = sums_before(tf.one_hot(episodes.device, graphs.num_devices)[..., None] * added[:, :, None, :])
    placed += tf.gather(tables.plc_empty, episodes.graph)[:, None]
    plc_logits = network.device_logits(tf.gather(tables.plc_vertex, row), placed, episodes.features)
    return sel, masked_log_probability(plc_logits, episodes.mask, episodes.device), valid


def real_steps(graphs: PaddedGraphs, episodes: Episodes) -> tf.Tensor:
    """bool [B, T]: False after the end of an episode."""
    return tf.range(extent(episodes.order, 1))[None] < tf.gather(graphs.num_work, episodes.graph)[:, None]


def available_steps(graphs: PaddedGraphs, episodes: Episodes) -> tf.Tensor:
    """int32 [B, N]: the step from which each vertex is a candidate, one after its last predecessor; NEVER for padding."""
    size, steps = graphs.num_vertices, extent(episodes.order, 1)
    number = graphs.missing.shape[0]
    count = tf.shape(episodes.order)[0]
    real = real_steps(graphs, episodes)
    episode = tf.repeat(tf.range(count)[:, None], steps, axis=1)
    at = tf.stack([episode, tf.where(real, episodes.order, size - 1)], axis=2)
    position = tf.tensor_scatter_nd_update(tf.zeros([count, size], tf.int32), at, tf.where(real, tf.range(steps)[None] + 1, 0))
    source, target = (tf.gather(tf.reshape(ends, [number, -1]) - tf.range(number)[:, None] * size, episodes.graph)
                      for ends in (graphs.source, graphs.target))
    into = tf.stack([tf.repeat(tf.range(count)[:, None], extent(source, 1), axis=1), target], axis=2)
    last = tf.tensor_scatter_nd_max(tf.zeros([count, size], tf.int32), into, tf.gather(position, source, batch_dims=1))
    return tf.where(tf.gather(graphs.is_real, episodes.graph), last, NEVER)
