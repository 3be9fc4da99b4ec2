"""Machines that are network namespaces of this computer, joined by a switch; only root can make them."""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from runtime.clusters.sockets import answers

PORT = 2222
_CLONE_NEWNET = 0x40000000
_NUMBERS = itertools.count()
_PATIENCE_S = 60.0


def allowed():
    """Whether namespaces can be made and their links shaped here."""
    try:
        with Machines(1) as machines:
            machines.shape(0, "1gbit")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


class Machines:
    """So many machines with addresses 10.77.0.1, 10.77.0.2, ...; leaving a `with` block kills what runs there and removes them."""

    def __init__(self, count):
        self.name = f"m{os.getpid()}x{next(_NUMBERS)}"
        self.count, self.running = count, []

    def __enter__(self):
        # Who is told to end removes them, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            _ip("netns", "add", f"{self.name}s")
            _ip("-n", f"{self.name}s", "link", "add", "switch", "up", "type", "bridge")
            for i in range(self.count):
                here = self.space(i)
                _ip("netns", "add", here)
                _ip("-n", here, "link", "add", "net", "type", "veth", "peer", "name", f"port{i}", "netns", f"{self.name}s")
                _ip("-n", f"{self.name}s", "link", "set", f"port{i}", "master", "switch", "up")
                _ip("-n", here, "addr", "add", f"{self.address(i)}/24", "dev", "net")
                for link in ("lo", "net"):
                    _ip("-n", here, "link", "set", link, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for process in self.running:
            process.kill()
            process.wait()
        for space in (*map(self.space, range(self.count)), f"{self.name}s"):
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def space(self, i):
        return f"{self.name}m{i}"

    def address(self, i):
        return f"10.77.0.{i + 1}"

    def enter(self, i):
        """Moves this process to a machine, on one core; call it before it has other threads."""
        with open(f"/run/netns/{self.space(i)}") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        os.sched_setaffinity(0, {self.core(i)})

    def core(self, i):
        cores = sorted(os.sched_getaffinity(1))
        return cores[i % len(cores)]

    def worker(self, i, devices=1):
        """Starts one and waits until it answers. Call it on a machine that reaches `i`."""
        command = [sys.executable, "-m", "doppler_tf", "worker", "--listen", f"{self.address(i)}:{PORT}", "--trust-network", "--devices",
                   str(devices)]
        process = subprocess.Popen(["ip", "netns", "exec", self.space(i), "taskset", "-c", str(self.core(i)), *command],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[1])
        self.running.append(process)
        until_s = time.perf_counter() + _PATIENCE_S
        while not answers(self.address(i), PORT, 1.0):
            if time.perf_counter() > until_s or process.poll() is not None:
                raise OSError("the worker does not start")
            time.sleep(0.1)
        return process

    def processes(self, i):
        """The ids of those that run on a machine."""
        found = subprocess.run(["ip", "netns", "pids", self.space(i)], check=True, capture_output=True, text=True)
        return [int(each) for each in found.stdout.split()]

    def shape(self, i, rate=None):
        """What machine `i` sends goes at this rate; None: at any."""
        if rate is None:
            _ip("netns", "exec", self.space(i), "tc", "qdisc", "del", "dev", "net", "root")
        else:
            _ip("netns", "exec", self.space(i), "tc", "qdisc", "replace", "dev", "net", "root", "tbf", "rate", rate, "burst", "256kb",
                "latency", "100ms")

    def cut(self, i, yes=True):
        """Takes machine `i` off the network, or puts it back."""
        _ip("-n", self.space(i), "link", "set", "net", "down" if yes else "up")


def stop(process, yes=True):
    """Stops a process, or lets it go on."""
    process.send_signal(signal.SIGSTOP if yes else signal.SIGCONT)


def _ip(*words):
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
