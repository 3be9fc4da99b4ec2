"""What each operation of TensorFlow does beside making tensors: one table, which holds every stateful operation of the registry once.

TensorFlow marks an operation stateful so that it is neither merged nor dropped. Most marked ones touch something, some do not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from enum import Enum

import tensorflow as tf
from tensorflow.python.framework import op_def_registry


class Kind(Enum):
    """What an operation does; for what is refused, how an error says it, and the remedy."""

    PURE = ("computes", "")
    RANDOM = ("draws random numbers", "")
    CHECK = ("raises an error where a value is wrong", "")
    REPORT = ("prints or asserts", "")
    VARIABLE = ("reads or updates a variable", "")
    CALL = ("calls functions", "")
    REFERENCE = ("is part of a reference variable of TensorFlow 1 that the function updates",
                 "save the model again with resource variables (tf.compat.v1.enable_resource_variables() before it is built)")
    HANDLE = ("makes or deletes a variable", "make the variable once, before the function is traced")
    TABLE = ("uses a lookup table",
             "look up outside of the function and pass the numbers, or use tf.gather or a Hashing layer, which need no table")
    DATA = ("uses a data set or an iterator", "take the batch outside of the function and pass it as an argument")
    SUMMARY = ("writes a summary (tf.summary)", "return the value and write the summary outside of the function")
    QUEUE = ("keeps tensors between calls (a queue, a stack, an accumulator, a lock)",
             "pass tensors as arguments, and keep state in a tf.Variable")
    DEVICES = ("talks to other devices or processes (a collective, a send, a receive)",
               "capture the function of one replica, outside of a distribution strategy; doppler_tf places it on devices")
    TPU = ("runs on TPUs or is made by XLA", "export the model for CPU and GPU")
    FILES = ("reads or writes files", "do that outside of the function, or `capture --allow-unsafe` if you trust the function")
    NETWORK = ("uses the network", "do that outside of the function, or `capture --allow-unsafe` if you trust the function")
    PYTHON = ("calls Python", "write it with operations of TensorFlow, or `capture --allow-unsafe` if you trust the function")
    WORLD = ("touches what is outside of the function (the clock, the session, hidden state, the process)",
             "take it out of the function, or `capture --allow-unsafe` if you trust the function")
    CUSTOM = ("comes from another package and may touch files, the network, Python or hidden state",
              "take it out of the function, or `capture --allow-unsafe` if you trust the package")
    UNREGISTERED = ("is not registered in this process", "import the package that registers it before")


# Kinds that a capture takes; all else is refused.
TAKEN = frozenset((Kind.PURE, Kind.RANDOM, Kind.CHECK, Kind.REPORT, Kind.VARIABLE, Kind.CALL))
# Regular expressions, each for whole names. What is taken is named one by one, what is refused may be a family. An operation that is not
# stateful stands here only if it does more than compute all the same.
_TABLE = {
    # Empty and TensorArrays live within a call and are made anew in each. A StableHLO module (XlaCallModule) computes; what it calls of
    # TensorFlow are functions of the library, which are looked into.
    Kind.PURE: r"""DeepCopy DeviceIndex Empty GraphDefVersion GuaranteeConst IsTensorFloat32Enabled StatelessRandomGetAlg StackV2
        StackPushV2 StackPopV2 StackCloseV2 XlaCallModule TensorArrayV3 TensorArray(Close|Concat|Gather|Read|Scatter|Size|Split|Write)V3
        TensorArrayGradV3 TensorArrayGradWithShape""",
    Kind.RANDOM: r"""AllCandidateSampler CudnnRNN(Backprop)?(V2|V3)? FixedUnigramCandidateSampler LearnedUnigramCandidateSampler
        LogUniformCandidateSampler Multinomial NonDeterministicInts ParameterizedTruncatedNormal RandomCrop RandomGamma RandomPoisson(V2)?
        RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt SampleDistortedBoundingBox(V2)?
        ThreadUnsafeUnigramCandidateSampler TruncatedNormal UniformCandidateSampler""",
    Kind.CHECK: r"""CheckNumerics CheckNumericsV2""",
    Kind.REPORT: r"""Assert Print PrintV2""",
    Kind.VARIABLE: r"""AssignVariableOp AssignAddVariableOp AssignSubVariableOp DisableCopyOnRead ReadVariableOp ResourceGather
        ResourceGatherNd VariableShape VarIsInitializedOp RngReadAndSkip RngSkip ResourceCountUpTo ResourceStridedSliceAssign
        Resource(Sparse)?Apply(Ada(delta|grad(DA|V2)?|Max|m(WithAmsgrad)?)|AddSign|CenteredRMSProp|Ftrl(V2)?|GradientDescent)
        Resource(Sparse)?Apply((Keras)?Momentum|PowerSign|Proximal(Adagrad|GradientDescent)|RMSProp)
        ResourceScatter(Add|Div|Max|Min|Mul|Sub|Update|Nd(Add|Max|Min|Sub|Update)) StatefulRandomBinomial StatefulStandardNormal(V2)?
        StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt StatefulUniformInt""",
    Kind.CALL: r"""If While Case StatefulPartitionedCall""",
    Kind.REFERENCE: r"""Variable(V2)? TemporaryVariable NegTrain""",
    Kind.HANDLE: r"""VarHandleOp _VarHandlesOp _XlaAotOnlyVarHandleOp _ReadVariablesOp DestroyResourceOp MakeWeakResourceHandle
        IsResourceHandleRefCounting""",
    Kind.TABLE: r"""(Anonymous)?(Mutable)?(Dense)?HashTable(OfTensors)?(V2)? InitializeTable\w* LookupTable\w+""",
    Kind.DATA: r"""\w*(?<!TableFrom)Dataset\w* \w*Iterator\w* \w*MemoryCache \w*SeedGenerator (Experimental)?ThreadPoolHandle
        (Experimental)?StatsAggregator\w* DummyIterationCounter""",
    Kind.SUMMARY: r"""SummaryWriter Create\w+Writer (Close|Flush)SummaryWriter Write\w*Summary ImportEvent""",
    Kind.QUEUE: r"""(Fake|FIFO|PaddingFIFO|Priority|RandomShuffle)Queue(V2)? Queue\w+ Barrier\w* Stack\w*(?<!V2)(?<!Dataset) Stage\w*
        Unstage (Ordered)?Map(Clear|IncompleteSize|Peek|Size|Stage|Unstage|UnstageNoKey) (Resource|Sparse)?ConditionalAccumulator
        ResourceAccumulator\w+ (Sparse)?Accumulator\w+ MutexV2 (Consume)?MutexLock \w+(To|From)TensorsMap Batch Unbatch(Grad)?
        BatchFunction TensorArray(V2)? TensorArrayGrad(V2)? (Is)?BoostedTrees(?!Aggregate|Bucketize|Calculate|Make|Sparse)\w+""",
    Kind.DEVICES: r"""_?Send _?Recv _Host(Send|Recv) Collective\w+ _?Nccl\w+ AllToAll DTensor(?!SetGlobal)\w+ RemoteCall SyncDevice""",
    Kind.TPU: r"""\w*TPU\w* (Infeed|Outfeed)\w+ _?Xla(?!CallModule|Optimization|AotOnly)\w+ CrossReplicaSum RiscWhile ConvertToCooTensor
        ComputeDedupData\w+ GetMinibatch\w+ GlobalIterId StoreMinibatchStatisticsInFdo UpdateTaskIdAndGlobalCoreArray
        (Read|Assign)VariableXla\w+""",
    Kind.FILES: r"""ReadFile WriteFile MatchingFiles Save(V2|Slices)? Restore(V2|Slice)? DistributedSave MergeV2Checkpoints
        LoadAndRemapMatrix (FixedLengthRecord|Identity|LMDB|TextLine|TFRecord|WholeFile)Reader(V2)? Reader\w+ RecordInput Skipgram
        ImmutableConst FileSystemSetConfiguration GenerateVocabRemapping DecodeProtoV2 EncodeProto DumpTensor DebugIdentityV[23]
        CalibrationStatisticsSaver""",
    Kind.NETWORK: r"""Rpc\w+ DeleteRpcFutureResource WorkerHeartbeat""",
    Kind.PYTHON: r"""PyFunc EagerPyFunc PyFuncStateless""",
    Kind.WORLD: r"""Abort Timestamp Sleep(Identity)?Op GetSession\w+ DeleteSessionTensor SymbolicGradient _Arg _Retval _DeviceArg
        _DeviceRetval _If _While _ParallelConcatStart _ScopedAllocator\w* DevicePlacementOp DtypeWithDefaultOp TestAttr
        RequiresOlderGraphVersion StubResourceHandleOp Resource(CreateOp|InitializedOp|UsingOp)""",
}
_PATTERNS = {kind: re.compile("|".join(text.split())) for kind, text in _TABLE.items()}
# Operations of these names read or write a file only if an attribute says so.
_FILE_ATTRIBUTES = {"FixedUnigramCandidateSampler": ("vocab_file", re.compile(b".")),
                    "PrintV2": ("output_stream", re.compile(b"file://"))}


def kinds_in_table(op: str) -> list[Kind]:
    """The lines of the table that an operation is in."""
    return [kind for kind, pattern in _PATTERNS.items() if pattern.fullmatch(op)]


@functools.cache
def _kind(op: str) -> Kind:
    named = kinds_in_table(op)
    if named:
        return named[0]
    definition = op_def_registry.get(op)
    if definition is None:
        return Kind.UNREGISTERED
    if any(arg.is_ref for arg in (*definition.input_arg, *definition.output_arg)):
        return Kind.REFERENCE
    return Kind.CUSTOM if definition.is_stateful else Kind.PURE


def kind_of(op: str, attr: Mapping[str, tf.compat.v1.AttrValue]) -> Kind:
    """What an operation does beside making tensors. One that is neither stateful nor in the table computes."""
    field, pattern = _FILE_ATTRIBUTES.get(op, ("", None))
    if field in attr and pattern.match(attr[field].s):
        return Kind.FILES
    return _kind(op)
