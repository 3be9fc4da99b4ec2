"""Learned baselines: other methods than DOPPLER's, in the same trainer."""
