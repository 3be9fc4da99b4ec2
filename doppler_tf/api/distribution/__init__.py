"""`distribute`: candidates, the fastest of them, and calls."""
