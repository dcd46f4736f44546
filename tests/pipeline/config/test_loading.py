"""A config is read once, strictly, and every mistake in it is told at once with its key path and the nearest name."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from pydantic import Field, field_validator, model_validator

from pipeline.config import check_files, load, loads
from pipeline.config.settings import Settings, walk
from pipeline.errors import ConfigError, nearest
from pipeline.stage import Emit, GlobalStage, MapStage, Reduce, SettleStage, StageConfig, require
from pipeline.units import Size


class Rules(StageConfig):
    rules: tuple[str, ...] = ("short",)
    cache: Size = 1_000_000


class Quality(StageConfig):
    model: str


class Near(StageConfig):
    ngram: int = Field(default=5, ge=1)
    threshold: float = 0.8
    bands: int | None = None
    rows: int | None = None
    keep: tuple[str, ...] = ("bytes desc",)
    within: tuple[str, ...] = ()

    @field_validator("threshold")
    @classmethod
    def _between(cls, threshold):
        require(0 < threshold <= 1, "threshold", threshold, "it must lie above 0 and not above 1")
        return threshold

    @field_validator("rows")
    @classmethod
    def _cover(cls, rows, info):
        hashes = (info.data["bands"] or 1) * (rows or 1)
        require(hashes <= 256, "near.rows", rows, f"bands x rows is {hashes}, over the 256 hashes of a sketch")
        return rows


class Cut(StageConfig):
    by: str
    keep_top: float = Field(default=0.5, gt=0, le=1)
    within: tuple[str, ...] = ()
    least: dict[int, int] = Field(default={5: 2})


def never(*_):
    raise AssertionError("loading a config runs no stage")


RULES = MapStage(
    name="rules", version=1, config=Rules, reads=("text",), writes=pa.schema([("words", pa.int32())]), bind=never
)
QUALITY = MapStage(
    name="quality",
    version=1,
    config=Quality,
    reads=("text",),
    writes=pa.schema([("score", pa.float32()), ("logit", pa.float32()), ("label", pa.string())]),
    bind=never,
    files=lambda config: {"model": config.model},
)
NEAR = GlobalStage(
    name="near",
    version=1,
    config=Near,
    phases=(
        Emit(name="emit", bind=never, reads=lambda config: ("text", *config.within)),
        Emit(name="rank", bind=never, reads=lambda config: tuple(rule.split()[0] for rule in config.keep)),
        Reduce(name="resolve", reduce=never, to="rows"),
    ),
    writes=pa.schema([("n_shingles", pa.int64())]),
)
CUT = SettleStage(
    name="cut",
    version=1,
    config=Cut,
    measure=never,
    measure_reads=lambda config: ("quality.logit" if config.by == "quality.score" else config.by, *config.within),
    count_keys=("cell",),
    settle=never,
    decide=never,
    decide_reads=lambda config: (config.by,),
    decide_writes=pa.schema([("bucket", pa.int16())]),
)
REGISTRY = (RULES, QUALITY, NEAR, CUT)

BASE = """\
name: web-1
input:
  paths: ["a/*.parquet", {url: "s3://b/c", as: c}]
tiers:
  work: {url: runs/work}
  hot: {url: runs/hot}
  cold: {url: runs/cold}
stages:
  - {stage: rules}
  - {stage: quality, model: model.bin}
  - {stage: near, keep: ["quality.score desc", "stars desc"], within: [language]}
  - {stage: cut, by: quality.score, keep_top: 0.4}
"""


def change(old, new):
    assert old in BASE
    return BASE.replace(old, new)


def problems(text, *overrides, registry=REGISTRY):
    with pytest.raises(ConfigError) as caught:
        loads(text, registry, name="c.yaml", overrides=overrides)
    return caught.value.message


def test_minimal():
    """Only name, input paths, the tiers' URLs and stages are required; everything else has its documented default."""
    config = loads(
        "{name: a, input: {paths: [x]}, tiers: {work: {url: w}, hot: {url: h}, cold: {url: c}}, stages: []}", REGISTRY
    )
    assert config.stages == ()
    assert config.input.slice_bytes == 256 * 2**20
    assert config.input.max_document_bytes == 64 * 2**20
    assert config.run.worker_memory == 1_200_000_000
    assert (config.run.workers, config.run.partitions, config.run.executor) == ("cores", "auto", "local")
    assert (config.guards.max_source_loss, config.guards.min_docs) == (0.95, 100)
    assert config.training.bytes_per_token is None


