"""Token embeddings."""

import dataclasses
import warnings
from typing import Any

import equinox as eqx

import haliax.random as hrandom
from haliax._array.named import NamedArray, require_named
from haliax._axis.algebra import concat_axes
from haliax._axis.types import Axis, AxisSpec, sized_axes
from haliax._ops.dot import dot
from haliax._ops.slicing import take
from haliax._state_dict.protocol import ModuleWithStateDictSerialization
from haliax.jax_utils import named_call
from haliax.nn.mup import AbstractEmbeddingReparam, EmbeddingStandardParam, ReparamEnabled
from haliax.tree_util import resize_axis


class Embedding(ModuleWithStateDictSerialization, ReparamEnabled):
    """A vector per token: lookup on the way in, logits on the way out.

    Attributes:
        weight: Array with axes (Vocab, Embed).
        Vocab: Axis of the tokens.
        Embed: Axis or axes of a vector.

    Example:
        >>> import jax, haliax as hax
        >>> table = Embedding.init(hax.Axis("vocab", 10), hax.Axis("embed", 4), key=jax.random.key(0))
        >>> table(hax.named([1, 2, 3], "pos")).shape
        {'pos': 3, 'embed': 4}
    """

    weight: NamedArray
    Vocab: Axis = eqx.field(static=True)
    Embed: AxisSpec = eqx.field(static=True)
    _reparam_cls: type[AbstractEmbeddingReparam] = eqx.field(static=True, default=EmbeddingStandardParam)

    @staticmethod
    def init(
        Vocab: Axis,
        Embed: AxisSpec,
        *,
        key: Any,
        init_scale: float = 1.0,
        initializer_range: float | None = None,
        reparam_cls: type[AbstractEmbeddingReparam] = EmbeddingStandardParam,
    ) -> "Embedding":
        """Return an embedding with weights from a normal distribution cut at 3 standard deviations.

        Args:
            Vocab: Axis of the tokens.
            Embed: Axis or axes of a vector.
            key: Random key.
            init_scale: Factor on the standard deviation, which is ``1 / size(Embed)`` by default.
            initializer_range: Former name of ``init_scale``.
            reparam_cls: Parametrisation (standard or muP).
        """
        if initializer_range is not None:
            warnings.warn("Embedding.init(initializer_range=) is deprecated; use init_scale", DeprecationWarning, 2)
            init_scale = initializer_range
        axes = concat_axes((Vocab,), sized_axes(Embed, "Embedding.init"))
        weight = hrandom.truncated_normal(key, axes, -3, 3) * (init_scale * reparam_cls.init_scale(Embed, Vocab))
        return Embedding(weight, Vocab, Embed, reparam_cls)

    @property
    def reparam(self) -> AbstractEmbeddingReparam:
        """The parametrisation of this layer."""
        return self._reparam_cls(self.Embed, self.Vocab)

    def __call__(self, input_ids: NamedArray, *, key: Any = None) -> NamedArray:
        """Look tokens up; see `embed`."""
        del key
        return self.embed(input_ids)

    @named_call
    def embed(self, input_ids: NamedArray) -> NamedArray:
        """Return the vectors of tokens: the axes of ``input_ids``, then ``Embed``.

        Raises:
            AxisSpecError: The ids are not integers.
        """
        require_named("Embedding", input_ids, "input_ids")
        out = take(self.weight, self.Vocab.name, input_ids)
        scale = self.reparam.active_scale
        return out if scale == 1.0 else out * scale

    @named_call
    def unembed(self, input_embeds: NamedArray) -> NamedArray:
        """Return logits over ``Vocab`` for vectors, by contracting ``Embed``.

        Example:
            >>> import haliax as hax
            >>> import jax
            >>> V, E = hax.make_axes(vocab=5, embed=3)
            >>> Embedding.init(V, E, key=jax.random.key(0)).unembed(hax.ones(E)).shape
            {'vocab': 5}
        """
        out = dot(input_embeds, self.weight, axis=self.Embed, strict=True)
        scale = self.reparam.unembed_active_scale
        return out if scale == 1.0 else out * scale

    def resize_embeddings(self, new_size: int, key: Any = None) -> "Embedding":
        """Return an embedding for another number of tokens; see `haliax.tree_util.resize_axis`.

        Example:
            >>> import haliax as hax
            >>> import jax
            >>> V, E = hax.make_axes(vocab=5, embed=3)
            >>> Embedding.init(V, E, key=jax.random.key(0)).resize_embeddings(8).Vocab
            Axis(name='vocab', size=8)
        """
        weight = resize_axis(self.weight, self.Vocab.name, new_size, key)
        return dataclasses.replace(self, weight=weight, Vocab=self.Vocab.resize(new_size))
