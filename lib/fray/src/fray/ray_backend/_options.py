"""Resources and environments in Ray's words."""

from collections.abc import Mapping
from typing import Any, Final

import ray
from rigging.resources import ANY_REGION, CpuConfig, GpuConfig, ResourceConfig, TpuConfig

from fray._overlay import requirements_of
from fray.errors import JobRequestError
from fray.types import EnvironmentConfig

_ACCELERATORS: Final = {"A100-40G": "A100-40G", "A100-80G": "A100-80G", "auto": None}
_PACKAGES_VARIABLE: Final = "FRAY_PACKAGES"
_EPSILON: Final = 1e-6


def resource_options(resources: ResourceConfig) -> dict[str, Any]:
    """Return Ray's scheduling options of one replica.

    A request that keeps the default resources reserves one core and no memory, so that it fits every machine; otherwise
    ``ram`` is reserved. Regions, zone and "not preemptible" become label selectors on Ray's own node labels.

    Example:
        >>> resource_options(ResourceConfig())
        {'num_cpus': 1}
        >>> resource_options(ResourceConfig.with_gpu("H100", 2, cpu=8, ram="64g"))["accelerator_type"]
        'H100'
    """
    options: dict[str, Any] = {"num_cpus": resources.cpu}
    if resources != ResourceConfig(replicas=resources.replicas):
        options["memory"] = resources.ram_bytes
    device = resources.device
    if isinstance(device, GpuConfig):
        options["num_gpus"] = device.count
        accelerator = _ACCELERATORS.get(device.variant, device.variant)
        if accelerator is not None:
            options["accelerator_type"] = accelerator
    elif isinstance(device, TpuConfig):
        options["resources"] = {"TPU": device.chip_count()}
    labels: dict[str, str] = {}
    if resources.regions and ANY_REGION not in resources.regions:
        labels["ray.io/availability-region"] = f"in({','.join(resources.regions)})"
    if resources.zone is not None:
        labels["ray.io/availability-zone"] = resources.zone
    if not resources.preemptible:
        labels["ray.io/market-type"] = "!spot"
    if labels:
        options["label_selector"] = labels
    return options


def bundle(options: Mapping[str, Any]) -> dict[str, float]:
    """Return what one replica takes, as a bundle of a placement group.

    Example:
        >>> bundle({"num_cpus": 2, "num_gpus": 1, "memory": 1024})
        {'CPU': 2, 'GPU': 1, 'memory': 1024}
    """
    names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    wanted: dict[str, float] = {names[key]: value for key, value in options.items() if key in names and value}
    wanted |= options.get("resources", {})
    if "accelerator_type" in options:
        wanted[f"accelerator_type:{options['accelerator_type']}"] = 0.001
    return wanted


def require_feasible(options: Mapping[str, Any], num_replicas: int) -> None:
    """Refuse what the present machines of the cluster can never hold.

    Raises:
        JobRequestError: One replica fits no machine, or all together do not fit the cluster.
    """
    wanted = bundle(options)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) + _EPSILON >= amount for name, amount in wanted.items()) for node in nodes):
        raise JobRequestError(
            "resources", wanted, f"what one machine has: {[_plain(node) for node in nodes]}", "Ask for less."
        )
    for name, amount in wanted.items():
        total = sum(node.get(name, 0) for node in nodes)
        if num_replicas > 1 and amount * num_replicas > total + _EPSILON:
            raise JobRequestError(
                "replicas", num_replicas, f"{name} for all at once, of which there are {total:g}", "Ask for less."
            )


def _plain(node: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in node.items() if not name.startswith(("node:", "object_store_memory"))}


def runtime_env(environment: EnvironmentConfig | None, resources: ResourceConfig) -> dict[str, Any]:
    """Return Ray's runtime environment: variables from the start of the process on, and packages.

    A worker process serves only tasks of one runtime environment, and a new one costs a second to start. So a plain
    request has none: its device's variables are set by ``fray.ray_backend._worker`` before the task runs.

    Raises:
        JobRequestError: A container image is asked for, or an extra that the workspace does not offer.

    Example:
        >>> runtime_env(None, ResourceConfig())
        {}
        >>> runtime_env(None, ResourceConfig.with_gpu("H100"))
        {'env_vars': {'JAX_PLATFORMS': ''}}
    """
    variables: dict[str, str] = {}
    result: dict[str, Any] = {}
    if environment is not None:
        _refuse(environment)
        variables = dict(environment.env_vars)
        requirements = requirements_of(environment)
        if requirements:
            # The packages are put in place by the worker; this keeps its process from serving others.
            variables[_PACKAGES_VARIABLE] = " ".join(sorted(requirements))
    if variables or not isinstance(resources.device, CpuConfig):
        result["env_vars"] = dict(resources.device.default_env_vars()) | variables
    return result


def _refuse(environment: EnvironmentConfig) -> None:
    if environment.docker_image is not None:
        raise JobRequestError(
            "docker_image",
            environment.docker_image,
            "none on the Ray backend, whose nodes choose the image",
            "Start the cluster with that image.",
        )
