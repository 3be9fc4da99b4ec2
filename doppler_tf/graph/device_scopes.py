"""TensorFlow's device texts, such as /job:worker/task:1/device:GPU:0, and the devices of a topology that they mean."""

from __future__ import annotations

import re
from collections.abc import Sequence

_KIND = re.compile(r"(?<![a-z])(?:cpu|gpu|tpu)(?![a-z])", re.IGNORECASE)
# The job of the machine that runs the program, as clusters and TensorFlow call it.
_HERE = ("chief", "localhost", "master")


def is_scope(pin: object) -> bool:
    """Whether a pin is a device text of TensorFlow, not an index or the name of a device."""
    return isinstance(pin, str) and pin.startswith("/")


def devices_in_scope(scope: str, names: Sequence[str]) -> list[int]:
    """The devices of a topology that a device text means, none where it has no such device.

    `/GPU:1` is the second device whose name holds "GPU", in any case, whatever number stands in the name; `/GPU` and `/GPU:*` are all of
    them. What a text leaves open, any device fulfils. In a topology of several machines ("worker:2222/GPU:0") job and task tell the
    machine. Without them the number counts through all machines. In a topology of one machine jobs tell nothing, and the task is 0.

    Args: names: of the devices.
    """
    fields = dict(_field(part) for part in scope.strip("/").split("/") if part)
    kind, _, number = fields.get("device", "").partition(":")
    machines = [name.rpartition("/")[0] for name in names]
    wanted = _machines(fields, list(dict.fromkeys(machines)))
    return _numbered(number, [d for d, name in enumerate(names) if machines[d] in wanted and kind.upper() in ("", "*", _kind(name))])


def _field(part: str) -> tuple[str, str]:
    """"task:1" as it is; "GPU:0" as old texts write what others write as "device:GPU:0"."""
    key, _, value = part.partition(":")
    return (key, value) if key in ("job", "replica", "task", "device") else ("device", part)


def _kind(name: str) -> str | None:
    found = _KIND.search(name.rpartition("/")[2])
    return found and found[0].upper()


def _machines(fields: dict[str, str], machines: list[str]) -> list[str]:
    """Those that job and task name."""
    job = fields.get("job")
    if job is not None and len(machines) > 1:
        machines = [machine for machine in machines if (machine in _HERE) == (job in _HERE)]
    return _numbered(fields.get("task", ""), machines)


def _numbered(number: str, among: list) -> list:
    """The one of this number as a list, all for none or "*", nothing for what is no number or too high."""
    if number in ("", "*"):
        return among
    return among[int(number):int(number) + 1] if number.isdecimal() else []
