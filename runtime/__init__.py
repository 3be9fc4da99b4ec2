"""The real executors: kernels or modelled waits on devices, driven by the dispatcher under the wall clock."""

from runtime.backend import Backend, Session
from runtime.devices import prepare_devices
from runtime.emulation import EmulatedBackend, EmulatedExecutor
from runtime.engine import Engine
from runtime.merged import MergedExecutor
from runtime.profiling.local import local_topology
from runtime.profiling.profiler import Effort, Profile, Profiler, profile
from runtime.synchronous import SynchronousExecutor
from runtime.tensors import TensorFlowBackend, TensorFlowExecutor

__all__ = ["Backend", "Effort", "EmulatedBackend", "EmulatedExecutor", "Engine", "MergedExecutor", "Profile", "Profiler", "Session",
           "SynchronousExecutor", "TensorFlowBackend", "TensorFlowExecutor", "local_topology", "prepare_devices", "profile"]