def test_entries():
    """Each entry has its label, where to import the stage from, the stage and its settings; as: gives another label."""
    config = loads(change("{stage: rules}", "{stage: rules, as: first, cache: 2MiB}"), REGISTRY)
    assert [entry.label for entry in config.stages] == ["first", "quality", "near", "cut"]
    assert [entry.ref for entry in config.stages][:2] == ["stages.rules:STAGE", "stages.quality:STAGE"]
    assert config.stages[0].stage is RULES
    assert config.stages[0].settings == Rules(cache=2 * 2**20)
    assert config.stages[3].settings == Cut(by="quality.score", keep_top=0.4)


def test_core_rules():
    """`no` is a string, whole floats are counts, and integers stand for floats."""
    text = change("{url: runs/hot}", "{url: no, prices: {price_per_gb_month: 1, date: 2026-01-31}}")
    config = loads(
        text + "training: {parameters: 7e9, tokens: 1.0e12, mfu: 1}\nsources: {2024: {max_epochs: 2}}\n", REGISTRY
    )
    assert config.tiers.hot.url == "no"
    assert config.tiers.hot.prices.date.year == 2026
    assert (config.training.parameters, config.training.tokens) == (7_000_000_000, 1_000_000_000_000)
    assert config.sources["2024"].max_epochs == 2.0


def test_empty_section():
    """A section of which every line is commented out means its defaults."""
    assert loads(BASE + "training:\n  # gpu: H100-SXM\nrun:\n", REGISTRY).run.workers == "cores"


