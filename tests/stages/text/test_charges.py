import numpy as np
import pyarrow as pa

from stages.text.charges import charged_records, histogram, size_facts


def test_groups_are_written_and_singles_are_not():
    """Every row of a group of two or more has a record, in row order; evidence and charge are null for keepers."""
    rows = np.array([9, 3, 5, 7], np.uint64)
    made = charged_records(
        rows, pa.array(["a", None, "c", "d"], pa.large_string()), np.array([-1, 0, -1, 0]), reason="why", kind="how",
        evidence={"inter": pa.array([0, 6, 0, 8], pa.int32())},
    )  # fmt: skip
    gone = {"reason": "why", "similarity_kind": "how", "charged": 9, "charged_id": "a", "group_size": 3}
    kept = dict.fromkeys([*gone, "inter"]) | {"group_size": 3}
    assert made.to_pylist() == [{"key": 3, "inter": 6} | gone, {"key": 7, "inter": 8} | gone, {"key": 9} | kept]
    assert made.schema.field("reason").type == pa.large_string()
    assert made.schema.field("group_size").type == pa.int32()


def test_sizes_are_counted_by_their_log2():
    """Facts of partitions add up to those of the whole, and make the histogram of the report."""
    sizes = np.array([2, 3, 4, 7, 8, 1024])
    assert size_facts(sizes) == {
        "candidates": 1048, "components": 6, "size_histogram_1": 2, "size_histogram_2": 2, "size_histogram_3": 1,
        "size_histogram_10": 1,
    }  # fmt: skip
    assert histogram(size_facts(sizes)) == [[1, 2], [2, 2], [3, 1], [10, 1]]
    assert size_facts(np.array([], np.int64)) == {"candidates": 0, "components": 0}
