"""The sections of a config file as frozen models, stages apart. configs/README.md says what each key means.

A key that is known but whose feature does not exist yet is declared with `not_built`: setting it is an error that says
so, with what to do instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from pipeline.units import Count, Date, Duration, Size

Name = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Price = Annotated[float, Field(ge=0)]
Positive = Field(gt=0)

_SECRET = re.compile(r"(?i)secret|passw|passphrase|token|credential|connection_string|(account|api|private)_?key")
PASSWORD_IN_URL = re.compile(r"://[^/@]*:[^/@]*@")


def _spelt(pattern: str, rule: str) -> AfterValidator:
    def check(text: str) -> str:
        _refuse(not re.fullmatch(pattern, text), rule)
        return text

    return AfterValidator(check)


def _refuse(condition: object, rule: str) -> None:
    if condition:
        raise ValueError(rule)


def not_built(instead: str) -> AfterValidator:
    """Refuse a recognised key whose feature is absent, unless it is null."""
    return AfterValidator(lambda value: _refuse(value is not None, f"this is not built yet; {instead}"))


def _without_password(url: str) -> str:
    _refuse(
        PASSWORD_IN_URL.search(url),
        "a URL must not hold a password, since it is written into manifests; use the environment",
    )
    return url


Url = Annotated[Name, AfterValidator(_without_password)]


RUN_NAME = "it names folders: at most 100 of a-z, 0-9, '.', '_' and '-', the first a letter or digit"


class Section(BaseModel):
    """Base of the sections: frozen, strict types, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class PathConfig(Section):
    """One entry of `input.paths`; a plain string stands for `{url: ...}`."""

    url: Url
    prefix: Name | None = Field(default=None, alias="as")

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value


class ColumnsConfig(Section):
    """Which input column plays which part. None: the column of that name, where the input has one."""

    text: Name = "text"
    id: Name | None = None
    source: Name | None = None
    language: Name | None = None
    date: Name | None = None


class InputConfig(Section):
    paths: tuple[PathConfig, ...] = Field(min_length=1)
    columns: ColumnsConfig = ColumnsConfig()
    invalid_utf8: Literal["replace", "quarantine"] = "replace"
    bad_shards: Literal["quarantine", "stop"] = "quarantine"
    max_document_bytes: Annotated[Size, Positive] = 64 * 2**20
    slice_bytes: Annotated[Size, Positive] = 256 * 2**20


class SourceConfig(Section):
    """What is special about one source; keep orders, select, curriculum and guards read it."""

    priority: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    protect: bool = False
    max_epochs: Annotated[float, Positive] | None = None


class StoragePriceConfig(Section):
    price_per_gb_month: Price
    source: Name | None = None
    date: Date | None = None


class TierConfig(Section):
    url: Url
    scope: Literal["shared", "node"] = "shared"
    options: dict[str, Any] = {}
    prices: StoragePriceConfig | None = None
    ttl: Annotated[Duration | None, not_built("leave it out: nothing is deleted on its own")] = None
    region: Annotated[str | None, not_built("leave it out: transfer between regions is not priced")] = None
    capacity: Annotated[Size | None, not_built("leave it out: free space is not watched")] = None

    @field_validator("scope")
    @classmethod
    def _shared(cls, scope: str) -> str:
        _refuse(scope == "node", "this is not built yet; publish to a shared tier")
        return scope

    @field_validator("prices", mode="before")
    @classmethod
    def _inline(cls, prices: object) -> object:
        _refuse(
            isinstance(prices, str),
            "a named price list is not built yet; write {price_per_gb_month, source, date} here",
        )
        return prices

    @field_validator("options")
    @classmethod
    def _without_secrets(cls, options: dict[str, Any]) -> dict[str, Any]:
        for key in _keys(options):
            _refuse(
                _SECRET.search(key),
                f"{key!r} looks like a secret, and configs are stored with their runs; "
                "let the store's client find it in the environment",
            )
        return options


class TiersConfig(Section):
    work: TierConfig
    hot: TierConfig
    cold: TierConfig


class ValidationConfig(Section):
    tokens: Annotated[Count, Positive]


class LimitsConfig(Section):
    """Bounds on every phase of the manifest."""

    epochs: Annotated[float, Positive] = 4.0
    floor: Share = 0.1