def test_frozen():
    """A config cannot be changed once it is loaded."""
    config = loads(BASE, REGISTRY)
    with pytest.raises(ValueError, match="frozen"):
        config.name = "other"
    with pytest.raises(ValueError, match="frozen"):
        config.run.seed = 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # An unknown key at any depth.
        (BASE + "traning: {gpu: x}", ["c.yaml:13: traning: got 'traning'", "did you mean 'training'?"]),
        (BASE + "training: {mfuu: 0.4}", ["c.yaml:13: training.mfuu: got 'mfuu'", "did you mean 'mfu'?"]),
        (change("{url: runs/hot}", "{url: x, scop: shared}"), ["c.yaml:6: tiers.hot.scop: ", "did you mean 'scope'?"]),
        (change("as: c", "az: c"), ["c.yaml:3: input.paths.1.az: ", "valid: url, as"]),
        (BASE + "sources:\n  forum: {priorty: 1}", ["c.yaml:14: sources.forum.priorty: ", "did you mean 'priority'?"]),
        (BASE + "run:\n  pool: {knd: spot}", ["c.yaml:14: run.pool.knd: ", "did you mean 'kind'?"]),
        (BASE + "run: {ray: {runtime_env: {}}}", ["run.ray.runtime_env: ", "valid: pythonpath"]),
        (change("keep_top", "keep_topp"), ["c.yaml:12: stages.3.keep_topp: ", "stage cut", "did you mean 'keep_top'?"]),
        # A right key in the wrong section, and a misspelt one in a section that does not exist.
        (BASE + "workers: 4", ["c.yaml:13: workers: ", "it belongs to run.workers"]),
        (BASE + "run: {threshold: 0.8}", ["run.threshold: ", "it belongs to stage near"]),
        (change("keep_top: 0.4", "ngram: 3"), ["stages.3.ngram: ", "it belongs to stage near"]),
        (
            BASE + "dedupe: {treshold: 0.8}",
            ["c.yaml:13: dedupe: ", "dedupe.treshold: ", "did you mean 'threshold' of stage near?"],
        ),
        # A wrong type.
        (change("keep_top: 0.4", "keep_top: '0.4'"), ["stages.3.keep_top: got '0.4'", "a number", "without quotes"]),
        (BASE + "run: {seed: '1'}", ["run.seed: got '1'", "a whole number", "without quotes"]),
        (BASE + "run: {keep_exchange: 1}", ["run.keep_exchange: got 1", "true or false"]),
        (BASE + "run: {max_attempts: 2.0}", ["run.max_attempts: got 2.0", "a whole number", "write 2"]),
        (BASE + "guards: {accept: wiki}", ["guards.accept: got 'wiki'", "a list"]),
        (BASE + "guards: {accept: [7]}", ["guards.accept.0: got 7", "a string", "in quotes"]),
        (BASE + "guards: 3", ["guards: got 3", "a mapping"]),
        (BASE + "run: {executor: rya}", ["run.executor: got 'rya'", "did you mean 'ray'?"]),
        # A wrong unit or value.
        (BASE + "run: {worker_memory: 2XB}", ["run.worker_memory: got '2XB'", "units: B, kB, MB", "GiB"]),
        (BASE + "input2: 1", ["did you mean 'input'?"]),
        (change("paths:", "slice_bytes: '100'\n  paths:"), ["c.yaml:3: input.slice_bytes: got '100'", "units: B, kB"]),
        (change("paths:", "slice_bytes: 0\n  paths:"), ["input.slice_bytes: got 0", "greater than 0"]),
        (BASE + "training: {mfu: 1.2}", ["training.mfu: got 1.2", "less than or equal to 1"]),
        (BASE + "training: {tokens: 1.5}", ["training.tokens: got 1.5", "whole number"]),
        (BASE + "training: {price_date: yesterday}", ["training.price_date: got 'yesterday'"]),
        (BASE + "run: {workers: -1}", ["run.workers: got -1", "cores"]),
        (BASE + "run: {workers: true}", ["run.workers: got True", "cores"]),
        (BASE + "run: {partitions: 48}", ["run.partitions: got 48", "power of two"]),
        (BASE + "publish: {validation: {tokens: 0}}", ["publish.validation.tokens: got 0", "greater than 0"]),
        (change("name: web-1", "name: Web 1"), ["c.yaml:1: name: got 'Web 1'", "a-z"]),
        (BASE + "currency: euro", ["currency: got 'euro'", "three capital letters"]),
        (change("runs/hot", "runs/work/"), ["tiers.hot.url: got 'runs/work/'", "tiers.work is the same place"]),
        # What is missing.
        (change("{url: runs/cold}", "{}"), ["c.yaml:7: tiers.cold.url: got nothing", "required"]),
        (
            change('paths: ["a/*.parquet", {url: "s3://b/c", as: c}]', "paths: []"),
            ["input.paths: got []", "at least 1"],
        ),
        ("name: a", ["input: got nothing", "tiers: got nothing", "stages: got nothing"]),
        # Stages.
        (change("stage: near", "stage: nera"), ["c.yaml:11: stages.2.stage: got 'nera'", "did you mean 'near'?"]),
        (change("{stage: rules}", "rules"), ["c.yaml:9: stages.0: got 'rules'", "write {stage: rules}"]),
        (
            change("{stage: rules}", "{stage: quality, model: m}"),
            ["c.yaml:10: stages.1.stage: got 'quality'", "stages.0 has this label", "as: LABEL"],
        ),
        (change("{stage: rules}", "{stage: rules, as: text}"), ["stages.0.as: got 'text'", "reserved"]),
        (change("{stage: rules}", "{stage: rules, as: run}"), ["stages.0.as: got 'run'", "reserved"]),
        (change("{stage: rules}", "{stage: rules, as: 'a.b'}"), ["stages.0.as: got 'a.b'", "a-z"]),
        (change("{stage: rules}", "{stage: rules, as: 5}"), ["stages.0.as: got 5", "a-z"]),
        (change("model: model.bin", ""), ["stages.1.model: got nothing", "required"]),
        (change("keep_top: 0.4", "keep_top: 1.4"), ["stages.3.keep_top: got 1.4", "less than or equal to 1"]),
        (change("within:", "threshold: 1.5, within:"), ["c.yaml:11: stages.2.threshold: got 1.5", "not above 1"]),
        (
            change("within:", "bands: 64, rows: 8, within:"),
            ["c.yaml:11: stages.2.rows: got 8", "512, over the 256 hashes"],
        ),
        # Columns that do not exist by then.
        (
            change("by: quality.score", "by: quality.scor"),
            ["c.yaml:12: stages.3.by: got 'quality.scor'", "did you mean 'quality.score'?"],
        ),
        (change("by: quality.score", "by: other.score"), ["stages.3.by: got 'other.score'", "no earlier stage writes"]),
        (
            change('"quality.score desc"', '"quality.scor desc"'),
            ["stages.2.keep.0: got 'quality.scor desc'", "did you mean 'quality.score'?"],
        ),
        (
            change("within: [language]", "within: [cut.bucket]"),
            ["stages.2.within.0: got 'cut.bucket'", "move cut before near"],
        ),
        (
            change("{stage: quality, model: model.bin}", "{stage: rules, as: other}").replace(
                '"quality.score desc", ', ""
            ),
            ["stages.3.by: got 'quality.score'", "no earlier stage writes 'quality.logit'"],
        ),
        (BASE + "publish: {mix_by: [langage]}", ["publish.mix_by.0: got 'langage'", "did you mean 'language'?"]),
        (BASE + "publish: {mix_by: [quality.score]}", ["publish.mix_by.0: got 'quality.score'", "fractions"]),
        (BASE + "publish: {columns: [id]}", ["publish.columns: got ['id']", "text column 'text'"]),
    ],
)
def test_mistake(text, expected):
    """A mistake is told with file, line, key path, what was got, the rule, and the next step."""
    message = problems(text)
    for part in expected:
        assert part in message
    assert "c.yaml" in message


