"""The command line: one subcommand a file; may import every room, lazily."""

from doppler_tf.cli.app import main

__all__ = ["main"]
