"""Use of a trained policy: here, and as a SavedModel that needs none of our code."""
