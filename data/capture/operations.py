"""What TensorFlow's operations mean to a capture: which compute, which only pass on, which touch the world outside."""

from __future__ import annotations

# They do what a function does.
CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
# Outputs are the inputs, one by one.
ALIASES = frozenset(("Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot", "PlaceholderWithDefault", "EnsureShape",
                     "DebugGradientIdentity", "OptimizationBarrier", "XlaOptimizationBarrier"))
# Functions of the shape alone.
SHAPES = frozenset(("Shape", "ShapeN", "Size", "Rank", "VariableShape"))
LOOPS = frozenset(("While", "StatelessWhile"))
BRANCHES = frozenset(("If", "StatelessIf", "Case", "StatelessCase"))
CONTROL_FLOW = LOOPS | BRANCHES
# They read a variable and leave it as it is; all else that takes one updates it.
READERS = frozenset(("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"))
# Random numbers whose state TensorFlow hides.
RANDOM = frozenset(("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal",
                    "RandomShuffle", "RandomGamma", "RandomPoisson", "RandomPoissonV2", "Multinomial", "RandomCrop"))
# Stateful, and yet safe to run in the function's order.
ORDERED = RANDOM | {"Assert", "Print", "PrintV2"}
# TensorFlow calls them stateful for reasons of its own.
PURE = frozenset(("StatelessRandomGetAlg", "StatelessRandomGetKeyCounter", "EmptyTensorList", "TensorListReserve",
                  "NoOp"))
# Not stateful in TensorFlow's eyes; they reach files, the network or Python.
UNSAFE = frozenset(("ReadFile", "MatchingFiles", "PyFuncStateless", "FileSystemSetConfiguration", "RemoteCall", "SymbolicGradient",
                    "XlaHostCompute", "DecodeProtoV2", "EncodeProto", "InitializeTable"))
# One pass over tensors of one size, or two.
ELEMENTWISE = frozenset((
    "Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "Asin", "Asinh", "AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp",
    "Atan", "Atan2", "Atanh", "BiasAdd", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "ClipByValue", "Complex", "ComplexAbs",
    "Conj", "Cos", "Cosh", "Digamma", "Div", "DivNoNan", "Elu", "EluGrad", "Equal", "Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Floor",
    "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Imag", "Inv", "InvGrad", "IsFinite", "IsInf", "IsNan", "LeakyRelu", "LeakyReluGrad",
    "Less", "LessEqual", "Lgamma", "Log", "Log1p", "LogSoftmax", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mod",
    "Mul", "MulNoNan", "Ndtri", "Neg", "NotEqual", "OnesLike", "Pow", "Real", "RealDiv", "Reciprocal", "ReciprocalGrad", "Relu", "Relu6",
    "Relu6Grad", "ReluGrad", "Rint", "Round", "Rsqrt", "RsqrtGrad", "Select", "SelectV2", "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad",
    "Sign", "Sin", "Sinh", "Softmax", "Softplus", "SoftplusGrad", "Softsign", "Sqrt", "SqrtGrad", "Square", "SquaredDifference", "Sub",
    "Tan", "Tanh", "TanhGrad", "TruncateDiv", "TruncateMod", "Xdivy", "Xlogy", "ZerosLike"))
# They change the shape and move nothing.
VIEWS = frozenset(("Reshape", "Squeeze", "ExpandDims"))
