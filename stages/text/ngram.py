"""Kernels of the byte n-gram language model; `ngram_model` is what stages call.

With x_1 .. x_n the bytes of a document and 0xFF, which UTF-8 never holds, before the first:

    P_0     = 1/256
    P_k(c|h) = [hc kept] n(hc) / (n(h) + T(h)) + g(h) P_{k-1}(c | h without its oldest byte)      k = 1 .. 6
    g(h)    = 1 - sum over the kept c of the first term, 1 where h has none
    R(c)    = w [c followed these six bytes the last time in this document] + (1 - w) P_6(c)
    P(c)    = 63/64 R(c) + 1/64 1/256

n are raw counts and T(h) is the number of distinct bytes after h: interpolated Witten-Bell smoothing. What is pruned
leaves its mass to g, so the probabilities of the 256 next bytes sum to 1 in any table. w grows with the hits in a row.
The uniform floor holds a byte of a script that training never met to 14 bits.

Layout. An n-gram of k bytes is a number with the newest byte on top. Levels 1 and 2 are dense: `pairs[older + 256
newer]` holds P_2 and, beside it, the g that the pair has as a context. Levels 3 to 6 share one table of 2^bits
entries of 64 bits: check 32 | g of the n-gram as a context 16 | its n / (n + T) 16. The hash of an n-gram is a
bijection whose upper bits are the slot and whose lower 32 the check, so a false hit has odds of 2^-32 a look-up.
There is no probing; of two n-grams that want one slot the one with the lower level, then the larger count, then the
smaller key is kept. The g that level k + 1 needs at the next byte stands in the entry that level k reads at this one:
a load per level and byte.
"""

from __future__ import annotations

import math

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from stages.text.bits import P1, U32, U64, mix

ORDER = 6
START = U64(0xFFFFFFFFFFFFFFFF)
TAGS = (np.arange(ORDER + 1, dtype=np.uint64) * U64(0xA24BAED4963EE407)).astype(np.uint64)
"""Added to the key of a level, so that equal bytes of two levels have unrelated slots."""
T3, T4, T5, T6 = (U64(tag) for tag in TAGS[3:])
CHECK, LOW16, IN_SLOT = U64(0xFFFFFFFF), U64(0xFFFF), U64(1 << 32)

SMALLEST = U32((127 - 15) << 23)
"""Bits of the float32 2^-15. Stored probabilities are float32 above it with 4 exponent and 12 mantissa bits."""
ONE16, ONE32 = U64(15 << 12), U32(127 << 23)

BLOCK = 64
"""Bytes whose loads are in flight at a time. The product of 64 probabilities of at least 2^-14 is a normal float64."""
REPEATS = 1 << 14
FLOOR = 1 / 64
REPEAT_WEIGHTS = np.array(
    [0.0, 0.24, 0.49, 0.66, 0.70, 0.77, 0.77, 0.82, 0.85, 0.85, 0.85, 0.86, 0.87, 0.88, 0.88, 0.88, 0.88]
)
"""w with nothing to repeat, then by hits in a row so far: fitted by expectation maximisation on unseen documents."""


def _bitcast(llvm_type, numba_type, argument):
    @intrinsic
    def cast(typing_context, x):
        def generate(context, builder, signature, args):
            return builder.bitcast(args[0], llvm_type)

        return numba_type(argument), generate

    return cast


_to_bits = _bitcast(ir.IntType(32), types.uint32, types.float32)
_to_float = _bitcast(ir.FloatType(), types.float32, types.uint32)


@intrinsic
def _prefetch(typing_context, array, index):
    """Ask for the cache line of array[index] without waiting for it."""

    def generate(context, builder, signature, args):
        byte_pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), byte_pointer)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", (byte_pointer,), ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
        )
        builder.call(prefetch, [address, flag(0), flag(3), flag(1)])  # to read, keep in all caches, data
        return context.get_dummy_value()

    return types.void(array, index), generate


@nb.njit(cache=True)
def pack(p):
    """A probability as 16 bits, to the nearest; 0 below 2^-15."""
    bits = _to_bits(np.float32(p))
    return U32(0) if bits < SMALLEST else min((bits - SMALLEST + U32(1 << 10)) >> U32(11), U32(LOW16))


@nb.njit(cache=True)
def unpack(packed):
    return _to_float((U32(packed) << U32(11)) + SMALLEST)


@nb.njit(nogil=True, cache=True)
def fill_windows(data, starts, ends, windows):
    """The last six bytes at every position, newest in the top byte: an n-gram of length k is the upper k bytes."""
    n = 0
    for document in range(len(starts)):
        recent = START
        for position in range(starts[document], ends[document]):
            recent = (recent >> U64(8)) | (U64(data[position]) << U64(56))
            windows[n] = recent >> U64(16) << U64(16)
            n += 1


@nb.njit(inline="always")
def _find(key, level, shift, table, levels):
    """Slot of an n-gram while the table is built, -1 where it is not in it."""
    h = mix(key + TAGS[level])
    slot = nb.intp(h >> shift)
    return slot if levels[slot] == level and (table[slot] >> U64(32)) == (h & CHECK) else -1


@nb.njit(inline="always")
def _find_context(key, level, shift, table, levels):
    """Where the context of an n-gram keeps its sums: a pair by itself, a longer one in its slot; -1 where pruned."""
    context = key & ((U64(1) << U64(8 * (level - 1))) - U64(1))
    return nb.intp(context) if level == 3 else _find(context, level - 1, shift, table, levels)


