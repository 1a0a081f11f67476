"""Code written for haliax runs unchanged: every promised name stands under its path and takes the promised arguments.

A row promises parameters in order; ours may have more, as long as nobody has to pass them. ``_`` marks a default whose
value is no part of the promise.
"""

# ruff: noqa: E501
import ast
import importlib
import inspect

import pytest

PROMISES = """
haliax.axis Axis(name, size)
haliax.axis axis_name(axis_selection)
haliax.axis axis_size(axis_spec)
haliax.axis axis_spec_to_shape_dict(axis_spec)
haliax.axis axis_spec_to_tuple(axis_spec)
haliax.axis selects_axis(selector, selected)
haliax.axis is_axis_compatible(a, b)
haliax.axis concat_axes(a, b)
haliax.axis concat_axis_specs(a, b)
haliax.axis union_axes(a, b)
haliax.axis eliminate_axes(axis_spec, to_remove)
haliax.axis without_axes(axis_spec, to_remove, allow_mismatched_sizes=False)
haliax.axis unsize_axes(axis_spec, to_unsize=None)
haliax.axis replace_axis(axis_spec, old, new)
haliax.axis intersect_axes(a, b)
haliax.axis resolve_axis(axis_spec, axis_selection)
haliax.axis rearrange_for_partial_order(partial_order, axes)
haliax.axis replace_missing_with_ellipsis(a, b)
haliax.axis to_jax_shape(axis_spec)
haliax.axis dslice(start, length)
haliax.axis ds(start, length)
haliax.axis dblock(idx, size)
haliax.axis dslice.block(idx, size)
haliax.core NamedArray(array, axes)
haliax.core enable_shape_checks(enabled)
haliax.core are_shape_checks_enabled()
haliax.core _broadcast_order(a, b, require_subset=True)
haliax broadcast_to(a, axes, ensure_order=True, enforce_no_extra_axes=True)
haliax broadcast_axis(a, axis)
haliax broadcast_arrays(*arrays, require_subset=True, ensure_order=True)
haliax broadcast_arrays_and_return_axes(*arrays, require_subset=True, ensure_order=True)
haliax check_shape(jnp_shape, axes)
haliax make_axes(**sizes)
haliax index(array, slices)
haliax take(array, axis, index)
haliax slice(array, axis=None, new_axis=None, start=_, length=None)
haliax updated_slice(array, start, update)
haliax split(a, axis, new_axes)
haliax unbind(array, axis)
haliax roll(array, shift, axis)
haliax rename(array, renames)
haliax flatten_axes(array, old_axes, new_axis=_)
haliax unflatten_axis(array, axis, new_axes)
haliax ravel(array, new_axis_name)
haliax flatten(array, new_axis_name)
haliax flatten_all_axes_but(a, axis_name, axis, reorder_to_front=False)
haliax named(a, axis)
haliax zeros(shape, dtype=_)
haliax ones(shape, dtype=_)
haliax full(shape, fill_value, dtype=None)
haliax zeros_like(a, dtype=None)
haliax ones_like(a, dtype=None)
haliax full_like(a, fill_value, dtype=None)
haliax arange(axis, *, start=0, step=1, dtype=None)
haliax linspace(axis, *, start, stop, endpoint=True, dtype=None)
haliax geomspace(axis, *, start, stop, endpoint=True, dtype=None)
haliax logspace(axis, *, start, stop, endpoint=True, base=10.0, dtype=None)
haliax stack(axis, arrays)
haliax concatenate(axis, arrays)
haliax repeat(array, repeats, axis=_, total_repeat_length=None)
haliax tile(array, reps)
haliax argmax(array, axis=_)
haliax argmin(array, axis=_)
haliax nanargmax(array, axis=None)
haliax nanargmin(array, axis=None)
haliax argsort(a, axis=_, *, stable=False)
haliax trace(array, axis1, axis2, offset=0, dtype=None)
haliax where(condition, x=None, y=None, fill_value=None, new_axis=None)
haliax nonzero(array, *, size, fill_value=0)
haliax clip(array, a_min=_, a_max=_)
haliax tril(array, axis1, axis2, k=0)
haliax triu(array, axis1, axis2, k=0)
haliax isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False)
haliax allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False)
haliax array_equal(a, b)
haliax array_equiv(a, b)
haliax pad_left(array, axis, new_axis, value=0)
haliax pad(array, pad_width, *, mode='constant', constant_values=0)
haliax unique(array, Unique, *, return_index=False, return_inverse=False, return_counts=False, axis=None, fill_value=None)
haliax unique_values(array, Unique)
haliax unique_counts(array, Unique)
haliax unique_inverse(array, Unique)
haliax unique_all(array, Unique)
haliax searchsorted(a, v, *, side=_, sorter=None, method=_)
haliax bincount(x, Counts, *, weights=None, minlength=0)
haliax packbits(a, axis, *, bitorder=_)
haliax unpackbits(a, axis, *, count=None, bitorder=_)
haliax top_k(arr, axis, k, new_axis=None)
haliax dot(*arrays, axis=_, precision=None, preferred_element_type=None, out_axes=None, dot_general=_)
haliax einsum(equation, *arrays, precision=None, preferred_element_type=None, out_sharding=None, _dot_general=_, **axis_aliases)
haliax rearrange(array, axes, **bindings)
haliax.hof vmap(fn, axis, *, default=_, args=(), kwargs=None)
haliax.hof scan(f, axis, *, remat=False, reverse=False, unroll=1, is_scanned=_)
haliax.hof fold(fn, axis, *, remat=False, reverse=False, unroll=1, is_scanned=_)
haliax.hof map(fn, axis, *, remat=False, reverse=False, unroll=1, is_mapped=_)
haliax.hof ScanCheckpointPolicy(save_carries=True, save_inputs=False, save_block_internals=False, offload_block_internals=_, \
prevent_cse=False, disable=False, simple=False, nested=False)
haliax.hof ScanCheckpointPolicy.from_bool_or_str(remat_policy)
haliax.hof ScanCheckpointPolicy.checkpoint(self, carry_name, input_name, fn)
haliax.partitioning axis_mapping(mapping=_, *, merge=False, **kwargs)
haliax.partitioning current_thread_local_mapping()
haliax.partitioning set_mesh(mesh)
haliax.partitioning mesh_context(mesh)
haliax.partitioning shard(x, mapping=None, mesh=None)
haliax.partitioning shard_with_axis_mapping(x, mapping, mesh=None)
haliax.partitioning auto_sharded(x, mesh=None)
haliax.partitioning pspec_for_axis(axis, mapping=None)
haliax.partitioning physical_axis_name(axis, mapping=None)
haliax.partitioning physical_axis_size(axis, mapping=None)
haliax.partitioning sharding_for_axis(axis, mapping=None, mesh=None)
haliax.partitioning round_axis_for_partitioning(axis, mapping=None)
haliax.partitioning pspec_for(tree, resource_mapping=None, preserve_existing_shardings=True)
haliax.partitioning infer_resource_partitions(tree, resource_mapping=None, preserve_existing_shardings=True, mesh=None)
haliax.partitioning named_jit(fn=None, axis_resources=None, *, in_axis_resources=None, out_axis_resources=None, \
donate_args=None, donate_kwargs=None, **jit_kwargs)
haliax.partitioning all_mesh_axes_explicit(mesh, pspec)
haliax.partitioning get_pspec_for_manual_mesh(axis, mapping=None, *, mesh=None)
haliax.partitioning shard_map(f=None, *, in_specs=None, out_specs=None, mesh=None, axis_mapping=None, check_rep=False, **kwargs)
haliax.random uniform(key, shape, dtype=_, minval=0.0, maxval=1.0)
haliax.random normal(key, shape, dtype=_)
haliax.random bernoulli(key, shape, p=0.5)
haliax.random randint(key, shape, minval, maxval, dtype=_)
haliax.random poisson(key, shape, lam, dtype=_)
haliax.random exponential(key, shape, dtype=_)
haliax.random gamma(key, shape, a, dtype=_)
haliax.random loggamma(key, shape, a, dtype=_)
haliax.random beta(key, shape, a, b, dtype=_)
haliax.random laplace(key, shape, dtype=_)
haliax.random cauchy(key, shape, dtype=_)
haliax.random logistic(key, shape, dtype=_)
haliax.random truncated_normal(key, shape, lower, upper, dtype=_)
haliax.random ball(key, shape, D, p=2.0, dtype=_)
haliax.random gumbel(key, shape, dtype=_)
haliax.random rademacher(key, shape, dtype=_)
haliax.random t(key, shape, df, dtype=_)
haliax.random weibull_min(key, shape, scale, concentration, dtype=_)
haliax.random pareto(key, shape, b, dtype=_)
haliax.random choice(key, shape, a, axis, replace=True, p=None)
haliax.random categorical(key, logits, axis, shape=None)
haliax.random permutation(key, x, axis, independent=False)
haliax.fft fft(a, axis=None, norm=None)
haliax.fft ifft(a, axis=None, norm=None)
haliax.fft rfft(a, axis=None, norm=None)
haliax.fft irfft(a, axis=None, norm=None)
haliax.fft hfft(a, axis=None, norm=None)
haliax.fft ihfft(a, axis=None, norm=None)
haliax.fft fftshift(x, axes=None)
haliax.fft ifftshift(x, axes=None)
haliax.fft fftfreq(axis, d=1.0)
haliax.fft rfftfreq(axis, d=1.0)
haliax.poly poly(seq_of_zeros)
haliax.poly polyadd(a1, a2)
haliax.poly polysub(a1, a2)
haliax.poly polymul(a1, a2)
haliax.poly polydiv(u, v)
haliax.poly polyint(p, m=1, k=None)
haliax.poly polyder(p, m=1)
haliax.poly polyval(p, x)
haliax.poly polyfit(x, y, deg, rcond=None, full=False, w=None, cov=False)
haliax.poly roots(p)
haliax.poly trim_zeros(filt, trim='fb')
haliax.poly vander(x, degree)
haliax.ref new_ref(value)
haliax.ref freeze(ref)
haliax.ref get(ref, idx=_)
haliax.ref swap(ref, idx, value)
haliax.ref NamedRef(_ref, _axes, _prefix=())
haliax.ref NamedRef.slice(self, selectors)
haliax.nn.linear Linear.init(In, Out, *, key, use_bias=True, out_first=True, dot_general=None, init_scale=1.0, reparam_cls=_)
haliax.nn.linear Linear.__call__(self, inputs, *, key=None)
haliax.nn.linear MoELinear.init(Experts, In, Out, *, key, use_bias=True, out_first=False, init_scale=1.0, use_gmm=False)
haliax.nn.embedding Embedding.init(Vocab, Embed, *, key, init_scale=1.0, initializer_range=None, reparam_cls=_)
haliax.nn.embedding Embedding.resize_embeddings(self, new_size, key=None)
haliax.nn.normalization LayerNorm.init(axis, eps=1e-05, *, use_weight=True, use_bias=True, dtype=None)
haliax.nn.normalization RmsNorm.init(axis, eps=1e-05, *, use_weight=True, use_bias=True, dtype=None)
haliax.nn.normalization standardize(x, axis, *, mean=_, variance=_, epsilon=1e-05, where=None)
haliax.nn.normalization softmax(a, axis=None)
haliax.nn.normalization log_softmax(a, axis=None)
haliax.nn.normalization logsumexp(array, axis=None)
haliax.nn.dropout Dropout(pdrop=0.5, broadcast_axes=None, inference=False)
haliax.nn.dropout dropout(x, pdrop, broadcast_axes=None, *, inference, key=None)
haliax.nn.mlp MLP.init(Input, Output, width, depth, activation=_, *, out_first=_, use_bias=True, use_final_bias=True, key, \
dot_general=None, init_scale=1.0)
haliax.nn.activations gelu(a, approximate=True)
haliax.nn.activations quick_gelu(a)
haliax.nn.activations glu(x, axis)
haliax.nn.loss cross_entropy_loss(logits, Label, targets, reduction=_, *, where=None, weight=None, reduction_axis=None)
haliax.nn.loss binary_cross_entropy_loss(logits, targets, reduction=_, *, where=None, weight=None, reduction_axis=None)
haliax.nn.loss cross_entropy_loss_and_log_normalizers(pred_y, Label, target_y)
haliax.nn.attention dot_product_attention_weights(Key, KPos, query, key, mask=None, bias=None, attention_dtype=None, \
precision=None, scaling_factor=None)
haliax.nn.attention dot_product_attention(KPos, Key, query, key, value, mask=None, bias=None, attention_dtype=None, \
precision=None)
haliax.nn.attention mask_to_bias(mask, mask_value=-1000000000.0)
haliax.nn.attention combine_masks_and(mask1, mask2)
haliax.nn.attention combine_masks_or(mask1, mask2)
haliax.nn.attention causal_mask(QPos, KPos, q_start=0, k_start=0)
haliax.nn.attention prefix_lm_mask(QSeqLen, KSeqLen, prefix_len, q_start=0, k_start=0)
haliax.nn.attention forgetful_causal_mask(KPos, mask_prob, sample_prob=True, *, key)
haliax.nn.attention alibi_attention_bias(Heads, KPos, bias_max=8, dtype=_)
haliax.nn.conv Conv.init(Spatial, In, Out, kernel_size, *, stride=1, padding=0, dilation=1, groups=1, use_bias=True, key)
haliax.nn.conv ConvTranspose.init(Spatial, In, Out, kernel_size, *, stride=1, padding=0, output_padding=0, dilation=1, \
groups=1, use_bias=True, key)
haliax.nn.pool max_pool(Window, inputs, stride=None, padding='VALID', use_ceil=False)
haliax.nn.pool min_pool(Window, inputs, stride=None, padding='VALID', use_ceil=False)
haliax.nn.pool mean_pool(Window, inputs, stride=None, padding='VALID', *, use_ceil=False, count_include_pad=False)
haliax.nn.pool pool(Window, inputs, init, reduce_fn)
haliax.nn.scan Stacked.init(Block, module, *, gradient_checkpointing=False, prevent_cse=None)
haliax.nn.scan Stacked.scan(self, init, *extra_args, unroll=None, **extra_kwargs)
haliax.nn.scan Stacked.fold(self, init, *args, unroll=None, **kwargs)
haliax.nn.scan Stacked.fold_via(self, fn, *, unroll=None)
haliax.nn.scan Stacked.scan_via(self, fn, *, unroll=None)
haliax.nn.scan Stacked.vmap_via(self, fn)
haliax.nn.scan Stacked.vmap(self, *args, **kwargs)
haliax.nn.scan Stacked.unstacked(self)
haliax.nn.scan Stacked.get_layer(self, index)
haliax.nn.scan BlockSeq.init(Block, module, *, gradient_checkpointing=False, prevent_cse=None)
haliax.nn.scan BlockSeq.fold_via(self, fn, *, unroll=None)
haliax.nn.scan _stack_state_dict(state_dict, prefix=None)
haliax.nn.scan _unstack_state_dict(state_dict, prefix=None)
haliax.nn.array_stacked ArrayStacked.init(num_layers, module, *, gradient_checkpointing=False)
haliax.nn.array_stacked ArrayStacked.fold_via(self, fn, *, unroll=None, in_axes=None)
haliax.nn.array_stacked ArrayStacked.scan_via(self, fn, *, unroll=None, in_axes=None)
haliax.nn.array_stacked ArrayStacked.vmap_via(self, fn, *, in_axes=None, out_axes=0)
haliax.nn.ragged_dot ragged_dot(lhs, rhs, group_sizes, ar=False, implementation='auto')
haliax.nn one_hot(x, class_axis, *, dtype=None)
haliax.quantization DotGeneralOp.__call__(self, lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None, **kwargs)
haliax.quantization DotGeneralOp.default()
haliax.quantization Fp8DotGeneralOp.init(amax_history_length=1024, compute_dtype=None)
haliax.quantization Int8DotGeneralOp.init()
haliax.quantization QuantizationConfig(targets=None, amax_history_length=1024, compute_dtype=None, fp8=False, int8=False)
haliax.quantization quantize_linear_layers(tree, config)
haliax.quantization partition_for_grad_overwrite(grad)
haliax.quantization apply_updates(tree, updates, overwrites)
haliax.state_dict to_state_dict(tree, prefix=None)
haliax.state_dict from_state_dict(tree, state_dict, prefix=None)
haliax.state_dict to_numpy_state_dict(model, prefix=None)
haliax.state_dict to_torch_compatible_state_dict(t, *, flatten=True, prefix=None, filter=_)
haliax.state_dict from_torch_compatible_state_dict(t, state_dict, *, unflatten=True, prefix=None)
haliax.state_dict save_state_dict(state_dict, path)
haliax.state_dict load_state_dict(path)
haliax.state_dict with_prefix(prefix, leaf)
haliax.state_dict ModuleWithStateDictSerialization.to_state_dict(self, prefix=None)
haliax.state_dict ModuleWithStateDictSerialization.from_state_dict(self, state_dict, prefix=None)
haliax.state_dict ModuleWithStateDictSerialization._state_dict_key_map(self)
haliax.tree_util tree_map(fn, tree, *rest, is_leaf=None)
haliax.tree_util tree_flatten(tree, is_leaf=None)
haliax.tree_util tree_unflatten(treedef, leaves)
haliax.tree_util tree_leaves(tree, is_leaf=None)
haliax.tree_util tree_structure(tree, is_leaf=None)
haliax.tree_util scan_aware_tree_map(fn, tree, *rest, is_leaf=None)
haliax.tree_util resize_axis(tree, old_axis, new_size, key=None)
haliax.tree scan_aware_map(fn, tree, *rest, is_leaf=None)
haliax.jax_utils broadcast_one_to_all(in_tree, is_source=None)
haliax.jax_utils sync_global_devices(name)
haliax.jax_utils shaped_rng_split(key, split_shape=2)
haliax.jax_utils maybe_rng_split(key, num=2)
haliax.jax_utils named_call(f=None, name=None)
haliax.jax_utils is_in_jit()
haliax.jax_utils ensure_scalar(x, *, name=_)
haliax.jax_utils tree_checkpoint_name(x, name)
haliax.jax_utils multilevel_scan(f, carry, xs, outer_size, length, reverse=False, unroll=1)
haliax._src.util index_where(pred, xs, start=0)
haliax._src.fp8 compute_scale(amax, scale, fp8_max, margin=0)
haliax.field field(*, converter=None, static=False, axis_names=None, **kwargs)
haliax.debug diagnose_common_issues(module)
haliax.debug visualize_shardings(tree)
haliax.debug visualize_named_sharding(axes, sharding)
"""

