"""Einsum programs, their decomposition into dataflow graphs, workloads, and (in `data.imitation_dataset`) teacher episodes."""

from data.decompose import decompose
from data.eindecomp import LabelledOperation, LabelledTensor, eindecomp, labelled, moved_elements
from data.einsum_program import EinsumProgram, contract, elementwise, normal, reduction, tensor_input, view
from data.fusing import fuse
from data.gradients import gradients
from data.layered import Layered, layered_graph
from data.reference import assemble_outputs, evaluate_program, execute_tiles, input_tiles, output_vertices, relative_error
from data.training import Training, TrainingStep, training_step
from data.workloads import WORKLOADS, build_tilings, build_workload, workload_cuts, workload_program
from data.workloads.workload import Workload

__all__ = ["WORKLOADS", "EinsumProgram", "LabelledOperation", "LabelledTensor", "Layered", "Training", "TrainingStep", "Workload",
           "assemble_outputs", "build_tilings", "build_workload", "contract", "decompose", "eindecomp", "elementwise", "evaluate_program",
           "execute_tiles", "fuse", "gradients", "input_tiles", "labelled", "layered_graph", "moved_elements", "normal",
           "output_vertices", "reduction", "relative_error", "tensor_input", "training_step", "view", "workload_cuts", "workload_program"]