@pytest.mark.parametrize(
    ("text", "key", "instead"),
    [
        (BASE + "training: {tokenizer: t.json}", "training.tokenizer", "training.bytes_per_token"),
        (BASE + "budget: {limit: 5e4}", "budget.limit", ""),
        (BASE + "budget: {alert_at: [0.5]}", "budget.alert_at", ""),
        (BASE + "budget: {tags: {project: p}}", "budget.tags", ""),
        (BASE + "publish: {formats: [text, mds]}", "publish.formats", "corpusmill export"),
        (BASE + "run: {pools: [{name: a}]}", "run.pools", "run.pool"),
        (BASE + "run: {pool: [{name: a}]}", "run.pool", "one"),
        (BASE + "run: {resources: {quality: {gpu: 1}}}", "run.resources", ""),
        (change("{url: runs/hot}", "{url: h, prices: nvme}"), "tiers.hot.prices", "price_per_gb_month"),
        (change("{url: runs/hot}", "{url: h, scope: node}"), "tiers.hot.scope", "shared"),
        (change("{url: runs/hot}", "{url: h, ttl: 14d}"), "tiers.hot.ttl", ""),
        (change("{url: runs/hot}", "{url: h, region: us-east-1}"), "tiers.hot.region", ""),
        (change("{url: runs/hot}", "{url: h, capacity: 20TB}"), "tiers.hot.capacity", ""),
        (change("{stage: rules}", "{stage: rules, annotate: true}"), "stages.0.annotate", ""),
        (change("{stage: rules}", "{stage: rules, resources: {gpu: 1}}"), "stages.0.resources", ""),
    ],
)
def test_not_built(text, key, instead):
    """A key whose feature is absent is an error that says so and what to do instead, never ignored."""
    message = problems(text)
    assert f": {key}: got " in message
    assert "not built yet" in message
    assert instead in message


def test_unit_of_unbuilt():
    """A key that is not built still knows its units: a wrong one is told first."""
    assert "units: s, min, h, d, w" in problems(change("{url: runs/hot}", "{url: h, ttl: 14x}"))


def test_all_at_once():
    """Several mistakes are one error with a line for each, in whatever part of the file they are."""
    text = change("keep_top: 0.4", "keep_topp: 0.4").replace("stage: near", "stage: nera") + "run: {seed: x}\nfoo: 1\n"
    message = problems(text)
    assert message.startswith("c.yaml: 4 problems\n")
    assert len(message.splitlines()) == 5
    for key in ("run.seed", "foo", "stages.2.stage", "stages.3.keep_topp"):
        assert f": {key}: got " in message


def test_unknown_stage_hides_no_columns():
    """What an unknown stage would have written is not reported as missing beside it."""
    assert "stages.1.stage" in problems(change("stage: quality", "stage: qality"))
    assert "no earlier stage" not in problems(change("{stage: quality", "{stage: qality, as: quality"))


