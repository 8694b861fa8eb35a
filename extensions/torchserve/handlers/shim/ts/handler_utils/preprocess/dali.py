"""Pipelines of NVIDIA DALI, which decode and resize the images of a batch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from handlers.common.vision import IMAGENET_MEAN, IMAGENET_STD
from headrace.errors import ConfigError

_RESIZED: Final = 256
_CROPPED: Final = 224
_WHITE: Final = 255


def get_dali_pipeline(ctx: Any) -> Any:
    """Return the pipeline that the section `dali` of a model's configuration describes.

    Args:
        ctx: the handler's context. The section has `batch_size`, `num_threads`, `device_id` (-1:
            the CPU), `seed`, and perhaps `pipeline_file`: a serialized pipeline of the archive,
            whose input has the name `source`. Without one, images are resized, cropped and
            normalized as ImageNet's models expect it.

    Raises:
        ConfigError: DALI is not installed, the section is missing, or its file is.
    """
    section = ctx.model_yaml_config.get("dali")
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"{ctx.model_name}: the model's configuration has no section `dali`",
            hint="name batch_size, num_threads, device_id and seed there",
        )
    pipeline = _dali("pipeline").Pipeline
    gpu = section.get("device_id", ctx.system_properties.get("gpu_id"))
    options = {
        "batch_size": section.get("batch_size", ctx.system_properties.get("batch_size")),
        "num_threads": section.get("num_threads", 1),
        "device_id": None if gpu is None or gpu < 0 else gpu,
        "seed": section.get("seed", 0),
        "prefetch_queue_depth": 1,
    }
    name = section.get("pipeline_file")
    if not name:
        return _default(pipeline(**options))
    path = Path(ctx.system_properties["model_dir"], name)
    if not path.is_file():
        raise ConfigError(
            f"{ctx.model_name}: dali: pipeline_file: there is no file {path}",
            hint="pack it into the archive, as an extra file",
        )
    return pipeline.deserialize(filename=str(path), **options)


def _default(pipeline: Any) -> Any:
    fn, types = _dali("fn"), _dali("types")
    with pipeline:
        images = fn.external_source(name="source", dtype=types.UINT8, ndim=1)
        decoder = "cpu" if pipeline.device_id in (None, types.CPU_ONLY_DEVICE_ID) else "mixed"
        images = fn.decoders.image(images, device=decoder, output_type=types.RGB)
        images = fn.resize(
            images, size=[_RESIZED], mode="not_smaller", interp_type=types.INTERP_LINEAR
        )
        images = fn.crop_mirror_normalize(
            images,
            crop=(_CROPPED, _CROPPED),
            mean=[_WHITE * one for one in IMAGENET_MEAN],
            std=[_WHITE * one for one in IMAGENET_STD],
            dtype=types.FLOAT,
            output_layout="CHW",
        )
        pipeline.set_outputs(images)
    return pipeline


def _dali(name: str) -> Any:
    try:
        return importlib.import_module(f"nvidia.dali.{name}")
    except ImportError as error:
        raise ConfigError(
            f"a DALI handler needs the package nvidia.dali, which cannot be imported: {error}",
            hint="install nvidia-dali for your CUDA version where the worker runs, or use the "
            "handler image_classifier",
        ) from error
