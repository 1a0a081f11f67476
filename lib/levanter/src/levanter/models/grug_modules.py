"""The grug model as modules with named parameters: what the trainer, the optimizers and the exporter need.

The equations are those of :mod:`levanter.grug.model`, called, not copied: every module here can hand out its raw arrays
in that file's tuples. What is added is names: for sharding by axis, for optimizers that ask which layer owns an array,
for state dicts. Layers are stacked and scanned; windows and rotations ride along (:mod:`levanter.models.layer_types`).

The router biases are a :class:`~levanter.trainable.Buffer`: set by each training step, never trained, float32.

Shape suffixes: B batch, P position, L layers, E experts.
"""

import dataclasses
from typing import Any

import equinox as eqx
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from levanter.grug import model as grug
from levanter.grug.router import report
from levanter.layers.attention_mask import AttentionMask
from levanter.layers.linear import InitSpec
from levanter.layers.normalization import NormSpec, RmsNorm
from levanter.layers.rotary import DefaultRotaryConfig
from levanter.layers.stacked import RematPolicy, Stacked
from levanter.metrics import Metric, Reduction
from levanter.models.layer_types import LayerType, plan_layers
from levanter.models.lm_model import HfLmConfig, HfLmModel, batched_ids
from levanter.sharding import constrain
from levanter.trainable import BUFFER_PREFIX, Buffer

ROUTER_BIAS = "router_bias"


class GatedNorm(eqx.Module):
    """``y * sigmoid(silu(y W_d) W_u)`` of ``y = RMS(x) weight``.

    Attributes:
        norm: Weight, axis embed.
        down_proj: Embed to gate rank.
        up_proj: Gate rank to embed.
    """

    norm: RmsNorm
    down_proj: hnn.Linear
    up_proj: hnn.Linear

    @staticmethod
    def init(c: grug.GrugMoeConfig, *, key: jax.Array) -> "GatedNorm":
        """Fresh parameters."""
        Embed, Rank, spec = Axis("embed", c.hidden_dim), Axis("gate_rank", c.gate_rank), InitSpec("normal", c.std)
        down, up = jax.random.split(key)
        norm = NormSpec(eps=c.norm_eps).init(Embed)
        assert isinstance(norm, RmsNorm)
        return GatedNorm(
            norm,
            spec.linear(Embed, Rank, key=down, use_bias=False),
            spec.linear(Rank, Embed, key=up, use_bias=False),
        )

    def raw(self) -> grug.GatedNorm:
        """The arrays."""
        return grug.GatedNorm(self.norm.weight.array, _matrix(self.down_proj), _matrix(self.up_proj))


class GrugAttention(eqx.Module):
    """Projections and head gate of one layer.

    Attributes:
        q_proj: Embed to (heads, head_size).
        k_proj: Embed to (kv_head, head_size).
        v_proj: Embed to (kv_head, head_size).
        o_proj: (heads, head_size) to embed.
        attn_gate: Embed to heads; starts at 0, where every gate is 1.
    """

    q_proj: hnn.Linear
    k_proj: hnn.Linear
    v_proj: hnn.Linear
    o_proj: hnn.Linear
    attn_gate: hnn.Linear

    @staticmethod
    def init(c: grug.GrugMoeConfig, *, key: jax.Array) -> "GrugAttention":
        """Fresh parameters."""
        Embed, Size = Axis("embed", c.hidden_dim), Axis("head_size", c.head_dim)
        Heads, Groups = Axis("heads", c.num_heads), Axis("kv_head", c.num_kv_heads)
        spec, (kq, kk, kv, ko) = InitSpec("normal", c.std), jax.random.split(key, 4)
        gate = hnn.Linear.init(Embed, Heads, key=key, use_bias=False, out_first=False, init_scale=0.0)
        return GrugAttention(
            spec.linear(Embed, (Heads, Size), key=kq, use_bias=False),
            spec.linear(Embed, (Groups, Size), key=kk, use_bias=False),
            spec.linear(Embed, (Groups, Size), key=kv, use_bias=False),
            spec.linear((Heads, Size), Embed, key=ko, use_bias=False),
            gate,
        )