@pytest.mark.parametrize("text", ["", "[]", "3", "# nothing"])
def test_no_mapping(text):
    """A file without keys is refused as a whole."""
    assert "a config is a mapping" in problems(text)


@pytest.mark.parametrize(
    "options", ["{secret: hunter2}", "{client_kwargs: {aws_secret_access_key: hunter2}}", "{token: hunter2}"]
)
def test_secret(options):
    """A secret in storage options is refused, since configs are stored with their runs, and not shown."""
    message = problems(change("{url: runs/hot}", f"{{url: s3://h, options: {options}}}"))
    assert "tiers.hot.options" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "text", [change("runs/hot", "sftp://me:hunter2@host/x"), change("a/*.parquet", "ftp://me:hunter2@host/x")]
)
def test_password_in_url(text):
    """A password in a URL is refused and not shown."""
    message = problems(text)
    assert "password" in message
    assert "hunter2" not in message


def test_options():
    """Options of a store that hold no secret are passed on as they are."""
    options = "{anon: false, client_kwargs: {endpoint_url: 'http://127.0.0.1:5000', region_name: null}}"
    config = loads(change("{url: runs/hot}", f"{{url: s3://h, options: {options}}}"), REGISTRY)
    assert config.tiers.hot.options["client_kwargs"] == {"endpoint_url": "http://127.0.0.1:5000", "region_name": None}
    assert loads(config.dump(), REGISTRY) == config


def test_dump():
    """A config reads back from its dump as itself, changed settings, labels, sizes, dates and prices included."""
    text = change("{stage: rules}", "{stage: rules, as: first, rules: ['no', '5']}")
    text = text.replace("keep_top: 0.4", "keep_top: 0.4, least: {6: 3}")
    text += "sources: {'(none)': {protect: true}, a: {priority: 3}}\ntraining: {tokens: 1e12, price_date: 2026-01-31}\n"
    text += (
        "publish: {validation: {tokens: 5e6}, part_bytes: 1GB, mix_by: [quality.label]}\nrun: {workers: 2, seed: 7}\n"
    )
    config = loads(text, REGISTRY)
    again = loads(config.dump(), REGISTRY)
    assert again == config
    assert again.dump() == config.dump()
    assert again.fingerprint == config.fingerprint
    assert "part_bytes: 1GB" in config.dump()
    assert again.sources["a"].model_dump(exclude_unset=True)["priority"] == 3


@pytest.mark.parametrize(
    "override",
    [
        "run.workers=3", "run.worker_memory=3GB", "run.executor=ray", "run.partitions=8", "run.max_attempts=5",
        "run.pool.price_per_cpu_hour=0.1", "tiers.work.url=elsewhere", "tiers.cold.options={anon: true}",
        "tiers.hot.prices={price_per_gb_month: 0.02}", "training.price_per_gpu_hour=9", "training.price_source=me",
        "currency=EUR", "budget={}",
    ],
)  # fmt: skip
def test_fingerprint_ignores(override):
    """Where and how fast the work is done, and what it costs, is in no fingerprint."""
    assert loads(BASE, REGISTRY, overrides=[override]).fingerprint == loads(BASE, REGISTRY).fingerprint


@pytest.mark.parametrize(
    "override",
    [
        "name=other", "run.seed=1", "cut.keep_top=0.3", "near.within=[]", "stages.0.as=first", "input.slice_bytes=1MiB",
        "input.columns.text=body", "input.bad_shards=stop", "sources={a: {priority: 1}}", "publish.mix_by=[source]",
        "training.bytes_per_token=4", "training.tokens=1e9", "guards.max_source_loss=0.5", "publish.limits.floor=0.2",
    ],
)  # fmt: skip
def test_fingerprint_changes(override):
    """Everything that can change a result changes the fingerprint, 32 hex digits."""
    config = loads(BASE, REGISTRY, overrides=[override])
    assert config.fingerprint != loads(BASE, REGISTRY).fingerprint
    assert len(config.fingerprint) == 32
    assert set(config.fingerprint) <= set("0123456789abcdef")


