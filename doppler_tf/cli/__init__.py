"""The command line, one file per command. It may import every room. Commands import when they run, so that --help is fast."""

from doppler_tf.cli.app import main

__all__ = ["main"]