class PublishConfig(Section):
    formats: tuple[Literal["text", "megatron", "mds", "flat"], ...] = ("text",)
    mix_by: tuple[Name, ...] = ()
    validation: ValidationConfig | None = None
    part_bytes: Annotated[Size, Positive] = 256 * 2**20
    columns: tuple[Name, ...] | None = Field(default=None, min_length=1)
    limits: LimitsConfig = LimitsConfig()

    @field_validator("mix_by", "columns")
    @classmethod
    def _each_once(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        _refuse(names and len(set(names)) < len(names), "each column may stand once")
        return names

    @field_validator("formats")
    @classmethod
    def _only_text(cls, formats: tuple[str, ...]) -> tuple[str, ...]:
        _refuse(formats != ("text",), "anything but [text] is not built yet; publish text, then `corpusmill export`")
        return formats


class TrainingConfig(Section):
    """What the corpus is for. Whatever is None stays unknown in the report, or takes the default named there."""

    parameters: Annotated[Count, Positive] | None = None
    tokens: Annotated[Count, Positive] | None = None
    bytes_per_token: Annotated[float, Field(ge=0.01)] | None = None
    gpu: Name | None = None
    mfu: PositiveShare | None = None
    goodput: PositiveShare | None = None
    price_per_gpu_hour: Price | None = None
    price_source: Name | None = None
    price_date: Date | None = None
    tokenizer: Annotated[str | None, not_built("give training.bytes_per_token, an assumed ratio")] = None


class BudgetConfig(Section):
    limit: Annotated[float | None, not_built("leave it out: spending is not limited")] = None
    alert_at: Annotated[tuple[float, ...] | None, not_built("leave it out: nothing alerts")] = None
    tags: Annotated[dict[str, str] | None, not_built("leave it out: costs are not tagged")] = None


class GuardsConfig(Section):
    max_source_loss: Share = 0.95
    min_docs: Annotated[int, Field(ge=0)] = 100
    accept: tuple[Name, ...] = ()


class PoolConfig(Section):
    """The machines that the run is charged for."""

    name: Name = "local"
    kind: Literal["on_demand", "spot", "reserved"] = "on_demand"
    price_per_cpu_hour: Price | None = None
    source: Name | None = None
    date: Date | None = None


class RayConfig(Section):
    pythonpath: tuple[Name, ...] = ()


def _cores_or_number(value: object) -> object:
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    _refuse(not count and value != "cores", "it must be cores or a number of processes; 0 works in the driver's own")
    return value


def _auto_or_power_of_two(value: object) -> object:
    power = isinstance(value, int) and not isinstance(value, bool) and value in {2**n for n in range(13)}
    _refuse(not power and value != "auto", "it must be auto or a power of two from 1 to 4096")
    return value


def _one_pool(value: object) -> object:
    _refuse(isinstance(value, list), "more than one price pool is not built yet; describe one")
    return value


class RunConfig(Section):
    """How the work is done. Nothing here but `seed` can change a result."""

    executor: Literal["local", "ray"] = "local"
    address: Name | None = None
    workers: Annotated[int | Literal["cores"], BeforeValidator(_cores_or_number)] = "cores"
    worker_memory: Annotated[Size, Positive] = 1_200_000_000
    partitions: Annotated[int | Literal["auto"], BeforeValidator(_auto_or_power_of_two)] = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    keep_exchange: bool = True
    max_attempts: Annotated[int, Field(ge=1)] = 3
    pool: Annotated[PoolConfig, BeforeValidator(_one_pool)] = PoolConfig()
    ray: RayConfig = RayConfig()
    pools: Annotated[Any, not_built("describe the one pool under run.pool")] = None
    resources: Annotated[Any, not_built("every task takes one CPU and run.worker_memory")] = None


class Settings(Section):
    """A config file without its stages."""

    name: Annotated[str, _spelt(r"[a-z0-9][a-z0-9._-]{0,99}", RUN_NAME)]
    currency: Annotated[str, _spelt(r"[A-Z]{3}", "it must be a currency's three capital letters; for instance EUR")] = (
        "USD"
    )
    input: InputConfig
    sources: dict[Name, SourceConfig] = {}
    tiers: TiersConfig
    publish: PublishConfig = PublishConfig()
    training: TrainingConfig = TrainingConfig()
    budget: BudgetConfig = BudgetConfig()
    guards: GuardsConfig = GuardsConfig()
    run: RunConfig = RunConfig()


def fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a model as a config file spells them."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def section(annotation: object) -> type[BaseModel] | None:
    """The model inside a field's annotation: `Price | None` and `dict[str, Source]` hold one, `int` holds none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := section(part)) is not None), None)


def walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(key path, field) for every key at every depth; `*` stands for a name or a position: `sources.*.priority`."""
    for key, field in fields(model).items():
        yield prefix + key, field
        inner = section(field.annotation)
        if inner is not None:
            many = get_origin(field.annotation) in (tuple, dict)
            yield from walk(inner, f"{prefix}{key}.*." if many else f"{prefix}{key}.")


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _keys(inner)