def test_fingerprint_of_version():
    """A new version of a stage is a new fingerprint; the order of keys and the spelling of a size are not."""
    newer = MapStage(name="rules", version=2, config=Rules, reads=("text",))
    assert loads(BASE, (newer, *REGISTRY[1:])).fingerprint != loads(BASE, REGISTRY).fingerprint
    first = loads(BASE, REGISTRY, overrides=["input.slice_bytes=2MiB", "input.invalid_utf8=quarantine"])
    second = loads(BASE, REGISTRY, overrides=["input.invalid_utf8=quarantine", "input.slice_bytes=2097152"])
    assert first.fingerprint == second.fingerprint


def test_overrides():
    """--set reaches a section's key, a stage's setting by label or position, and a list's entry; values are YAML."""
    sets = ["cut.keep_top=0.3", "stages.1.model=other.bin", "run.workers=0", "input.paths.0=x", "guards.accept=[a, b]"]
    sets += ["publish.validation.tokens=5e6", "near.keep=[bytes desc]", "training={gpu: A100}", "training.mfu=0.5"]
    config = loads(BASE, REGISTRY, overrides=sets)
    assert config.stages[3].settings.keep_top == 0.3
    assert config.stages[1].settings.model == "other.bin"
    assert config.stages[2].settings.keep == ("bytes desc",)
    assert (config.run.workers, config.input.paths[0].url, config.guards.accept) == (0, "x", ("a", "b"))
    assert config.publish.validation.tokens == 5_000_000
    assert (config.training.gpu, config.training.mfu) == ("A100", 0.5)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("cutt.keep_top=1", "did you mean 'cut'?"),
        ("trainin.mfu=1", "did you mean 'training'?"),
        ("cut.keep_tpo=1", "did you mean 'keep_top'?"),
        ("training.mfuu=1", "did you mean 'mfu'?"),
        ("run.ray.pythonpth=[]", "did you mean 'pythonpath'?"),
        ("stages.9.keep_top=1", "'9' is no position of stages, which has 4 entries"),
        ("stages.cut.keep_top=1", "'cut' is no position of stages"),
        ("cut=1", "cut.KEY=VALUE"),
        ("name.x=1", "name holds no keys"),
        ("cut.keep_top", "write it as key.path=VALUE"),
        ("cut..keep_top=1", "write it as key.path=VALUE"),
        ("=1", "write it as key.path=VALUE"),
        ("cut.keep_top=[", "not YAML"),
        ("cut.keep_top=2", "stages.3.keep_top: got 2"),
    ],
)
def test_bad_override(override, expected):
    """A --set that leads nowhere or has a wrong value is an error that names it."""
    message = problems(BASE, override)
    assert message.startswith("--set ")
    assert expected in message


def test_override_hides_its_value():
    """The message about a --set does not repeat a value that may be a secret."""
    assert "hunter2" not in problems(BASE, "tiers.hot.options.secret=hunter2")


def test_override_mends():
    """Checks see the config as it is after --set: an override can mend a mistake of the file."""
    assert (
        loads(change("keep_top: 0.4", "keep_top: 4"), REGISTRY, overrides=["cut.keep_top=0.4"])
        .stages[3]
        .settings.keep_top
        == 0.4
    )


