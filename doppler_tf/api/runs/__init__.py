"""What a training run has left: its results, its curves, and `report`."""
