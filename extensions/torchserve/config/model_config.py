"""The `configFile` of an archive (model-config.yaml), and what becomes of it: model options.

TorchServe takes a model's settings from four places, and their order differs by setting:

| setting | the first place that has it |
|---|---|
| batch size and delay | request, model-config.yaml, `models` of config.properties, 1 and 100 ms |
| timeouts | model-config.yaml, `models`, request, `default_response_timeout` and the like |
| workers | model-config.yaml, `models`, request, `default_workers_per_model` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import yaml

from extensions.torchserve.config.sequences import SequenceLimits
from extensions.torchserve.config.settings import TorchServeConfig
from headrace.config.values import shown
from headrace.config.yaml_file import BoundedLoader, TooDeep
from headrace.errors import ConfigError

#: The most model processes that a model may have.
MAX_WORKERS: Final = 256
#: PyYAML reads about 200 kB a second.
_MAX_BYTES: Final = 256 * 1024
_MAX_S: Final = 86_400
#: No process loads in this time.
_LEAST_S: Final = 0.001
_MAX_DEPTH: Final = 100_000_000
#: The number of model processes that a request asks for.
INITIAL_WORKERS: Final = "initialWorkers"
#: In a request these count as not given, as in TorchServe.
_NOT_GIVEN: Final = {
    "batchSize": -1, "maxBatchDelay": -100, "responseTimeout": -1, "startupTimeout": -1
}  # fmt: skip
#: Members of the `options` of a version, for its description. They are the URL or the name that a
#: request has registered it by, the runtime that the request has named, and whether the server has
#: started with it. The last one is another text for each registration, as the archive of the same
#: name may be another one.
URL: Final = "url"
RUNTIME: Final = "runtime"
AT_START: Final = "loaded_at_start"
REGISTRATION: Final = "registration"
#: Members that change how requests are taken. With `useJobTicket` a request is taken only if a
#: model process is idle. With `sequenceBatching` all run in one model process; the value is its
#: limits, or True without them. With `continuousBatching` a request joins a batch that runs.
JOB_TICKET: Final = "job_ticket"
SEQUENCES: Final = "sequences"
CONTINUOUS: Final = "continuous"
#: Numbers below the least one that an option of ours takes, by TorchServe's names. TorchServe takes
#: them: with a time limit of 0, each load or request fails.
TOO_SMALL: Final = "too_small"
RESPONSE_TIMEOUT: Final = "responseTimeout"
#: Our own key in `models` of config.properties, which the operator writes. No archive sets it.
WEIGHTS_ONLY: Final = "weightsOnly"
#: Keys of TorchServe that are accepted and have no effect.
_UNUSED: Final = frozenset({"asyncCommunication", "maxRetryTimeoutInSec", "useVenv"})
#: For these TorchServe starts the processes of one worker with torchrun.
_TORCHRUN_TYPES: Final = ("pp", "tp", "pptp")
_PARALLEL_TYPES: Final = (*_TORCHRUN_TYPES, "custom")


class ModelYaml(NamedTuple):
    """A model-config.yaml.

    Attributes:
        values: the keys that become model options, by TorchServe's names.
        problems: what is ignored, and why: for the log.
        is_readable: whether it is a mapping in YAML. If not, the file as a whole is ignored.
    """

    values: dict[str, Any]
    problems: list[str]
    is_readable: bool = True


def read_model_config(path: Path) -> ModelYaml:
    """Return the settings in a model-config.yaml; a file that cannot be read has none.

    A value of the wrong type is left out. The keys that only the handler reads are left out too.

    Raises:
        ConfigError: it is too large, or nested too deeply: the handler could not load it either.
    """
    root, problem = _compose(path)
    if problem:
        return ModelYaml({}, [f"{path.name}: {problem}"], is_readable=False)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key_node, node in root.value if root is not None else ():
        key = key_node.value
        if not isinstance(key, str):
            continue
        if key == "torchrun":
            values |= _processes_of(node)
        elif key in _UNUSED:
            problems.append(f"{path.name}: {key}: it has no effect here")
        elif key in _KEYS:
            expected, check = _KEYS[key]
            value = _plain(node)
            if check(value):
                values[key] = value
            else:
                problems.append(f"{path.name}: {key}: expected {expected}, got {shown(value)}")
                if key == "minWorkers" and type(value) is int:
                    values[key] = 1  # as in TorchServe: too small a number counts as the least
    return ModelYaml(values, problems)


def _compose(path: Path) -> tuple[yaml.MappingNode | None, str]:
    """Return the node of a file, None for an empty one, and what is wrong with the file."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(
                f"{path.name}: it is larger than {_MAX_BYTES:,} bytes",
                hint="put what the handler alone reads into another file",
            )
        # Nodes of other keys are not made into values: aliases could make them long.
        root = yaml.compose(path.read_bytes(), Loader=BoundedLoader)
    except OSError as error:
        return None, f"it cannot be read: {error.strerror}"
    except TooDeep as error:
        raise ConfigError(f"{path.name}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:
        return None, f"it is no YAML: {' '.join(str(error).split())[:200]}"
    if root is not None and not isinstance(root, yaml.MappingNode):
        return None, "it is no mapping"
    return root, ""


def is_parallel(values: Mapping[str, Any]) -> bool:
    """Return whether torchrun would start the processes of a model-config.yaml."""
    return str(values.get("parallelType", "")).lower() in _TORCHRUN_TYPES


def has_sequences(values: Mapping[str, Any]) -> bool:
    """Return whether a model-config.yaml asks for sequences of requests."""
    return values.get("sequenceBatching") is True


def is_continuous(values: Mapping[str, Any]) -> bool:
    """Return whether a model-config.yaml asks for continuous batching."""
    return values.get("continuousBatching") is True


def why_refused(values: Mapping[str, Any]) -> str:
    """Return why a model with this model-config.yaml cannot run here; "" if it can."""
    level = values.get("parallelLevel", 1)
    if "parallelType" in values and level > 1:
        return (
            f"parallelType: {values['parallelType']} with {level} processes: a model of Headrace "
            "runs in one process. Load it over several GPUs there, such as with "
            'device_map="auto", and remove parallelType'
        )
    return ""


def details_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a version's `options` that a model-config.yaml sets."""
    limits = SequenceLimits.of_yaml(values)
    found = {
        JOB_TICKET: values.get("useJobTicket") is True,
        SEQUENCES: has_sequences(values) and (limits._asdict() if limits else True),
        CONTINUOUS: is_continuous(values),
    }
    return {name: given for name, given in found.items() if given}


def yaml_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model options that a model-config.yaml sets."""
    details = details_of(values)
    return {
        **(_one_worker({}) if SEQUENCES in details else _yaml_workers(values)),
        **_other_options(values),
        **({"options": details} if details else {}),
    }


def _one_worker(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for one model process, or for none if there should be none."""
    return {"total_replicas": min(1, options.get("total_replicas", 1))}


def model_options(
    config: TorchServeConfig,
    name: str,
    version: str,
    values: Mapping[str, Any],
    requested: Mapping[str, int] = MappingProxyType({}),
    *,
    workers: int = 0,
) -> dict[str, Any]:
    """Return the options with which a model is registered.

    Args:
        requested: what a request asks for, by the names of model-config.yaml and INITIAL_WORKERS.
            A number of 0 or less is a choice too.
        workers: the number of model processes where nothing else gives one.
    """
    declared = config.models.get(name, {}).get(version, {})
    settings = {
        key: value
        for source in (declared, values)
        for key, value in source.items()
        # There, 0 counts as not given.
        if key in _KEYS and _KEYS[key][1](value) and (key not in _NUMBERS or value > 0)
    }
    given = {n: v for n, v in requested.items() if v != _NOT_GIVEN.get(n, v)}
    batch = {key: value for key, value in given.items() if key in _BATCH}
    defaults = {
        "responseTimeout": config.default_response_timeout,
        "startupTimeout": config.default_startup_timeout,
    }
    # A request wins for batches, and loses for timeouts.
    settings = {**defaults, **given, **settings, **batch}
    counts = _yaml_workers(values) or _workers(config, declared, requested, workers)
    return {
        "max_batch_size": 1,
        "max_batch_delay_ms": 100,
        "max_queue_depth": min(max(config.job_queue_size, 1), _MAX_DEPTH),
        **(_one_worker(counts) if has_sequences(values) else counts),
        **_other_options(settings),
        **_too_small(settings),
        **({"weights_only": False} if declared.get(WEIGHTS_ONLY) is False else {}),
    }


def _too_small(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for numbers of 0 or less, and these numbers if no option takes them."""
    small = {key: settings[key] for key in _LEAST if settings.get(key, 1) <= 0}
    options = {_NUMBERS[key][0]: _LEAST[key] for key in small}
    unheld = {key: value for key, value in small.items() if value < _LEAST[key]}
    return {**options, **({"options": {TOO_SMALL: unheld}} if unheld else {})}


def requested_too_small(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of 0 or less that a request had given, from a snapshot."""
    return {
        name: settings[name]
        for name in _NOT_GIVEN
        if type(settings.get(name)) is int and settings[name] <= 0
    }


def with_snapshot(values: Mapping[str, Any], snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model-config.yaml with what requests have changed since, as a snapshot has it."""
    changed = {key: snapshot[key] for key in _CHANGED if type(snapshot.get(key)) is int}
    return {**values, **changed}


def _yaml_workers(values: Mapping[str, Any]) -> dict[str, Any]:
    low, high = values.get("minWorkers", 0), values.get("maxWorkers", 0)
    return worker_options(low, high) if 0 < low <= high else {}


def _other_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, (option, most) in _NUMBERS.items():
        if settings.get(key, 0) > 0:
            options[option] = min(settings[key], most)
    if settings.get("clientTimeoutInMills", 0) > 0:
        options["expires_s"] = min(settings["clientTimeoutInMills"] / 1000, _MAX_S)
    if settings.get("deviceType") == "cpu":
        options["device"] = "cpu"
    if settings.get("deviceIds"):
        options["device_ids"] = settings["deviceIds"]
    return options


def _workers(
    config: TorchServeConfig,
    declared: Mapping[str, Any],
    requested: Mapping[str, int],
    workers: int,
) -> dict[str, Any]:
    """Return the options for the number of model processes, if model-config.yaml gives none."""
    low, high = declared.get("minWorkers"), declared.get("maxWorkers")
    if isinstance(low, int) and low >= 0:
        return worker_options(low, high if isinstance(high, int) and high > low else low)
    if INITIAL_WORKERS in requested:
        workers = max(requested[INITIAL_WORKERS], 0)
    elif config.default_workers_per_model > 0:
        workers = config.default_workers_per_model
    return worker_options(workers, workers)


def worker_options(low: int, high: int) -> dict[str, Any]:
    """Return the options for so many model processes, at least and at most, in all workers.

    With `low` below `high` the number follows the demand; the limits then hold in each worker.
    """
    low, high = min(low, MAX_WORKERS), min(high, MAX_WORKERS)
    if 0 < low < high:
        return {"replicas": low, "min_replicas": low, "max_replicas": high}
    return {"total_replicas": low}


def _plain(node: yaml.Node) -> Any:
    """Return the value of a scalar, or of a list of scalars; else None."""
    constructor = yaml.constructor.SafeConstructor()
    try:
        if isinstance(node, yaml.ScalarNode):
            return constructor.construct_object(node)
        if isinstance(node, yaml.SequenceNode) and all(
            isinstance(item, yaml.ScalarNode) for item in node.value
        ):
            return [constructor.construct_object(item) for item in node.value]
    except (yaml.YAMLError, ValueError):
        return None
    return None


def _processes_of(node: yaml.Node) -> dict[str, int]:
    """Return the number of processes in the section `torchrun`, as `parallelLevel`."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == "nproc-per-node" and _is_int(1)(_plain(value)):
            return {"parallelLevel": _plain(value)}
    return {}


def _is_int(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_devices(value: Any) -> bool:
    fits = _is_int(0)
    return isinstance(value, list) and 0 < len(value) <= 64 and all(fits(one) for one in value)


#: What a request changes although model-config.yaml has it.
_CHANGED: Final = ("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay")
#: TorchServe's keys with an integer, with our option and its limit.
_NUMBERS: Final = {
    "batchSize": ("max_batch_size", 4096),
    "maxBatchDelay": ("max_batch_delay_ms", 60_000),
    "responseTimeout": ("timeout_s", _MAX_S),
    "startupTimeout": ("load_timeout_s", _MAX_S),
    "jobQueueSize": ("max_queue_depth", _MAX_DEPTH),
}
_BATCH: Final = ("batchSize", "maxBatchDelay")
#: The least that our options take.
_LEAST: Final[Mapping[str, float]] = {
    "batchSize": 1,
    "maxBatchDelay": 0,
    "responseTimeout": _LEAST_S,
    "startupTimeout": _LEAST_S,
}
_KEYS: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    **dict.fromkeys(
        ("minWorkers", "batchSize", "parallelLevel", "maxNumSequence", "maxSequenceJobQueueSize"),
        ("an integer of 1 or more", _is_int(1)),
    ),
    **dict.fromkeys(
        (
            "maxWorkers",
            "maxBatchDelay",
            "responseTimeout",
            "startupTimeout",
            "jobQueueSize",
            "clientTimeoutInMills",
            "sequenceMaxIdleMSec",
            "sequenceTimeoutMSec",
        ),
        ("an integer of 0 or more", _is_int(0)),
    ),
    "deviceType": ("cpu or gpu", lambda value: value in ("cpu", "gpu")),
    "parallelType": (
        ", ".join(_PARALLEL_TYPES),
        lambda value: str(value).lower() in _PARALLEL_TYPES,
    ),
    **dict.fromkeys(
        ("continuousBatching", "sequenceBatching", "useJobTicket"),
        ("true or false", lambda value: isinstance(value, bool)),
    ),
    "deviceIds": ("a list of numbers of GPUs", _is_devices),
}
