"""Keys of published trainer configurations that have another place here.

    model_axis_size                mesh.axes.model
    replica_ici_axis_size          mesh.axes.replica
    replica_dcn_axis_size          mesh.dcn_axes.replica_dcn
    fsdp_axis                      mesh.param_mapping.<axis>: data
    tensor_parallel_axes           mesh.shared_mapping.<axis>: model
    batch_axis                     mesh.batch_axis_name
    profiler: true, profiler_*     profiler.enabled, profiler.*
    wandb: {...}                   tracker: {type: wandb, ...}
    quantization, shutdown_at_exit, ray, xla_dump_upload, use_explicit_mesh_axes: left out where they ask for nothing

What cannot be honoured is an error, not a silent loss.
"""

import logging
from typing import Any

from levanter.errors import ConfigError

logger = logging.getLogger(__name__)

AXES = {
    "model_axis_size": ("axes", "model"),
    "replica_ici_axis_size": ("axes", "replica"),
    "replica_dcn_axis_size": ("dcn_axes", "replica_dcn"),
}
PROFILER = ("profiler_start_step", "profiler_num_steps", "profiler_perfetto_link")
DROPPED = {
    "quantization": (None,),
    "shutdown_at_exit": (False, None),
    "use_explicit_mesh_axes": (False,),
    "xla_dump_upload": (None, False),
    "ray": None,
}
"""Keys that are left out, with the values for which that changes nothing; None: whatever the value."""


def translate_trainer(raw: dict[str, Any]) -> dict[str, Any]:
    """Today's keys for a mapping that may use yesterday's.

    Raises:
        ConfigError: a key asks for something that is not here.

    Example:
        >>> translate_trainer({"model_axis_size": 2, "seed": 1})
        {'seed': 1, 'mesh': {'axes': {'model': 2}}}
    """
    result = {key: value for key, value in raw.items() if not _is_old(key, raw)}
    old = {key: value for key, value in raw.items() if _is_old(key, raw)}
    if not old:
        return raw
    logger.warning("old configuration keys under trainer: %s", ", ".join(sorted(old)))
    mesh = _mesh(old)
    if mesh:
        result["mesh"] = _merged(mesh, result.get("mesh") or {})
    profiler = {key.removeprefix("profiler_"): old[key] for key in PROFILER if key in old}
    if "profiler" in old or profiler:
        result["profiler"] = {"enabled": bool(old.get("profiler")), **profiler}
    if "wandb" in old:
        result.setdefault("tracker", {"type": "wandb", **(old["wandb"] or {})})
    for key, harmless in DROPPED.items():
        if key in old and harmless is not None and old[key] not in harmless:
            raise ConfigError(
                f"{old[key]!r} cannot be honoured here; expected it to be left out.", key=f"trainer.{key}"
            )
    return result


def _is_old(key: str, raw: dict[str, Any]) -> bool:
    if key == "profiler":
        return isinstance(raw[key], bool)
    names = (*AXES, *PROFILER, *DROPPED, "fsdp_axis", "tensor_parallel_axes", "batch_axis", "wandb")
    return key in names


def _mesh(old: dict[str, Any]) -> dict[str, Any]:
    mesh: dict[str, Any] = {}
    for key, (group, axis) in AXES.items():
        if key in old:
            mesh.setdefault(group, {})[axis] = old[key]
    if old.get("fsdp_axis") is not None:
        names = old["fsdp_axis"]
        mesh["param_mapping"] = {name: "data" for name in ([names] if isinstance(names, str) else names)}
    if old.get("tensor_parallel_axes") is not None:
        mesh["shared_mapping"] = {name: "model" for name in old["tensor_parallel_axes"]}
    if old.get("batch_axis") is not None:
        mesh["batch_axis_name"] = old["batch_axis"]
    return mesh


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Both mappings, key by key; what is written in today's form wins."""
    both = {**old, **new}
    for key in set(old) & set(new):
        if isinstance(old[key], dict) and isinstance(new[key], dict):
            both[key] = {**old[key], **new[key]}
    return both
