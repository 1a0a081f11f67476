"""A stack of equal blocks, compiled once and scanned.

All layers' parameters live in one module whose arrays have a leading ``layers`` axis. The body of the scan is traced
once whatever the depth, and is rematerialised by a policy that keeps what is dear to recompute (the outputs of matrix
products) and drops what is cheap (norms, activations, masks, rotations). All-or-nothing policies lose on both sides:
saving everything copies stacked residuals, saving nothing repeats every product.

References:
    Korthikanti et al., Reducing activation recomputation, arXiv:2205.05198, section 4 (selective recomputation).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from levanter.errors import ConfigError
from levanter.tree_paths import is_named

RematPolicy = bool | str
_POLICIES: dict[RematPolicy, Any] = {
    True: jax.checkpoint_policies.dots_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "simple": jax.checkpoint_policies.dots_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
    "recompute": jax.checkpoint_policies.nothing_saveable,
    "save_all": jax.checkpoint_policies.everything_saveable,
    "disable": jax.checkpoint_policies.everything_saveable,
    False: jax.checkpoint_policies.everything_saveable,
}


def check_remat(policy: RematPolicy) -> RematPolicy:
    """Return a known policy.

    Raises:
        ConfigError: any other value.
    """
    if policy not in _POLICIES:
        names = ", ".join(sorted(str(name) for name in _POLICIES))
        raise ConfigError(f"unknown remat policy {policy!r}; expected one of {names}.", key="gradient_checkpointing")
    return policy


class Stacked(eqx.Module):
    """Blocks with a leading layer axis on every array.

    Attributes:
        stacked: One block module whose NamedArrays start with the layer axis.
        layer_axis: Name and size of that axis.
        remat: What to keep for the backward pass; see :func:`check_remat`.
        scan_layers: Scan (compile one layer) or unroll (compile them all).
    """

    stacked: Any
    layer_axis: Axis = eqx.field(static=True)
    remat: RematPolicy = eqx.field(static=True)
    scan_layers: bool = eqx.field(static=True)

    @staticmethod
    def init(
        layer_axis: Axis, make: Callable[[jax.Array], Any], *, key: jax.Array, remat: RematPolicy, scan: bool = True
    ) -> "Stacked":
        """Make one block per layer, each from its own key.

        Args:
            layer_axis: How many, under which name.
            make: Block from a key.
            key: Split into one key a layer.
            remat: Policy.
            scan: Scan or unroll.
        """
        keys = jax.random.split(key, layer_axis.size)
        template = jax.eval_shape(make, keys[0])
        batched = jax.vmap(make)(keys)

        def with_layer(one: Any, many: Any) -> Any:
            return NamedArray(many.array, (layer_axis, *one.axes)) if is_named(one) else many

        stacked = jax.tree.map(with_layer, template, batched, is_leaf=is_named)
        return Stacked(stacked, layer_axis, check_remat(remat), scan)

    def layer(self, index: Any) -> Any:
        """One block; ``index`` may be traced."""
        return self._block([leaf[index] for leaf in jax.tree.leaves(self.stacked)])

    def leaves(self) -> list[jax.Array]:
        """The raw arrays, each with the layer axis first; what a scan over layers carries."""
        return jax.tree.leaves(self.stacked)

    def block(self, leaves: list[jax.Array]) -> Any:
        """Rebuild one block from one layer's slice of :meth:`leaves`."""
        return self._block(leaves)

    def fold(self, fn: Callable[[Any, Any], Any], carry: Any) -> Any:
        """``carry = fn(block, carry)`` for every layer in order."""
        return self.scan(lambda block, state, _: (fn(block, state), None), carry, None)[0]

    def scan(self, fn: Callable[[Any, Any, Any], tuple[Any, Any]], carry: Any, xs: Any) -> tuple[Any, Any]:
        """``carry, y = fn(block, carry, x)`` for every layer in order.

        Args:
            fn: Takes the block, the carry and the layer's slice of ``xs``.
            carry: Starting value.
            xs: Tree of arrays with the layer axis first. When unrolled, slices of NumPy arrays stay concrete.

        Returns:
            The last carry, and the ``y`` of all layers stacked along a leading layer axis.
        """

        def body(state: Any, leaves: list[jax.Array], x: Any) -> Any:
            return fn(self._block(leaves), state, x)

        saves_all = self.remat in (False, "save_all", "disable")
        policy = _POLICIES[self.remat]
        if self.scan_layers:
            run = body if saves_all else jax.checkpoint(body, policy=policy, prevent_cse=False)
            return jax.lax.scan(lambda state, item: run(state, *item), carry, (self.leaves(), xs))
        outputs = []
        for index in range(self.layer_axis.size):
            x = jax.tree.map(lambda a, i=index: a[i], xs)
            one = lambda state, leaves, x=x: body(state, leaves, x)  # noqa: E731 -- keeps x concrete under checkpoint
            run = one if saves_all else jax.checkpoint(one, policy=policy, prevent_cse=True)
            carry, y = run(carry, [leaf[index] for leaf in self.leaves()])
            outputs.append(y)
        return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *outputs)

    def _block(self, leaves: list[jax.Array]) -> Any:
        remaining = iter(leaves)

        def without_layer(leaf: Any) -> Any:
            value = next(remaining)
            return NamedArray(value, tuple(leaf.axes[1:])) if is_named(leaf) else value

        return jax.tree.map(without_layer, self.stacked, is_leaf=is_named)
