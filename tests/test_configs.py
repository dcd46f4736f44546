"""The presets load, and configs/README.md names every key there is, and no other, with its default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_origin

import pytest

from pipeline.config import load, loads, yamltext
from pipeline.config.settings import Settings, fields, section
from pipeline.errors import ConfigError
from pipeline.stage import SettleStage
from stages import STAGES

CONFIGS = Path(__file__).parents[1] / "configs"
README = (CONFIGS / "README.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([^`]+)` \| [^|]+ \| (?:`([^`]*)`|(required)) \| .*\w.* \|$", re.MULTILINE)
REQUIRED = "(required)"
PRESETS = sorted(CONFIGS.glob("*.yaml"))


def documented(text):
    """Key path -> default of every row in the tables of `text`."""
    return {
        key: REQUIRED if required else yamltext.parse(default, key).value
        for key, default, required in ROW.findall(text)
    }


def keys(model, prefix=""):
    """(key path, default as a config spells it, whether it holds further keys) at every depth of a model."""
    defaults = model.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
    for key, field in fields(model).items():
        path, inner = prefix + key, section(field.annotation)
        yield path, defaults.get(key, REQUIRED), inner is not None
        if inner is not None:
            yield from keys(inner, f"{path}.*." if get_origin(field.annotation) in (tuple, dict) else f"{path}.")


def check(text, model):
    """Rows state the right default, every key that holds no others has one, and the others are at least mentioned."""
    rows = documented(text)
    found = {}
    for path, default, holds_keys in keys(model):
        shared = re.sub(r"^tiers\.\w+\.", "tiers.*.", path)
        found[shared] = default
        if not holds_keys:
            assert shared in rows, f"configs/README.md has no row for {shared}"
        assert f"`{shared}`" in text, f"configs/README.md does not mention {shared}"
    assert rows == {key: found.get(key, "no such key") for key in rows}


def about(stage):
    match = re.search(rf"^### `{stage.name}`\n(.*?)(?=^### |\Z)", README, re.MULTILINE | re.DOTALL)
    assert match, f"configs/README.md has no heading for {stage.name}"
    return match[1]


def test_sections_documented():
    """Every key outside the stages is documented with its default, and nothing is documented that does not exist."""
    text = README.partition("## Stages\n")[0]
    row = next(line for line in text.splitlines() if line.startswith("| `stages` | list | required |"))
    check(text.replace(row, ""), Settings)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_stage_documented(stage):
    """Every setting of a stage is documented with its default, and so are the reasons it gives."""
    check(about(stage), stage.config)
    for reason in stage.reasons:
        assert f"`{reason}`" in about(stage)


@pytest.mark.parametrize(
    "stage", [stage for stage in STAGES if stage.name != "heuristics"], ids=lambda stage: stage.name
)
def test_columns_documented(stage):
    """The columns later stages can read are named; those of heuristics are its settings without min_ and max_."""
    written = [*stage.writes.names, *(stage.decide_writes.names if isinstance(stage, SettleStage) else ())]
    for column in written:
        assert f"`{stage.name}.{column}`" in about(stage)


def test_every_stage_has_a_place():
    """The README describes the stages of the registry, in its order, and no other."""
    assert re.findall(r"^### `(\w+)`$", README, re.MULTILINE) == [stage.name for stage in STAGES]


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", README, re.DOTALL))
def test_examples_load(block):
    """What the README shows as a config is one."""
    assert loads(block, STAGES).stages


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.name)
def test_preset_loads(path):
    """A preset loads without a model, an input or a network, reads back from its dump, and is listed in the README."""
    config = load(path, STAGES)
    again = loads(config.dump(), STAGES)
    assert again.fingerprint == config.fingerprint
    assert f"| `{path.name}` |" in README


def test_demo_fits_together():
    """The rules-only half reads the same corpus as the demo, and shares no name and no tier with it."""
    rules, demo = load(CONFIGS / "demo-rules.yaml", STAGES), load(CONFIGS / "demo.yaml", STAGES)
    assert rules.input == demo.input
    assert rules.name != demo.name
    assert [entry.label for entry in rules.stages] == ["heuristics", "exact"]
    assert rules.stages == demo.stages[:2]
    urls = [getattr(config.tiers, tier).url for config in (rules, demo) for tier in ("work", "hot", "cold")]
    assert len(set(urls)) == 6


def test_demo_prices_are_assumed():
    """Every price of the demonstration says that it is assumed."""
    demo = load(CONFIGS / "demo.yaml", STAGES)
    sources = [demo.run.pool.source, demo.training.price_source]
    sources += [tier.prices.source for tier in (demo.tiers.hot, demo.tiers.cold)]
    assert {source.split()[0] for source in sources} == {"assumed"}
    assert demo.training.bytes_per_token == 4.0


def test_presets_show_every_section():
    """The full-size preset uses every section that is built, so that a user finds an example of each."""
    given = yamltext.parse((CONFIGS / "web.yaml").read_text(), "web.yaml").value
    assert set(given) == {*fields(Settings), "stages"} - {"budget"}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("minhash.treshold=0.8", ["stages.3.treshold: ", "did you mean 'threshold'?"]),
        ("minhash.threshold='0.8'", ["stages.3.threshold: got '0.8'", "without quotes"]),
        ("minhash.threshold=1.5", ["stages.3.threshold: got 1.5"]),
        ("minhash={stage: minhash, bands: 400, rows: 100}", ["minhash.KEY=VALUE"]),
        ("stages.3={stage: minhash, bands: 400, rows: 100}", ["stages.3.bands: got 400", "16384"]),
        ("minhash.keep=[quality.scor desc]", ["stages.3.keep.0: got 'quality.scor desc'", "did you mean 'quality.sc"]),
        ("exact.keep=[quality.score desc]", ["stages.1.keep.0: got 'quality.score desc'", "move quality before exact"]),
        ("exact.normalisation=text1", ["stages.1.normalisation: got 'text1'", "did you mean 'text-1'?"]),
        ("select.keep_bottom=0.5", ["stages.4: ", "exactly one of keep_top, keep_bottom, band"]),
        ("select.by=difficulty.bits_per_byte", ["stages.4.by: ", "move difficulty before select"]),
        ("select.ties=hash", ["stages.4.ties: got 'hash'", "not built yet"]),
        ("difficulty.model=gpt2", ["stages.5.model: got 'gpt2'", "not built yet"]),
        ("difficulty.sample=20MX", ["stages.5.sample: got '20MX'", "units: B, kB, MB"]),
        ("curriculum.by=difficulty.bits_per_bite", ["stages.6.by: ", "did you mean 'difficulty.bits_per_byte'?"]),
        ("curriculum.anneal_buckets=[7]", ["stages.6.anneal_buckets: got ", "buckets from 0 to 4"]),
        ("heuristics.rules=[gopher]", ["stages.0.rules.0: got 'gopher'", "gopher_quality"]),
        ("heuristics.min_words=-1", ["stages.0.min_words: got -1"]),
    ],
)  # fmt: skip
def test_mistake_in_a_stage(override, expected):
    """Whatever a shipped stage refuses is told with the key path in the file, whoever found it."""
    with pytest.raises(ConfigError) as caught:
        load(CONFIGS / "demo.yaml", STAGES, [override])
    for part in expected:
        assert part in caught.value.message
    assert len(caught.value.message.splitlines()) == 1
