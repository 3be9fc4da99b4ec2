"""The command line: one subcommand a file. It may import every room; commands import when they run, so that help comes at once."""

from doppler_tf.cli.app import main

__all__ = ["main"]
