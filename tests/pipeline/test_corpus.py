"""The input: one type for a column whatever the order of shards, and slices that hold every row once."""

from __future__ import annotations

import os
from itertools import combinations_with_replacement, permutations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import loads
from pipeline.corpus import open_corpus, plain, unify
from pipeline.errors import ConfigError, ContractError

NUMBERS = [pa.int8(), pa.int64(), pa.uint8(), pa.uint64(), pa.float32(), pa.float64()]
TEXTUAL = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
PLAIN = st.sampled_from([pa.null(), *NUMBERS, *TEXTUAL, pa.binary(), pa.bool_(), pa.timestamp("us")])
FIELDS = st.sampled_from("abc")
TYPES = st.recursive(
    PLAIN,
    lambda kinds: st.one_of(
        kinds.map(pa.list_),
        st.dictionaries(FIELDS, kinds, min_size=1).map(lambda found: pa.struct(list(found.items()))),
    ),
    max_leaves=4,
)
SCHEMAS = st.lists(
    st.dictionaries(FIELDS, TYPES, max_size=3).map(lambda found: pa.schema(list(found.items()))), max_size=3
)


def unified(schemas, **columns):
    """The one schema, or None where there cannot be one."""
    try:
        return unify([(f"{number}.parquet", schema) for number, schema in enumerate(schemas)], **columns)
    except ConfigError:
        return None


@settings(deadline=None)
@given(schemas=SCHEMAS)
def test_the_order_of_shards_does_not_matter(schemas):
    """All orders of the same shards come to the same schema, or all to none; so does the schema once more."""
    found = [unified(order) for order in permutations(schemas)]
    assert all(schema == found[0] for schema in found)
    if found[0] is not None:
        assert unified([found[0], *schemas]) == found[0]


@pytest.mark.parametrize(
    "wrap", [lambda kind: kind, lambda kind: pa.list_(pa.struct([("x", kind)]))], ids=["plain", "nested"]
)
def test_three_types_in_any_order_are_one(wrap):
    """What three types come to does not hang on which two of them meet first."""
    for kinds in combinations_with_replacement([pa.null(), pa.string(), pa.bool_(), *NUMBERS], 3):
        found = [unified([pa.schema([("x", wrap(kind))]) for kind in order]) for order in permutations(kinds)]
        assert all(schema == found[0] for schema in found), kinds


@settings(deadline=None)
@given(schemas=SCHEMAS)
def test_shards_without_a_column_change_nothing(schemas):
    """A shard in which a column is null, or that lacks it, leaves its type alone."""
    nulls = pa.schema([(name, pa.null()) for name in "abc" if any(name in schema.names for schema in schemas)])
    assert unified([*schemas, pa.schema([]), nulls]) == unified(schemas)


@pytest.mark.parametrize(
    "spellings", [TEXTUAL, [pa.binary(), pa.large_binary()], [pa.list_(pa.string()), pa.large_list(pa.large_string())]]
)
def test_spellings_of_one_type_are_one(spellings):
    """What Arrow spells in several ways is one type with 64-bit offsets, alone and together."""
    [kind] = {plain(spelling) for spelling in spellings}
    assert unified([pa.schema([("x", spelling)]) for spelling in spellings]) == pa.schema([("x", kind)])


@pytest.mark.parametrize(("kinds", "expected"), [
    ([pa.int8(), pa.int32()], pa.int64()), ([pa.int64(), pa.float32()], pa.float64()),
    ([pa.uint8(), pa.uint64()], pa.uint64()),
    ([pa.struct([("b", pa.int8())]), pa.struct([("a", pa.string())])],
     pa.struct([("a", pa.large_string()), ("b", pa.int8())])),
    ([pa.int64(), pa.string()], None), ([pa.uint64(), pa.int64()], None), ([pa.bool_(), pa.int64()], None),
    ([pa.list_(pa.int8()), pa.int8()], None), ([pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())])], None),
])  # fmt: skip
def test_types_widen_or_are_refused(kinds, expected):
    """Numbers widen, structs merge by field; what no type holds without loss is an error that names both files."""
    schemas = [(f"{number}.parquet", pa.schema([("url", kind)])) for number, kind in enumerate(kinds)]
    if expected is not None:
        assert unify(schemas) == pa.schema([("url", expected)])
        return
    with pytest.raises(ConfigError, match=r"'url'") as error:
        unify(schemas)
    assert all(url in error.value.message for url, _ in schemas)


