"""What TensorFlow's operations mean to a capture: which compute, which only pass on, which keep functions."""

from __future__ import annotations

# They do what a function does.
CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
# Outputs are the inputs, one by one. `EnsureShape` is none where it learns a shape that only a run knows.
ALIASES = frozenset(("Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot", "PlaceholderWithDefault", "EnsureShape",
                     "DebugGradientIdentity", "OptimizationBarrier", "XlaOptimizationBarrier"))
# Functions of the shape alone.
SHAPES = frozenset(("Shape", "ShapeN", "Size", "Rank", "VariableShape"))
LOOPS = frozenset(("While", "StatelessWhile"))
BRANCHES = frozenset(("If", "StatelessIf", "Case", "StatelessCase"))
# A call that is left after inlining is a loop or branch of TensorFlow 1.
CONTROL_FLOW = LOOPS | BRANCHES | CALLS
# They read a variable and leave it as it is; all else that takes one updates it.
READERS = frozenset(("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp", "DisableCopyOnRead"))
# They change their first input where it lies.
IN_PLACE = frozenset(("InplaceAdd", "InplaceSub", "InplaceUpdate"))
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
