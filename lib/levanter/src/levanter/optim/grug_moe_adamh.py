r"""AdamH for grug mixtures of experts: four groups, a rate each.

| group | parameters | step | rate |
|---|---|---|---|
| adamh | attention, shared expert, head | AdamH | learning_rate |
| adamh_expert | the experts' stacks, one matrix an expert | AdamH | expert_lr |
| adam_router | router weights | Adam | router_lr |
| adam | embedding; gates: head gates and gated norms; vectors | Adam | adam_lr |

The direction is Adam's in all of them; AdamH turns matrices by it at fixed norm (:mod:`levanter.optim.hyperball`). That
suits neither a router, whose scale says how sure it is, nor a head gate, which starts at zero and would stay there.
There is no weight decay. The bias of a router is no parameter: each step sets it (:mod:`levanter.grug.router`).

Experts see about ``K / E`` of a batch, so their gradients are noisier than those of the rest; a rate of their own lets
them be slower. All rates follow one schedule.

| field | default |
|---|---|
| learning_rate, adam_lr | 0.003701, 0.002356 |
| expert_lr, router_lr | learning_rate, adam_lr |
| beta1, beta2, epsilon | 0.9062, 0.999, 1e-15 |
| max_grad_norm | 1.0 |

References:
    The public Marin project, grug mixture of experts, 2026; hyperball optimization, arXiv:2606.16899. Defaults: the
    reference run of :data:`levanter.optim.completed_adamh.MIXTURE_OF_EXPERTS`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import optax

from levanter.errors import ConfigError
from levanter.optim.adamh import AdamHConfig
from levanter.optim.composition import CLIP_SCOPES, check_positive, clip_by_norm
from levanter.optim.config import OptimizerConfig
from levanter.optim.hyperball import hyperball
from levanter.optim.matrices import Kind, MatrixView, label_tree, matrix_views, parameter_kinds

_ROUTER = re.compile(r"(^|\.)router(\.weight)?$")
_GATE = re.compile(r"(^|\.)(attn_gate(\.weight)?$|(\w+_)?norm\.)")
_EXPERT_STACK = re.compile(r"(^|\.)w_(gate|up|down)$")


class Group(StrEnum):
    """Which step a parameter takes."""

    ADAMH = "adamh"
    EXPERT = "adamh_expert"
    ROUTER = "adam_router"
    ADAM = "adam"


def parameter_groups(params: Any, *, adam_modules: list[str] | str | None = None) -> dict[str, Group]:
    """Group of every parameter by leaf name.

    Args:
        params: Parameters: a model of ``model.type`` ``grug_moe``, the raw tuples of :mod:`levanter.grug.model`, or any
            other model, whose experts and routers are recognised the same way.
        adam_modules: Matrices that Adam should take too: a regular expression or substrings of their names.

    Example:
        >>> import jax.numpy as jnp
        >>> tree = {"embed": jnp.ones((4, 2)), "wq": jnp.ones((2, 2)), "router": jnp.ones((2, 3))}
        >>> {name: group.value for name, group in parameter_groups(tree).items()}
        {'embed': 'adam', 'router': 'adam_router', 'wq': 'adamh'}
    """
    views = matrix_views(params)
    kinds = parameter_kinds(params, adam_modules=adam_modules)
    return {name: _group(name, kind, views.get(name)) for name, kind in kinds.items()}


def _group(name: str, kind: Kind, view: MatrixView | None) -> Group:
    if _ROUTER.search(name):
        return Group.ROUTER
    if kind not in (Kind.MATRIX, Kind.HEAD) or view is None or _GATE.search(name):
        return Group.ADAM
    named = "experts" in [view.names[dim] for dim in view.stack]
    return Group.EXPERT if named or _EXPERT_STACK.search(name) else Group.ADAMH


@OptimizerConfig.register_subclass("grug_moe_adamh_v2")
@dataclass(frozen=True)
class GrugMoeAdamHConfig(AdamHConfig):
    """AdamH in four groups; see the module for which parameter is in which.

    Attributes:
        weight_decay: Unused: norms are fixed.
        expert_lr: Peak rate of the experts; None means ``learning_rate``.
        router_lr: Peak rate of the routers; None means ``adam_lr``.

    Example:
        >>> GrugMoeAdamHConfig(expert_lr=2e-3).build(100) is not None
        True
    """

    learning_rate: float = 0.003701
    adam_lr: float = 0.002356
    beta1: float = 0.9062
    beta2: float = 0.999
    epsilon: float = 1e-15
    expert_lr: float | None = None
    router_lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("grug_moe_adamh_v2", expert_lr=self.expert_lr, router_lr=self.router_lr)
        if self.clip_scope not in CLIP_SCOPES:
            raise ConfigError(f"clip_scope={self.clip_scope!r}; expected global or group.", key="optimizer.clip_scope")

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build it; ``learning_rate``, ``expert_lr``, ``router_lr`` and ``adam_lr`` are injected."""
        peaks = {
            "learning_rate": self.learning_rate,
            "expert_lr": self.learning_rate if self.expert_lr is None else self.expert_lr,
            "router_lr": self.adam_lr if self.router_lr is None else self.router_lr,
            "adam_lr": self.adam_lr,
        }

        def labels(params: Any) -> Any:
            groups = parameter_groups(params, adam_modules=self.adam_modules)
            return label_tree(params, lambda name: groups[name].value)

        def optimizer(learning_rate: Any, expert_lr: Any, router_lr: Any, adam_lr: Any) -> optax.GradientTransformation:
            inside = clip_by_norm(self.max_grad_norm) if self.clip_scope == "group" else []
            outside = clip_by_norm(self.max_grad_norm) if self.clip_scope == "global" else []
            adam = optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)
            ends = {
                Group.ADAMH: hyperball(learning_rate),
                Group.EXPERT: hyperball(expert_lr),
                Group.ROUTER: optax.scale_by_learning_rate(router_lr),
                Group.ADAM: optax.scale_by_learning_rate(adam_lr),
            }
            parts = {group.value: optax.chain(*inside, adam, end) for group, end in ends.items()}
            return optax.chain(*outside, optax.partition(cast(Any, parts), labels))

        rates = {name: self.lr_scheduler(num_train_steps, peak=peak) for name, peak in peaks.items()}
        return optax.inject_hyperparams(optimizer)(**rates)