def test_an_id_of_two_types_becomes_text():
    """Ids are carried, not computed with: numbers and strings together are text, floats do not round them."""
    for kinds in ([pa.int64(), pa.string()], [pa.int64(), pa.float64()]):
        assert unified([pa.schema([("id", kind)]) for kind in kinds], id_column="id") == pa.schema(
            [("id", pa.large_string())]
        )
    assert (
        unified([pa.schema([("id", pa.int32())]), pa.schema([("id", pa.null())])], id_column="id").field("id").type
        == pa.int32()
    )


# -- slices ----------------------------------------------------------------------------------------------------------


def opened(root, slice_bytes, **more):
    settings = {"slice_bytes": slice_bytes, **more}
    given = ", ".join(f"{key}: {value}" for key, value in settings.items())
    tiers = ", ".join(f"{tier}: {{url: '{root}/{tier}'}}" for tier in ("work", "hot", "cold"))
    return open_corpus(
        loads(f"name: t\ninput: {{paths: ['{root}/in/*.parquet'], {given}}}\ntiers: {{{tiers}}}\nstages: []\n", ())
    )


def write(root, name, rows, group, **more):
    (root / "in").mkdir(exist_ok=True)
    table = pa.table(
        {"text": [f"{name} {row}" for row in range(rows)]} | {key: [value] * rows for key, value in more.items()}
    )
    pq.write_table(table, root / "in" / f"{name}.parquet", row_group_size=group, use_dictionary=False)


@pytest.mark.parametrize("slice_bytes", [1, 200, 10**9])
def test_slices_hold_every_row_once(tmp_path, slice_bytes):
    """Slices are runs of whole row groups in order of shard and row, without gap or overlap, of the size asked."""
    for name, rows, group in (("b", 100, 7), ("a", 30, 30), ("c", 0, 5)):
        write(tmp_path, name, rows, group)
    corpus = opened(tmp_path, slice_bytes)
    assert corpus.rows == 130
    assert [(part.shard_id, part.first_row) for part in corpus.slices] == sorted(
        (p.shard_id, p.first_row) for p in corpus.slices
    )
    for shard, groups in (("b.parquet", 15), ("a.parquet", 1)):
        own = [part for part in corpus.slices if part.shard_id == shard]
        assert own[0].first_row == own[0].first_group == 0
        assert [part.first_row + part.rows for part in own[:-1]] == [part.first_row for part in own[1:]]
        assert [part.first_group + part.groups for part in own[:-1]] == [part.first_group for part in own[1:]]
        assert sum(part.groups for part in own) == groups
        assert all(part.bytes >= slice_bytes for part in own[:-1])
        assert len(own) == {1: groups, 10**9: 1}.get(slice_bytes, len(own))
    assert (
        len({part.input_id for part in corpus.slices})
        == len({part.unit for part in corpus.slices})
        == len(corpus.slices)
    )


def ids(corpus):
    return {part.unit: part.input_id for part in corpus.slices}


def test_an_input_id_is_of_one_shard(tmp_path):
    """Touched or rewritten, a shard has other ids; the ids of other shards stay, until a column's type changes."""
    write(tmp_path, "a", 30, 10, url=1)
    write(tmp_path, "b", 30, 10)
    before = ids(opened(tmp_path, 1))
    os.utime(tmp_path / "in" / "b.parquet")
    touched = ids(opened(tmp_path, 1))
    changed = {unit for unit in before if touched[unit] != before[unit]}
    assert len(changed) == 3
    write(tmp_path, "c", 10, 10)
    assert ids(opened(tmp_path, 1)).items() >= touched.items()
    write(tmp_path, "c", 10, 10, url=0.5)
    widened = ids(opened(tmp_path, 1))
    assert {unit for unit in touched if widened[unit] != touched[unit]} == set(before) - changed


def test_unreadable_shards_are_told_or_stop(tmp_path):
    """A file without a footer is a bad shard with its size; under `stop`, or if it is all there is, an error."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ContractError, match=r"none of the 1 shards can be read.*broken\.parquet"):
        opened(tmp_path, 1)
    write(tmp_path, "fine", 3, 3)
    [bad] = opened(tmp_path, 1).bad
    assert (bad.shard_id, bad.size) == ("broken.parquet", 16)
    with pytest.raises(ContractError, match=r"broken\.parquet"):
        opened(tmp_path, 1, bad_shards="stop")


def test_a_text_column_must_be_text(tmp_path):
    """No text column, or one of numbers, is a config error that names file, columns and the nearest name."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"txet": ["a"]}), tmp_path / "in" / "a.parquet")
    with pytest.raises(ConfigError, match=r"no shard has a column 'text'.*did you mean 'txet'"):
        opened(tmp_path, 1)
    pq.write_table(pa.table({"text": [1]}), tmp_path / "in" / "a.parquet")
    with pytest.raises(ConfigError, match=r"column 'text' is int64 in .*a\.parquet"):
        opened(tmp_path, 1)
