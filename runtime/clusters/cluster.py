"""The devices of several machines: connects to TensorFlow's servers, notices those that no longer answer, and takes them back."""

from __future__ import annotations

import atexit
import copy
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from doppler_tf.errors import ConfigError, DeviceLostError
from doppler_tf.formats.cluster_json import CHIEF, WORKER, ClusterSpec
from doppler_tf.graph.topology import Topology
from runtime.clusters.server import CHANNELS
from runtime.clusters.sockets import answers, cut, hear_only, own_address
from runtime.devices import count_local_devices, prepare_devices, server_of

# A server that works on all its cores still answers within this.
ANSWER_S = 2.5
# TensorFlow reads these at every call, or when it is initialised. Without `streaming` a call on another machine returns when it is done,
# and Python's lock is free meanwhile. A worker fetches a tensor from a chief in half the time that the chief takes to send it.
_SETTINGS = {"TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE": "false"} | CHANNELS
_FETCH = {"TF_EAGER_REMOTE_USE_SEND_TENSOR_RPC": "false"}


class Cluster:
    """A connection to all workers of a cluster. A process has one at a time; `close()` forgets workers that do not answer.

    Attributes:
      spec: the addresses.
      devices: TensorFlow names: those of this process if it is the chief, then those of the workers in turn; of each machine its GPUs, else
        its CPU devices.
    """

    def __init__(self, spec: ClusterSpec, timeout_s: float = 10.0):
        """Connects. As chief, this process brings the devices that `local` has.

        Raises:
          ConfigError: a worker does not answer within `timeout_s`, this process cannot be the chief, or TensorFlow is initialised.
        """
        self.spec = spec
        self._address = {f"/job:{WORKER}/replica:0/task:{i}": address for i, address in enumerate(spec.workers)}
        self._lost: set[str] = set()
        self._forgotten: set[str] = set()  # those that TensorFlow does not know any more
        if len({_resolved(*address) for address in spec.workers}) < len(spec.workers):
            raise ConfigError(f"{spec.name}: worker: expected different machines or ports, got one twice under two names: "
                              f"{', '.join(map(_text, spec.workers))}; leave one out")
        for address in spec.workers:
            if not answers(*address, timeout_s):
                raise ConfigError(f"{spec.name}: worker {_text(address)}: expected a TensorFlow server that answers within "
                                  f"{timeout_s:g} s, got none; start `doppler-tf worker` there, or take it out of the file")
        if context.context()._initialized:
            raise ConfigError(f"{spec.name}: expected to connect before TensorFlow's first operation of the process, got one that is "
                              f"initialised; connect first")
        job = "localhost" if spec.chief is None else CHIEF
        jobs = {WORKER: [_text(address) for address in spec.workers], **({} if spec.chief is None else {CHIEF: [_text(spec.chief)]})}
        settings = _SETTINGS if spec.chief is None else _SETTINGS | _FETCH
        self._before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            host = own_address("127.0.0.1" if spec.chief is None else spec.chief[0])
            if spec.chief is not None:
                prepare_devices(count_local_devices(), beside=False)
            tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(jobs), job_name=job, task_index=0)
            self._server_def = copy.deepcopy(context.get_server_def())
            mine = next(each for each in self._server_def.cluster.job if each.name == job).tasks[0]
            # This initialises TensorFlow if need be. Its server listens only then.
            names = [device.name for device in tf.config.list_logical_devices()]
            hear_only(host, int(mine.rpartition(":")[2]))
        except (tf.errors.OpError, RuntimeError, OSError) as error:
            self._restore()
            raise ConfigError(f"{spec.name}: expected a cluster to connect to, got {str(error).splitlines()[0]}; a chief's address must "
                              f"belong to this machine, and its port be free") from None
        places = [*([f"/job:{CHIEF}/replica:0/task:0"] if spec.chief else []), *self._address]
        self.devices = [name for place in places for name in _best(each for each in names if each.startswith(f"{place}/"))]
        atexit.register(self.close)

    @property
    def name(self) -> str:
        """Equal for clusters of the same machines."""
        return ", ".join(map(self.place, self.devices))

    def named(self, topology: Topology) -> Topology:
        """The topology with devices named by machine. Unless it has cards, what a machine sends to others goes through one network card."""
        machines = [self.place(device).rpartition(" ")[2] for device in self.devices]
        names = [f"{machine}/{device.rpartition('device:')[2]}" for machine, device in zip(machines, self.devices, strict=True)]
        number = np.unique(machines, return_inverse=True)[1]
        card = np.where(number[:, None] == number, -1, number[:, None]) if topology.card is None else topology.card
        return replace(topology, card=card,
                       devices=tuple(replace(device, name=name) for device, name in zip(topology.devices, names, strict=True)))

    def place(self, device: str) -> str:
        """The machine of a TensorFlow device, as messages name it."""
        server = server_of(device)
        return "chief" if server is None else f"worker {_text(self._address[server])}"

    def lost_among(self, devices: Iterable[str]) -> str | None:
        """The first of these TensorFlow devices whose machine does not answer. Calls in progress on it fail at once, now and later."""
        servers = {device: server for device in devices if (server := server_of(device)) is not None}
        silent = {*self._lost, *self._silent({*servers.values()} - self._lost, ANSWER_S)}
        for server in silent - self._lost:
            self.lose(server)
        return next((device for device, server in servers.items() if server in silent), None)

    def lose(self, server: str) -> None:
        """Notes that a machine is gone."""
        self._lost.add(server)
        cut(*self._address[server])

    def take_back(self, devices: Sequence[str], used: Iterable[int], ask_all: bool = False) -> set[str]:
        """Connects again to lost machines that answer.

        Args: devices: TensorFlow names; used: which of them are needed now; ask_all: whether all others still answer, too.

        Returns:
          The servers that are back: tensors that were there are gone.

        Raises:
          DeviceLostError: one that is needed is on a machine that still does not answer.
        """
        needed = self._lost & {server_of(devices[d]) for d in used}
        back = needed - {*self._silent(needed, ANSWER_S)}
        self._lost -= back
        if ask_all:
            self.lost_among(self.devices)
        if back or self._lost != self._forgotten:
            self._update()
        for d in used:
            if server_of(devices[d]) in self._lost:
                raise DeviceLostError(f"{self.place(devices[d])} does not answer", d)
        return back

    def close(self) -> None:
        """Forgets workers that do not answer, for which TensorFlow would wait when the process ends, and restores the environment."""
        self._lost |= {*self._silent({*self._address} - self._lost, ANSWER_S)}
        if self._lost != self._forgotten:
            self._update()
        self._restore()
        atexit.unregister(self.close)

    def _restore(self) -> None:
        """Restores the environment."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _update(self) -> None:
        """Tells TensorFlow which workers there are now. It says good-bye to those that have left, and would wait for their answer."""
        members = copy.deepcopy(self._server_def)
        tasks = next(job for job in members.cluster.job if job.name == WORKER).tasks
        for i, server in enumerate(self._address):
            if server in self._lost:
                del tasks[i]
        context.context().update_server_def(members)
        self._forgotten = set(self._lost)

    def _silent(self, servers: Iterable[str], timeout_s: float) -> list[str]:
        """Those that do not answer."""
        return [server for server in sorted(servers) if not answers(*self._address[server], timeout_s)]


def _resolved(host: str, port: int) -> tuple[str, int]:
    """The address as numbers; as it is if the name is not known."""
    try:
        return min(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))[4][:2]
    except OSError:
        return host, port


def _best(names: Iterable[str]) -> list[str]:
    names = list(names)
    return [name for name in names if ":GPU:" in name] or [name for name in names if ":CPU:" in name]


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