def test_user_stage(tmp_path, monkeypatch):
    """module:ATTR imports a user's stage, from run.ray.pythonpath as well, under its own name, and dumps as written."""
    (tmp_path / "my_rules_pkg.py").write_text(
        "from pipeline.stage import MapStage, StageConfig\n"
        "class Settings(StageConfig):\n    limit: int = 3\n"
        "STAGE = MapStage(name='mine', version=1, config=Settings, reads=('text',))\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = change("{stage: rules}", "{stage: 'my_rules_pkg:STAGE', limit: 5}")
    message = problems(text)
    assert "stages.0.stage: got 'my_rules_pkg:STAGE'" in message
    assert "PYTHONPATH" in message
    assert "run.ray.pythonpath" in message
    config = loads(text + f"run: {{ray: {{pythonpath: ['{tmp_path}']}}}}\n", REGISTRY, overrides=["mine.limit=6"])
    assert config.stages[0].label == "mine"
    assert config.stages[0].ref == "my_rules_pkg:STAGE"
    assert config.stages[0].settings.limit == 6
    assert "stage: my_rules_pkg:STAGE" in config.dump()
    assert loads(config.dump(), REGISTRY) == config
    assert "did you mean 'STAGE'?" in problems(text.replace(":STAGE", ":STAGES"))


def test_broken_user_stage(tmp_path, monkeypatch):
    """A user's module that fails while it is imported is an error of the config that says how it failed."""
    (tmp_path / "broken_rules_pkg.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "ZeroDivisionError" in problems(change("{stage: rules}", "{stage: 'broken_rules_pkg:STAGE'}"))


def test_input_columns():
    """Columns without a dot that are not the engine's own are the input's; an absent one is told with its key path."""
    config = loads(BASE + "publish: {columns: [text, url]}\n", REGISTRY, name="c.yaml")
    assert config.input_columns_used() == {"stars", "text", "url"}
    error = config.absent_column("stars", ["text", "star"])
    assert error.message.startswith("c.yaml: stages.2.keep.1: got 'stars'")
    assert "did you mean 'star'?" in error.message
    assert config.absent_column("url", ["text", "urls"]).message.startswith("c.yaml: publish.columns: got 'url'")


def test_column_without_its_label():
    """A stage's column that was named without the label is found again."""
    config = loads(change("by: quality.score", "by: logit"), REGISTRY)
    assert "did you mean 'quality.logit'?" in config.absent_column("logit", ["text"]).message


def test_a_name_that_is_begun():
    """Of two similar names the one that begins like what was written is the one that was meant."""
    assert nearest("d.bits", ["d.tokens", "d.bit", "d.bits_per_byte"]) == "did you mean 'd.bits_per_byte'?"


def test_files(tmp_path, monkeypatch):
    """A local file that a stage names must exist, relative to the current directory; remote ones are not looked at."""
    monkeypatch.chdir(tmp_path)
    config = loads(BASE, REGISTRY, name="c.yaml")
    with pytest.raises(ConfigError) as caught:
        check_files(config)
    assert caught.value.message.startswith("c.yaml: stages.1.model: got 'model.bin', but there is no such file")
    assert str(tmp_path) in caught.value.message
    (tmp_path / "modle.bin").touch()
    with pytest.raises(ConfigError, match=r"did you mean 'modle\.bin'"):
        check_files(config)
    (tmp_path / "model.bin").touch()
    check_files(config)
    check_files(loads(change("model.bin", "s3://models/model.bin"), REGISTRY))


def test_load(tmp_path):
    """load reads a file and names it in messages; a file that is not there is told with the nearest one beside it."""
    path = tmp_path / "web.yaml"
    path.write_text(BASE)
    assert load(path, REGISTRY).origin == str(path)
    assert load(str(path), REGISTRY, ["run.seed=3"]).run.seed == 3
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "wbe.yaml", REGISTRY)
    assert f"did you mean '{path}'" in caught.value.message
    path.write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(path, REGISTRY)
    path.write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert load(path, REGISTRY).name == "web-1"


def test_no_network():
    """Loading touches no store: paths and tiers on hosts that do not exist load."""
    text = change("a/*.parquet", "s3://no-such-bucket/x/*.parquet").replace("runs/hot", "s3://no-such-bucket/hot")
    assert loads(text, REGISTRY).input.paths[0].url == "s3://no-such-bucket/x/*.parquet"


def test_walk_reaches_every_depth():
    """walk names keys inside lists and tables with a star, and descends through optional sections."""
    keys = {key for key, _ in walk(Settings)}
    assert {"input.paths.*.as", "sources.*.priority", "tiers.hot.prices.date", "publish.validation.tokens"} <= keys


class Derived(StageConfig):
    keep: tuple[str, ...] = ()
    rows: int = 0

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, given):
        return {"rows": 4, **given}


DERIVED = MapStage(name="derived", version=1, config=Derived, reads=("text",))


def test_stage_that_derives_settings():
    """A stage whose validator runs before the others still takes lists, and still refuses a string for a number."""
    text = change("{stage: rules}", "{stage: derived, keep: [bytes desc]}")
    assert loads(text, (*REGISTRY, DERIVED)).stages[0].settings == Derived(keep=("bytes desc",), rows=4)
    message = problems(text.replace("keep: [bytes", "rows: '4', keep: [bytes"), registry=(*REGISTRY, DERIVED))
    assert "stages.0.rows: got '4'" in message
    assert len(message.splitlines()) == 1