NAMES = {
    "haliax": """NamedArray Axis AxisSelector AxisSelection AxisSpec PartialAxisSpec ShapeDict PartialShapeDict
        abs absolute angle arccos arccosh arcsin arcsinh arctan arctanh around bitwise_count bitwise_invert bitwise_not
        cbrt ceil conj conjugate copy cos cosh deg2rad degrees exp exp2 expm1 fabs fix floor frexp i0 imag invert iscomplex
        isfinite isinf isnan isneginf isposinf isreal log log10 log1p log2 logical_not ndim negative positive rad2deg
        radians real reciprocal rint round rsqrt sign signbit sin sinc sinh square sqrt tan tanh trunc
        add arctan2 bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift divide divmod equal
        float_power floor_divide fmax fmin fmod greater greater_equal hypot left_shift less less_equal logaddexp
        logaddexp2 logical_and logical_or logical_xor maximum minimum mod multiply nextafter not_equal power remainder
        right_shift subtract true_divide
        all any amax amin max min mean prod product ptp std sum var nanmax nanmean nanmin nanprod nanstd nansum nanvar
        cumsum cumprod nancumsum nancumprod sort fsdp random tree tree_util nn ops partitioning quantization state_dict
        ScanCheckpointPolicy ScanCheckpointSpec NamedRef new_ref freeze get swap field fft poly shard_map""",
    "haliax.nn": """relu relu6 sigmoid softplus soft_sign silu swish log_sigmoid leaky_relu hard_sigmoid hard_silu hard_swish
        hard_tanh elu celu selu gelu quick_gelu relu_squared glu softmax log_softmax logsumexp standardize Linear MoELinear
        Embedding LayerNorm RmsNorm LayerNormBase Dropout MLP Conv ConvTranspose Stacked BlockSeq BlockFoldable Layers
        ArrayStacked cross_entropy_loss binary_cross_entropy_loss attention dropout max_pool mean_pool min_pool""",
    "haliax.nn.mup": """LinearStandardParam InputLinearMup HiddenLinearMup OutputLinearMup EmbeddingStandardParam
        EmbeddingMup ReparamEnabled""",
    "haliax.types": "PrecisionLike DTypeLike Scalar IntScalar GatherScatterModeStr FilterSpec FilterTree",
    "haliax.util": """is_named_array ensure_tuple maybe_untuple StringHolderEnum is_jax_or_hax_array_like safe_wraps
        UNSPECIFIED Unspecified""",
    "haliax.jax_utils": """Static is_jax_array_like is_pallas_dslice is_scalarish broadcast_prefix to_jax_shape
        is_on_mac_metal filter_eval_shape filter_checkpoint combine assert_equal""",
    "haliax.haxtyping": "f16 bf16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 bool_ complex64 complex128 Float Complex Int UInt Named",
    "haliax.partitioning": "PhysicalAxisSpec ResourceMapping MeshLike ResourceAxis fsdp",
    "haliax.debug": "ModuleProblems",
    "haliax.wrap": """wrap_elemwise_unary wrap_elemwise_binary wrap_reduction_call wrap_axiswise_call ReductionFunction
        SimpleReductionFunction""",
    "haliax.quantization": "OverwriteWithGradient DefaultDotGeneralOp",
    "haliax.state_dict": "StateDict",
    "haliax._src.util": "IdentityMap",
    "haliax._src.einsum": "einsum",
    "haliax._src.rearrange": "einops_rearrange",
    "haliax._src.parsing": "parse_einsum parse_rearrangement Expression",
    "haliax._src.state_dict": "flatten_modules_for_export unflatten_modules_from_export",
}

