"""Graphs as arrays, and an episode as pure functions of them."""