class GrugMlp(eqx.Module):
    """Router and experts of one layer.

    Attributes:
        router: Embed to experts.
        gate_proj: (experts, embed, mlp).
        up_proj: (experts, embed, mlp).
        down_proj: (experts, mlp, embed).
    """

    router: hnn.Linear
    gate_proj: hnn.MoELinear
    up_proj: hnn.MoELinear
    down_proj: hnn.MoELinear

    @staticmethod
    def init(c: grug.GrugMoeConfig, *, key: jax.Array) -> "GrugMlp":
        """Fresh parameters."""
        Embed, Mlp, Experts = Axis("embed", c.hidden_dim), Axis("mlp", c.expert_dim), Axis("experts", c.num_experts)
        kr, kg, ku, kd = jax.random.split(key, 4)

        def experts(In: Axis, Out: Axis, key: jax.Array) -> hnn.MoELinear:
            return hnn.MoELinear.init(Experts, In, Out, key=key, use_bias=False, init_scale=c.std * In.size**0.5)

        router = InitSpec("normal", c.std).linear(Embed, Experts, key=kr, use_bias=False)
        return GrugMlp(router, experts(Embed, Mlp, kg), experts(Embed, Mlp, ku), experts(Mlp, Embed, kd))


class SharedExpert(eqx.Module):
    """The gated MLP that every token visits.

    Attributes:
        gate_proj: Embed to mlp.
        up_proj: Embed to mlp.
        down_proj: Mlp to embed.
    """

    gate_proj: hnn.Linear
    up_proj: hnn.Linear
    down_proj: hnn.Linear

    @staticmethod
    def init(c: grug.GrugMoeConfig, *, key: jax.Array) -> "SharedExpert":
        """Fresh parameters."""
        Embed, Mlp, spec = Axis("embed", c.hidden_dim), Axis("mlp", c.shared_dim), InitSpec("normal", c.std)
        kg, ku, kd = jax.random.split(key, 3)
        return SharedExpert(
            spec.linear(Embed, Mlp, key=kg, use_bias=False),
            spec.linear(Embed, Mlp, key=ku, use_bias=False),
            spec.linear(Mlp, Embed, key=kd, use_bias=False),
        )


class GrugBlock(eqx.Module):
    """One layer.

    Attributes:
        attn_norm: Before attention.
        self_attn: Attention.
        mlp_norm: Before the experts.
        mlp: Router and experts.
        shared_expert: Shared expert.
    """

    attn_norm: GatedNorm
    self_attn: GrugAttention
    mlp_norm: GatedNorm
    mlp: GrugMlp
    shared_expert: SharedExpert

    @staticmethod
    def init(c: grug.GrugMoeConfig, *, key: jax.Array) -> "GrugBlock":
        """Fresh parameters."""
        keys = jax.random.split(key, 5)
        return GrugBlock(
            GatedNorm.init(c, key=keys[0]),
            GrugAttention.init(c, key=keys[1]),
            GatedNorm.init(c, key=keys[2]),
            GrugMlp.init(c, key=keys[3]),
            SharedExpert.init(c, key=keys[4]),
        )

    def raw(self) -> grug.Layer:
        """The arrays."""
        attn, mlp, shared = self.self_attn, self.mlp, self.shared_expert
        return grug.Layer(
            attn_norm=self.attn_norm.raw(),
            wq=_matrix(attn.q_proj),
            wk=_matrix(attn.k_proj),
            wv=_matrix(attn.v_proj),
            wo=_matrix(attn.o_proj, out_axes=1),
            attn_gate=_matrix(attn.attn_gate),
            mlp_norm=self.mlp_norm.raw(),
            router=_matrix(mlp.router),
            w_gate=mlp.gate_proj.weight.array,
            w_up=mlp.up_proj.weight.array,
            w_down=mlp.down_proj.weight.array,
            shared_gate=_matrix(shared.gate_proj),
            shared_up=_matrix(shared.up_proj),
            shared_down=_matrix(shared.down_proj),
        )


class GrugEmbedding(eqx.Module):
    """Token table and its gated norm.

    Attributes:
        token_embeddings: Token table.
        norm: Gated norm of the embeddings.
    """

    token_embeddings: hnn.Embedding
    norm: GatedNorm

    @staticmethod
    def init(Vocab: Axis, c: grug.GrugMoeConfig, *, key: jax.Array) -> "GrugEmbedding":
        """Fresh parameters."""
        kt, kn = jax.random.split(key)
        table = hnn.Embedding.init(Vocab, Axis("embed", c.hidden_dim), key=kt, init_scale=c.std * c.hidden_dim)
        return GrugEmbedding(table, GatedNorm.init(c, key=kn))