METHODS = """array axes shape dtype ndim size nbytes real imag at has_axis axis_indices axis_size resolve_axis matches_axes
    _lookup_indices item scalar tolist tobytes astype copy conj conjugate rearrange broadcast_to broadcast_axis split
    flatten_axes unflatten_axis ravel flatten unbind rename slice updated_slice take dot all any argmax argmin argsort clip
    cumsum cumprod max mean min prod product ptp round sort std sum trace var""".split()


def rows():
    for line in PROMISES.strip().splitlines():
        module, _, signature = line.partition(" ")
        yield pytest.param(module, signature, id=f"{module}.{signature.partition('(')[0]}")


def promised(signature):
    path, _, arguments = signature.partition("(")
    parsed = ast.parse(f"def f({arguments}: ...").body[0].args
    defaults = [None] * (len(parsed.args) - len(parsed.defaults)) + list(parsed.defaults)
    kind = inspect.Parameter
    out = [(a.arg, kind.POSITIONAL_OR_KEYWORD, d) for a, d in zip(parsed.args, defaults, strict=True)]
    if parsed.vararg:
        out.append((parsed.vararg.arg, kind.VAR_POSITIONAL, None))
    out += [(a.arg, kind.KEYWORD_ONLY, d) for a, d in zip(parsed.kwonlyargs, parsed.kw_defaults, strict=True)]
    if parsed.kwarg:
        out.append((parsed.kwarg.arg, kind.VAR_KEYWORD, None))
    return path, out


