"""The config that Parquet files get where there is none.

Their text column is found, the stages are those that need no model, and everything lies in one folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import storage
from pipeline.commands.convert import SUFFIXES
from pipeline.config import Config, loads
from pipeline.corpus import is_textual, plain
from pipeline.errors import ConfigError, setting_error
from pipeline.stage import Stage
from pipeline.storage import Store

TEXT_COLUMNS = ("text", "content", "body", "raw_content", "document", "markdown")
"""Names that text columns go by, the commonest first."""
STAGES = ("heuristics", "exact", "minhash", "difficulty")
NAME = "config.yaml"

TEMPLATE = """\
# Made by `corpusmill dry-run`. `corpusmill run` takes this file as it is; configs/README.md explains every key.
name: {name}
input:
  paths: [{paths}]
  columns: {{text: {text}}}
tiers:
  work: {{url: {work}}}
  hot: {{url: {hot}}}
  cold: {{url: {cold}}}
stages:
{stages}
# What the corpus is for makes bytes into tokens, GPU-hours and money:
# training: {{parameters: 7e9, bytes_per_token: 4.0, gpu: H100-SXM, price_per_gpu_hour: 2.5}}
"""


def stem(target: str) -> str:
    """A name for what `target` names: of the file without its ending, or of the folder that a pattern starts in."""
    fixed = re.split(r"[*?\\[]", target.rstrip("/"), maxsplit=1)[0]
    last = fixed.rstrip("/").rpartition("/")[2] if fixed == target.rstrip("/") else fixed.rpartition("/")[0]
    last = last.rpartition("/")[2].removesuffix(".parquet").lower()
    return re.sub(r"[^a-z0-9._-]+", "-", last).strip("._-")[:80] or "corpus"


def write(target: str, registry: tuple[Stage, ...], folder: Store, overrides: Sequence[str] = ()) -> Config:
    """Make the config for the Parquet file, folder or pattern `target` and keep it as config.yaml in `folder`.

    Raises ConfigError where there is no Parquet, no text column, or another config.yaml, which may be the user's work.
    """
    listing = storage.expand(target)
    if not listing.files or target.endswith(SUFFIXES):
        rule = "it is neither a config (.yaml) nor does it match a Parquet file"
        raise setting_error("TARGET", target, rule, "for JSON lines, run `corpusmill convert` first")
    url = target if "://" in target else Store(target).url
    stages = [f"  - {{stage: {stage.name}}}" for name in STAGES for stage in registry if _fits(stage, name)]
    places = {tier: json.dumps(folder.url_of(tier), ensure_ascii=False) for tier in ("work", "hot", "cold")}
    text = TEMPLATE.format(
        name=stem(target), paths=json.dumps(url, ensure_ascii=False), stages="\n".join(stages) or "  []",
        text=json.dumps(text_column(target, listing.files), ensure_ascii=False), **places,
    )  # fmt: skip
    config = loads(text, registry, name=folder.where(NAME), overrides=overrides)
    content = (config.dump() if overrides else text).encode()
    if folder.exists(NAME) and folder.read_bytes(NAME) != content:
        rule = "it differs from the config that this would make, and may be your work"
        step = f"run `corpusmill dry-run {folder.where(NAME)}` to try it, or give another --out"
        raise setting_error("--out", folder.where(NAME), rule, step)
    folder.write_bytes(NAME, content)
    return config


def _fits(stage: Stage, name: str) -> bool:
    """Whether it is the stage of that name and runs without a setting or a model file."""
    required = any(field.is_required() for field in stage.config.model_fields.values())
    return stage.name == name and not required and not stage.files(stage.config())


def text_column(target: str, files: Sequence[storage.InputFile]) -> str:
    """The column that holds the text: one of a usual name, or else the string column with the most bytes.

    Looks into the first file that can be read. Raises ConfigError where none can, and where no column is of strings.
    """
    problem = ""
    for file in files:
        try:
            with storage.open_url(file.url) as handle:
                reader = pq.ParquetFile(handle)
                schema, metadata = reader.schema_arrow, reader.metadata
        except (pa.ArrowException, OSError, ValueError) as error:
            problem = problem or f"{file.url}: {error}"
            continue
        found = [item.name for item in schema if is_textual(plain(item.type))]
        usual = [name for name in TEXT_COLUMNS if name in schema.names]
        usual = [name for name in usual if name in found or pa.types.is_large_binary(plain(schema.field(name).type))]
        if usual or found:
            return usual[0] if usual else max(found, key=lambda name: _bytes(metadata, name))
        rule = f"no column holds text: {', '.join(f'{item.name} ({item.type})' for item in schema)}"
        raise setting_error("TARGET", file.url, rule, "write a config and name the column in input.columns.text")
    raise ConfigError(
        f"{target}: none of its {len(files)} files is Parquet that can be read; the first: {problem}; for JSON "
        "lines, run `corpusmill convert` first"
    )


def _bytes(metadata: pq.FileMetaData, name: str) -> int:
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    return sum(int(chunk.total_uncompressed_size) for chunk in chunks if chunk.path_in_schema == name)
