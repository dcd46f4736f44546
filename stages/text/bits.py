"""64-bit mixing, and the machine instructions that numba has no name for."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba import extending, types

intrinsic: Any = extending.intrinsic
"""Untyped: its published type has the typing context as an argument, which calls in kernels leave out."""

U32, U64 = np.uint32, np.uint64
P1, P2, P3 = U64(0x9E3779B97F4A7C15), U64(0xBF58476D1CE4E5B9), U64(0x94D049BB133111EB)
"""Odd constants of the splitmix64 generator: increment and the two multipliers of its finaliser."""
ONES, HIGH = U64(0x0101010101010101), U64(0x8080808080808080)


@intrinsic
def load64(typing_context, address):
    """The 8 bytes at an address as a little-endian number, aligned or not."""

    def generate(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(types.uintp), generate


@intrinsic
def store64(typing_context, address, x):
    """Write a number to an address as 8 little-endian bytes, aligned or not."""

    def generate(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store(args[1], pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uint64), generate


@intrinsic
def trailing_zeros(typing_context, x):
    """Zero bits below the lowest set bit; 64 for zero."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@nb.njit(inline="always")
def mix(x):
    """A bijection of 64-bit numbers in which every input bit reaches every output bit."""
    x = (x ^ (x >> U64(32))) * P2
    x = (x ^ (x >> U64(29))) * P3
    return x ^ (x >> U64(32))


@nb.vectorize([types.uint64(types.uint64)], cache=True)
def mixed(x):
    """`mix` of every element of a uint64 array."""
    x = (x ^ (x >> U64(32))) * P2
    x = (x ^ (x >> U64(29))) * P3
    return x ^ (x >> U64(32))