@pytest.mark.parametrize(("module", "signature"), list(rows()))
def test_a_function_takes_what_was_promised(module, signature):
    path, wanted = promised(signature)
    target = importlib.import_module(module)
    for part in path.split("."):
        target = getattr(target, part)
    found = inspect.signature(target).parameters
    order = list(found)
    for place, (name, kind, default) in enumerate(wanted):
        if kind is inspect.Parameter.VAR_KEYWORD:
            assert any(p.kind is kind for p in found.values())
            continue
        assert name in found, f"{path} lacks {name}"
        have = found[name]
        assert have.kind is kind
        if kind is not inspect.Parameter.KEYWORD_ONLY:
            assert order.index(name) == place
        if default is None:
            assert kind is inspect.Parameter.VAR_POSITIONAL or have.default is inspect.Parameter.empty
        elif not (isinstance(default, ast.Name) and default.id == "_"):
            assert have.default == ast.literal_eval(default)
        else:
            assert have.default is not inspect.Parameter.empty
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    more = [p for n, p in found.items() if n not in {w[0] for w in wanted} and p.kind not in optional]
    assert all(p.default is not inspect.Parameter.empty for p in more)


@pytest.mark.parametrize("module", NAMES)
def test_every_promised_name_is_there(module):
    target = importlib.import_module(module)
    assert [n for n in NAMES[module].split() if getattr(target, n, None) is None] == []


def test_every_promised_method_is_there():
    from haliax import NamedArray

    assert [n for n in METHODS if not hasattr(NamedArray, n)] == []


def test_values_of_names_that_are_strings():
    from haliax.partitioning import ResourceAxis

    assert (ResourceAxis.MODEL, ResourceAxis.DATA, ResourceAxis.REPLICA) == ("model", "data", "replica")
