"""Exact corpus-wide statistics: count tables merged by integer addition.

A count table has key columns and int64 columns. Adding integers has no order, so the sum is the same bytes however the
tables are grouped, and whichever worker counted what. The grid on which scores become keys is in `pipeline.grid`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

CHUNK_ROWS = 1 << 20
"""Rows of waiting tables that are added up at once: at least this many, or half as many as the sum has keys."""


def add(tables: Iterable[pa.Table], keys: tuple[str, ...]) -> pa.Table:
    """The sum of count tables: one row for each distinct combination of `keys`, ascending, nulls last.

    Tables are taken from the iterable one by one; memory holds the sum, a copy of it and `CHUNK_ROWS` rows. A null key
    is a key like any other. Strings compare by their bytes. Keys come back first, in the order of `keys`; dictionaries
    are decoded and strings become large_string. Raises ValueError where there is no table or their columns differ, and
    TypeError for a count that is not int64 or a key that is a float (NaN and -0.0 have no exact equality).
    """
    total: pa.Table | None = None
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        plain = _plain(table, keys)
        if total is None:
            total = plain.slice(0, 0)
        if plain.schema != total.schema:
            raise ValueError(f"count tables differ: {_columns(total)} and {_columns(plain)}")
        waiting.append(plain)
        rows += plain.num_rows
        if rows >= max(CHUNK_ROWS, total.num_rows // 2):
            total, waiting, rows = _sum([total, *waiting], keys), [], 0
    if total is None:
        raise ValueError("no count tables: one without rows is needed to know the columns")
    return _sorted(_sum([total, *waiting], keys), keys)


def _sum(tables: list[pa.Table], keys: tuple[str, ...]) -> pa.Table:
    table = pa.concat_tables(tables)
    if not table.num_rows:
        return table
    if keys and all(pa.types.is_integer(table.schema.field(name).type) and not table[name].null_count for name in keys):
        return _sum_of_integers(table, keys)
    counts = table.column_names[len(keys) :]
    summed = table.group_by(list(keys), use_threads=False).aggregate([(name, "sum") for name in counts])
    return summed.select([*keys, *(f"{name}_sum" for name in counts)]).rename_columns(table.column_names)


def _sum_of_integers(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """The same by sorting: a hash table of millions of distinct keys takes several times the memory of the rows."""
    order = np.lexsort([table[name].to_numpy() for name in reversed(keys)])
    first = np.zeros(len(order), bool)
    first[0] = True
    sums = {}
    for name in keys:
        values = table[name].to_numpy()[order]
        first[1:] |= values[1:] != values[:-1]
        sums[name] = values
    starts = np.flatnonzero(first)
    sums = {name: values[starts] for name, values in sums.items()}
    for name in table.column_names[len(keys) :]:
        sums[name] = np.add.reduceat(table[name].to_numpy()[order], starts)
    return pa.table(sums, schema=table.schema)


def _sorted(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    if keys:
        order = [(name, "ascending", "at_end") for name in keys]
        table = table.take(pc.sort_indices(table, sort_keys=order))
    return table.combine_chunks()


def _plain(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    counts = [name for name in table.column_names if name not in keys]
    wrong = [name for name in counts if table.schema.field(name).type != pa.int64() or table.column(name).null_count]
    if wrong:
        raise TypeError(f"counts must be int64 without nulls: {', '.join(wrong)}")
    fields = [pa.field(name, _key_type(name, table.schema.field(name).type)) for name in keys]
    fields += [pa.field(name, pa.int64()) for name in counts]
    return table.select([*keys, *counts]).cast(pa.schema(fields)) if fields else table


def _key_type(name: str, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_floating(kind):
        raise TypeError(f"key {name} is {kind}: floats have no exact equality, use the grid")
    return pa.large_string() if pa.types.is_string(kind) else kind


def _columns(table: pa.Table) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in table.schema)