@nb.njit(nogil=True, cache=True)
def place(keys, counts, level, least, shift, table, levels, owners):
    """Give the n-grams of a level, keys ascending, their slots. Levels are placed in order, so lower ones stay."""
    for i in range(len(keys)):
        if counts[i] < least or _find_context(keys[i], level, shift, table, levels) < 0:
            continue
        h = mix(keys[i] + TAGS[level])
        slot = nb.intp(h >> shift)
        if levels[slot] == 0 or (levels[slot] == level and owners[slot] < counts[i]):
            levels[slot], owners[slot], table[slot] = level, counts[i], (h & CHECK) << U64(32)


@nb.njit(nogil=True, cache=True)
def weigh(keys, counts, level, shift, table, levels, mass, held):
    """Write n / (n + T) of a placed level; mass becomes n + T and held the sum of what was written, by context."""
    for i in range(len(keys)):
        context = _find_context(keys[i], level, shift, table, levels)
        if context >= 0:
            mass[context] += counts[i] + 1
    for i in range(len(keys)):
        slot = _find(keys[i], level, shift, table, levels)
        if slot >= 0:
            context = _find_context(keys[i], level, shift, table, levels)
            packed = pack(counts[i] / mass[context])
            held[context] += unpack(packed)
            table[slot] |= U64(packed) | (ONE16 << U64(16))


@nb.njit(nogil=True, cache=True)
def set_escapes(level, table, levels, mass, held):
    """Write g of the n-grams of a level, from what `weigh` of the level above gathered."""
    for slot in range(len(table)):
        if levels[slot] == level and mass[slot] > 0:
            g = U64(pack(max(1.0 - held[slot], 0.0)))
            table[slot] = (table[slot] & ~(LOW16 << U64(16))) | (g << U64(16))


@nb.njit(inline="always")
def _ask(table, shift, key):
    h = mix(key)
    _prefetch(table, nb.intp(h >> shift))  # type: ignore[call-arg]  # numba adds the first argument
    return h


@nb.njit(inline="always")
def _entry(table, shift, h):
    """The entry of a hash with its check bits turned to zeros where they agree."""
    return table[nb.intp(h >> shift)] ^ ((h & CHECK) << U64(32))


@nb.njit(inline="always")
def _term(entry):
    """The n / (n + T) of an entry, 0 for another n-gram's entry: by mask, since a branch on it is a coin toss."""
    kept = U32(0) - U32(entry < IN_SLOT)
    return _to_float(((U32(entry & LOW16) << U32(11)) + SMALLEST) & kept)


@nb.njit(inline="always")
def _escape(entry):
    """The g of an entry, 1 for another n-gram's entry."""
    kept = U32(0) - U32(entry < IN_SLOT)
    return _to_float((((U32((entry >> U64(16)) & LOW16) << U32(11)) + SMALLEST) & kept) | (ONE32 & ~kept))


@nb.njit(nogil=True, cache=True)
def set_bits(data, offsets, documents, table, pairs, shift, weights, bits):
    """bits[d] = -log2 P of each of the documents d, whose bytes are offsets[d] to offsets[d + 1].

    A block's entries are all asked for before the first is used, so that their latencies overlap. The probabilities are
    multiplied, not their logarithms added: one logarithm a document, and nothing but IEEE multiplications before it.
    """
    one, uniform, modelled = np.float32(1), FLOOR / 256, 1 - FLOOR
    h3, h4 = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    h5, h6 = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    sixes = np.empty(BLOCK, np.uint32)
    repeats = np.zeros(REPEATS, np.uint32)  # by hash of six bytes: document 16 | hits in a row 8 | byte that followed 8
    for j in range(len(documents)):
        turn = U32(j % 65535)
        if turn == 0:
            repeats[:] = 0
        mark = (turn + U32(1)) << U32(16)
        first, end = offsets[documents[j]], offsets[documents[j] + 1]
        recent, last, g3, g4, g5, g6 = START, nb.intp(255), pairs[0xFFFF, 1], one, one, one
        exponent, product = 0, 1.0
        for start in range(first, end, BLOCK):
            size = min(BLOCK, end - start)
            for i in range(size):
                sixes[i] = U32(((recent >> U64(16)) * P1) >> U64(50))
                recent = (recent >> U64(8)) | (U64(data[start + i]) << U64(56))
                h3[i] = _ask(table, shift, (recent >> U64(40)) + T3)
                h4[i] = _ask(table, shift, (recent >> U64(32)) + T4)
                h5[i] = _ask(table, shift, (recent >> U64(24)) + T5)
                h6[i] = _ask(table, shift, (recent >> U64(16)) + T6)
            for i in range(size):
                byte = nb.intp(data[start + i])
                pair = byte << 8 | last
                last = byte
                e3, e4, e5 = _entry(table, shift, h3[i]), _entry(table, shift, h4[i]), _entry(table, shift, h5[i])
                low = _term(e4) + g4 * (_term(e3) + g3 * pairs[pair, 0])
                x = float(_term(_entry(table, shift, h6[i])) + g6 * (_term(e5) + g5 * low))
                g3, g4, g5, g6 = pairs[pair, 1], _escape(e3), _escape(e4), _escape(e5)
                seen = repeats[sixes[i]]
                mine = U32((seen & U32(0xFFFF0000)) == mark)
                hit = mine & U32((seen & U32(255)) == U32(byte))
                run = nb.intp(((seen >> U32(8)) & U32(15)) + U32(1)) * nb.intp(mine)
                w = weights[run]
                product *= uniform + modelled * (w * float(hit) + (1.0 - w) * x)
                repeats[sixes[i]] = mark | (U32(min(run, 15)) * hit) << U32(8) | U32(byte)
            product, power = math.frexp(product)
            exponent += power
        bits[documents[j]] = -(exponent + math.log2(product))