class GrugTransformer(eqx.Module):
    """The stack and its final gated norm."""

    layers: Stacked
    norm: GatedNorm


class GrugMoeLMHeadModel(HfLmModel):
    """A grug mixture of experts with its head.

    Attributes:
        embeddings: Token table and its norm.
        transformer: Stack and final norm.
        lm_head: Linear from embed to vocab.
        router_bias: Bias of every router, axes (layers, experts), float32; set by each training step.
        spec: Shape and arithmetic.
        config: The config it was made from.
    """

    embeddings: GrugEmbedding
    transformer: GrugTransformer
    lm_head: hnn.Linear
    router_bias: Buffer
    spec: grug.GrugMoeConfig = eqx.field(static=True)
    config: HfLmConfig = eqx.field(static=True)

    @staticmethod
    def init(
        Vocab: Axis,
        c: grug.GrugMoeConfig,
        config: HfLmConfig,
        *,
        remat: RematPolicy = True,
        scan: bool = True,
        key: jax.Array,
    ) -> "GrugMoeLMHeadModel":
        """Fresh parameters, router biases 0.

        Args:
            Vocab: The vocabulary.
            c: Shape and arithmetic.
            config: Kept for the exporter.
            remat: What layers keep for the backward pass.
            scan: Scan over layers, or unroll.
            key: PRNG key.
        """
        ke, kl, kn, kh = jax.random.split(key, 4)
        Layers = Axis("layers", c.num_layers)
        stack = Stacked.init(Layers, lambda k: GrugBlock.init(c, key=k), key=kl, remat=remat, scan=scan)
        head = InitSpec("normal", c.std).linear(Axis("embed", c.hidden_dim), Vocab, key=kh, use_bias=False)
        bias = NamedArray(grug.initial_bias(c), (Layers, Axis("experts", c.num_experts)))
        transformer = GrugTransformer(stack, GatedNorm.init(c, key=kn))
        return GrugMoeLMHeadModel(GrugEmbedding.init(Vocab, c, key=ke), transformer, head, Buffer(bias), c, config)

    @property
    def Vocab(self) -> Axis:
        """The vocabulary axis."""
        return Axis("vocab", self.embeddings.token_embeddings.weight.array.shape[0])

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits ``[..., V]`` of normed hidden states ``[..., E]``."""
        return hidden @ self.lm_head.weight.array

    def activations_with_aux(
        self, input_ids: NamedArray, attn_mask: AttentionMask | None = None, *, pos_ids: NamedArray | None = None
    ) -> tuple[NamedArray, dict[str, jax.Array]]:
        """Hidden states after the last norm, and what the routers report.

        Args:
            input_ids: Int32, axes ``(position)`` or ``(batch, position)``.
            attn_mask: None means causal. Sliding windows are added to it. Tokens with a negative segment id are
                padding: no expert sees them and no router counts them.
            pos_ids: Positions for the rotation; None means ``0 .. P-1``.

        Returns:
            Hidden states with the axes of ``input_ids`` and ``embed``; the values of
            :func:`levanter.grug.router.statistics` and ``dropped``, layer axis first.

        Raises:
            ModelShapeError: the axes are not those.
        """
        c = self.spec
        ids_BP = batched_ids(input_ids)
        mask = AttentionMask.causal() if attn_mask is None else attn_mask
        valid_BP = None
        if mask.segment_ids is not None:
            valid_BP = jnp.broadcast_to(mask.segment_ids[0].array >= 0, ids_BP.shape)
        positions = jnp.arange(ids_BP.shape[1]) if pos_ids is None else pos_ids.array
        xs, inputs = plan_layers(self._layer_types(), c.head_dim, positions)

        def layer(block: GrugBlock, x: jax.Array, item: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            varying, bias_E = item
            given = inputs(varying, mask)
            seen = mask if given.mask is None else given.mask
            return grug.block(c, block.raw(), x, seen, given.rope, bias_E, valid_BP)

        x = self.embeddings.token_embeddings.weight.array[ids_BP]
        x = constrain(grug.gated_norm(self.embeddings.norm.raw(), x, c.norm_eps), "batch", "position", None)
        x, aux = self.transformer.layers.scan(layer, x, (xs, self.router_bias.value.array))
        x = grug.gated_norm(self.transformer.norm.raw(), x, c.norm_eps)
        hidden = x if input_ids.array.ndim == 2 else x[0]
        return NamedArray(hidden, (*input_ids.axes, Axis("embed", c.hidden_dim))), aux

    def router_losses(self, aux: dict[str, jax.Array], mass: jax.Array) -> tuple[jax.Array, dict[str, Metric]]:
        """No loss; the routers' metrics, and the biases that the step sets.

        Thresholds of micro-batches are averaged by their valid tokens, as those of batch shards are.
        """
        metrics = {}
        for name, value in report(aux, self.spec.num_experts_per_tok).items():
            counts = name.endswith("_assignments")
            kind = Reduction.SUM if counts else Reduction.MEAN
            metrics[name] = Metric(value if counts else value * mass, mass, kind)
        count = aux["valid_tokens"][0]
        metrics[f"{BUFFER_PREFIX}{ROUTER_BIAS}"] = Metric(-aux["beta"] * count, count, Reduction.MEAN)
        return jnp.zeros((), jnp.float32), jax.lax.stop_gradient(metrics)

    def get_lm_head(self) -> NamedArray:
        """The head, ``(embed, vocab)``."""
        return self.lm_head.weight

    @property
    def hf_config(self) -> HfLmConfig:
        """The config it was made from."""
        return self.config

    def resize_vocab(self, new_size: int, *, key: jax.Array) -> "GrugMoeLMHeadModel":
        """Grow or shrink the vocabulary; new rows start like a fresh model's."""
        ke, kh = jax.random.split(key)
        Vocab, Embed = Axis("vocab", new_size), Axis("embed", self.spec.hidden_dim)
        keep = min(new_size, self.Vocab.size)
        fresh = hnn.Embedding.init(Vocab, Embed, key=ke, init_scale=self.spec.std * Embed.size)
        head = InitSpec("normal", self.spec.std).linear(Embed, Vocab, key=kh, use_bias=False)
        old = self.embeddings.token_embeddings.weight.array, self.lm_head.weight.array
        table = fresh.weight.array.astype(old[0].dtype).at[:keep].set(old[0][:keep])
        columns = head.weight.array.astype(old[1].dtype).at[:, :keep].set(old[1][:, :keep])
        embedding = dataclasses.replace(fresh, weight=NamedArray(table, fresh.weight.axes))
        return dataclasses.replace(
            self,
            embeddings=GrugEmbedding(embedding, self.embeddings.norm),
            lm_head=dataclasses.replace(head, weight=NamedArray(columns, head.weight.axes)),
            spec=dataclasses.replace(self.spec, vocab_size=new_size),
        )

    def raw(self) -> tuple[grug.Params, jax.Array]:
        """The parameters and router biases as :mod:`levanter.grug.model` has them, layers in a list."""
        stack = self.transformer.layers
        return grug.Params(
            embed=self.embeddings.token_embeddings.weight.array,
            embed_norm=self.embeddings.norm.raw(),
            layers=[stack.layer(index).raw() for index in range(self.spec.num_layers)],
            final_norm=self.transformer.norm.raw(),
            output_proj=self.lm_head.weight.array,
        ), self.router_bias.value.array

    def _layer_types(self) -> list[LayerType]:
        c = self.spec
        half = DefaultRotaryConfig(theta=c.rope_theta, partial_rotary_factor=0.5)
        sliding = LayerType(c.sliding_window, half)
        return [LayerType() if c.is_full(index) else sliding for index in range(c.num_layers)]


def _matrix(layer: hnn.Linear, *, out_axes: int | None = None) -> jax.Array:
    """Weight as ``[fan_in, fan_out]``: one input axis unless ``out_axes`` counts the output axes."""
    array = layer.weight.array
    if out_axes is not None:
        return array.reshape(-1, *array.shape[-out_axes:])
    return array.reshape(array.shape[0], -1)
