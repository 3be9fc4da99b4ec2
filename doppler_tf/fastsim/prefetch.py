"""Asking the processor for a cache line before it is needed."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


@intrinsic
def prefetch(typing_context, array, index):
    """Fetches `array[index]` into the caches, in compiled code; an index out of bounds does nothing."""

    def generate(context, builder, signature, arguments):
        kind, byte, number = signature.args[0], ir.IntType(8).as_pointer(), ir.IntType(32)
        place = cgutils.get_item_pointer(context, builder, kind, context.make_array(kind)(context, builder, arguments[0]), [arguments[1]])
        llvm = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), [byte, number, number, number]),
                                              "llvm.prefetch.p0")
        builder.call(llvm, [builder.bitcast(place, byte), number(0), number(3), number(1)])  # to read, into all caches, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate
