"""A training: its three stages, what they share, and what they leave."""
