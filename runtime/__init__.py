"""The real executors: kernels or modelled waits on devices, driven by the dispatcher under the wall clock."""

from runtime.backend import Backend, Session
from runtime.devices import prepare_devices
from runtime.emulation import EmulatedBackend, EmulatedExecutor
from runtime.engine import Engine
from runtime.synchronous import SynchronousExecutor
from runtime.tensors import TensorFlowBackend, TensorFlowExecutor

__all__ = ["Backend", "EmulatedBackend", "EmulatedExecutor", "Engine", "Session", "SynchronousExecutor", "TensorFlowBackend",
           "TensorFlowExecutor", "prepare_devices"]
