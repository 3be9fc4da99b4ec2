"""Every error that the system raises on purpose; each message is one line that names the culprit and the remedy."""

from __future__ import annotations


class DopplerError(Exception):
    """Base of all errors of this system. The message is one line, whatever names and paths it quotes."""

    def __init__(self, message: object = ""):
        super().__init__(" ".join(str(message).splitlines()))


class UserError(DopplerError):
    """The user's mistake: bad input, an impossible request. The command line exits with code 2."""


class GraphError(UserError):
    """A graph that breaks a rule of `DataflowGraph`."""


class TopologyError(UserError):
    """A topology that is malformed or unknown."""


class CostError(UserError):
    """Graph and topology do not give every cost, or contradict each other."""


class AssignmentError(UserError):
    """An assignment that does not fit its graph or topology."""


class TraceError(UserError):
    """A trace file that cannot be read, or does not belong to its graph."""


class FormatError(UserError):
    """A file that is missing, unreadable or not in the expected format."""


class ConfigError(UserError):
    """An option that is unknown or out of range."""


class DatasetError(UserError):
    """An imitation dataset that is missing, damaged or made for another graph."""


class CheckpointError(UserError):
    """A run folder or checkpoint that cannot be used."""


class DeadlockError(DopplerError):
    """Nothing runs and nothing that waits fits in memory."""


class ExecutionError(DopplerError):
    """A kernel, transfer or device failed while an assignment was executed."""


class DeviceLostError(ExecutionError):
    """A device is gone for good; a backend raises it from whatever it was asked to do there."""

    def __init__(self, message: object = "", device: int | None = None):
        """Args: device: index of the device."""
        super().__init__(message)
        self.device = device


class StalledError(ExecutionError):
    """A vertex or transfer has not ended within the time that the caller allowed."""


class CancelledError(DopplerError):
    """A run was cancelled before its end, at the caller's wish."""


class Described(str):
    """What is said of a value in place of the value itself: `shown` does not quote it."""

    __repr__ = str.__str__


def shown(value) -> str:
    """`repr` of a value from outside, cut to 80 characters; it never fails."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= 80 else text[:77] + "..."


def field_error(error: type[DopplerError], where: str, what: str, field: str, expected: str, got, remedy: str = "") -> DopplerError:
    """Builds the one-line message that all input checks share: where, what, field, expected, got, remedy."""
    tail = f"; {remedy}" if remedy else ""
    subject = "".join(f"{part}: " for part in (where, what) if part)
    return error(f"{subject}{field}: expected {expected}, got {shown(got)}{tail}")
