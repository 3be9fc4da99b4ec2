"""Captured models: their pieces, inputs and outputs, and the ways to run them."""
