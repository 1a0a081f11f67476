"""Named tensors on JAX: axes have names, and names cost nothing at run time.

    >>> import haliax as hax
    >>> Batch, Embed = hax.make_axes(batch=2, embed=3)
    >>> x = hax.ones((Batch, Embed))
    >>> (x * hax.arange(Embed)).sum("embed").tolist()
    [3.0, 3.0]

`NamedArray` and its methods are loaded at once, everything else on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import haliax.core as _core

# ruff: noqa: A004, F401
if TYPE_CHECKING:
    from haliax import (
        axis,
        core,
        debug,
        errors,
        fft,
        field,
        haxtyping,
        hof,
        jax_utils,
        linalg,
        nn,
        ops,
        partitioning,
        poly,
        quantization,
        random,
        ref,
        specialized_fns,
        state_dict,
        tree,
        tree_util,
        types,
        util,
        wrap,
    )
    from haliax._ops.creation import (
        arange,
        empty,
        eye,
        full,
        full_like,
        geomspace,
        linspace,
        logspace,
        ones,
        ones_like,
        zeros,
        zeros_like,
    )
    from haliax._ops.derivatives import (
        hessian,
        jacobian,
    )
    from haliax._ops.einops import (
        PackLayout,
        pack,
        parse_shape,
        reduce,
        repeat,
        unpack,
    )
    from haliax._ops.einsum import (
        einsum,
    )
    from haliax._ops.elementwise import (
        abs,
        absolute,
        add,
        angle,
        arccos,
        arccosh,
        arcsin,
        arcsinh,
        arctan,
        arctan2,
        arctanh,
        around,
        bitwise_and,
        bitwise_count,
        bitwise_invert,
        bitwise_left_shift,
        bitwise_not,
        bitwise_or,
        bitwise_right_shift,
        bitwise_xor,
        cbrt,
        ceil,
        conj,
        conjugate,
        copy,
        copysign,
        cos,
        cosh,
        deg2rad,
        degrees,
        divide,
        divmod,
        equal,
        exp,
        exp2,
        expm1,
        fabs,
        fix,
        float_power,
        floor,
        floor_divide,
        fmax,
        fmin,
        fmod,
        frexp,
        gcd,
        greater,
        greater_equal,
        heaviside,
        hypot,
        i0,
        imag,
        invert,
        iscomplex,
        isfinite,
        isinf,
        isnan,
        isneginf,
        isposinf,
        isreal,
        lcm,
        ldexp,
        left_shift,
        less,
        less_equal,
        log,
        log1p,
        log2,
        log10,
        logaddexp,
        logaddexp2,
        logical_and,
        logical_not,
        logical_or,
        logical_xor,
        maximum,
        minimum,
        mod,
        modf,
        multiply,
        nan_to_num,
        ndim,
        negative,
        nextafter,
        not_equal,
        positive,
        power,
        rad2deg,
        radians,
        real,
        reciprocal,
        remainder,
        right_shift,
        rint,
        round,
        rsqrt,
        sign,
        signbit,
        sin,
        sinc,
        sinh,
        sqrt,
        square,
        subtract,
        tan,
        tanh,
        true_divide,
        trunc,
    )
    from haliax._ops.joining import (
        concatenate,
        stack,
    )
    from haliax._ops.nmap import (
        nmap,
        untag,
    )
    from haliax._ops.numeric import (
        argwhere,
        convolve,
        corrcoef,
        cov,
        diag,
        gradient,
        outer,
        put_along_axis,
        trapezoid,
    )
    from haliax._ops.rearrange import (
        einops_rearrange,
    )
    from haliax._ops.reductions import (
        all,
        amax,
        amin,
        any,
        argmax,
        argmin,
        argsort,
        average,
        count_nonzero,
        cumprod,
        cumsum,
        max,
        mean,
        median,
        min,
        nanargmax,
        nanargmin,
        nancumprod,
        nancumsum,
        nanmax,
        nanmean,
        nanmedian,
        nanmin,
        nanprod,
        nanquantile,
        nanstd,
        nansum,
        nanvar,
        percentile,
        prod,
        product,
        ptp,
        quantile,
        sort,
        std,
        sum,
        var,
    )
    from haliax._ops.select import (
        allclose,
        array_equal,
        array_equiv,
        clip,
        diagonal,
        isclose,
        isin,
        nonzero,
        pad,
        pad_left,
        select,
        top_k,
        trace,
        tril,
        triu,
        where,
    )
    from haliax._ops.sets import (
        UniqueAll,
        UniqueCounts,
        UniqueInverse,
        argpartition,
        bincount,
        digitize,
        histogram,
        interp,
        packbits,
        partition,
        searchsorted,
        take_along_axis,
        unique,
        unique_all,
        unique_counts,
        unique_inverse,
        unique_values,
        unpackbits,
    )
    from haliax._ops.shape import (
        diff,
        flip,
        tile,
    )
    from haliax.axis import (
        Axis,
        AxisSelection,
        AxisSelector,
        AxisSpec,
        PartialAxisSpec,
        PartialShapeDict,
        ShapeDict,
        axis_name,
        axis_size,
        axis_spec_to_shape_dict,
        axis_spec_to_tuple,
        concat_axes,
        concat_axis_specs,
        dblock,
        ds,
        dslice,
        eliminate_axes,
        intersect_axes,
        is_axis_compatible,
        make_axes,
        rearrange_for_partial_order,
        replace_axis,
        replace_missing_with_ellipsis,
        resolve_axis,
        selects_axis,
        to_jax_shape,
        union_axes,
        unsize_axes,
        without_axes,
    )
    from haliax.core import (
        NamedArray,
        NamedArrayAxes,
        are_shape_checks_enabled,
        broadcast_arrays,
        broadcast_arrays_and_return_axes,
        broadcast_axis,
        broadcast_to,
        check_shape,
        dot,
        enable_shape_checks,
        flatten,
        flatten_all_axes_but,
        flatten_axes,
        index,
        named,
        ravel,
        rearrange,
        rename,
        roll,
        slice,
        split,
        take,
        unbind,
        unflatten_axis,
        updated_slice,
    )
    from haliax.fft import (
        fftfreq,
        fftshift,
        hfft,
        ifft,
        ifftshift,
        ihfft,
        irfft,
        rfft,
        rfftfreq,
    )
    from haliax.haxtyping import (
        checked,
    )
    from haliax.hof import (
        ScanCheckpointPolicy,
        ScanCheckpointSpec,
        fold,
        map,
        scan,
        vmap,
    )
    from haliax.jax_utils import (
        named_call,
    )
    from haliax.partitioning import (
        auto_sharded,
        axis_mapping,
        fsdp,
        named_jit,
        shard,
        shard_map,
        shard_with_axis_mapping,
    )
    from haliax.poly import (
        polyadd,
        polyder,
        polydiv,
        polyfit,
        polyint,
        polymul,
        polysub,
        polyval,
        roots,
        trim_zeros,
        vander,
    )
    from haliax.ref import (
        NamedRef,
        freeze,
        get,
        new_ref,
        swap,
    )
    from haliax.tree_util import (
        resize_axis,
    )
    from haliax.util import (
        is_named_array,
    )

_EXPORTS = {
    "haliax._ops.creation": """
        arange empty eye full full_like geomspace linspace logspace ones ones_like zeros zeros_like
    """,
    "haliax._ops.derivatives": """
        hessian jacobian
    """,
    "haliax._ops.einops": """
        PackLayout pack parse_shape reduce repeat unpack
    """,
    "haliax._ops.einsum": """
        einsum
    """,
    "haliax._ops.elementwise": """
        abs absolute add angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh around bitwise_and
        bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
        bitwise_xor cbrt ceil conj conjugate copy copysign cos cosh deg2rad degrees divide divmod equal exp
        exp2 expm1 fabs fix float_power floor floor_divide fmax fmin fmod frexp gcd greater greater_equal
        heaviside hypot i0 imag invert iscomplex isfinite isinf isnan isneginf isposinf isreal lcm ldexp
        left_shift less less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not
        logical_or logical_xor maximum minimum mod modf multiply nan_to_num ndim negative nextafter
        not_equal positive power rad2deg radians real reciprocal remainder right_shift rint round rsqrt sign
        signbit sin sinc sinh sqrt square subtract tan tanh true_divide trunc
    """,
    "haliax._ops.joining": """
        concatenate stack
    """,
    "haliax._ops.nmap": """
        nmap untag
    """,
    "haliax._ops.numeric": """
        argwhere convolve corrcoef cov diag gradient outer put_along_axis trapezoid
    """,
    "haliax._ops.rearrange": """
        einops_rearrange
    """,
    "haliax._ops.reductions": """
        all amax amin any argmax argmin argsort average count_nonzero cumprod cumsum max mean median min
        nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod nanquantile nanstd
        nansum nanvar percentile prod product ptp quantile sort std sum var
    """,
    "haliax._ops.select": """
        allclose array_equal array_equiv clip diagonal isclose isin nonzero pad pad_left select top_k trace
        tril triu where
    """,
    "haliax._ops.sets": """
        UniqueAll UniqueCounts UniqueInverse argpartition bincount digitize histogram interp packbits
        partition searchsorted take_along_axis unique unique_all unique_counts unique_inverse unique_values
        unpackbits
    """,
    "haliax._ops.shape": """
        diff flip tile
    """,
    "haliax.axis": """
        Axis AxisSelection AxisSelector AxisSpec PartialAxisSpec PartialShapeDict ShapeDict axis_name
        axis_size axis_spec_to_shape_dict axis_spec_to_tuple concat_axes concat_axis_specs dblock ds dslice
        eliminate_axes intersect_axes is_axis_compatible make_axes rearrange_for_partial_order replace_axis
        replace_missing_with_ellipsis resolve_axis selects_axis to_jax_shape union_axes unsize_axes
        without_axes
    """,
    "haliax.core": """
        NamedArray NamedArrayAxes are_shape_checks_enabled broadcast_arrays broadcast_arrays_and_return_axes
        broadcast_axis broadcast_to check_shape dot enable_shape_checks flatten flatten_all_axes_but
        flatten_axes index named ravel rearrange rename roll slice split take unbind unflatten_axis
        updated_slice
    """,
    "haliax.fft": """
        fftfreq fftshift hfft ifft ifftshift ihfft irfft rfft rfftfreq
    """,
    "haliax.haxtyping": """
        checked
    """,
    "haliax.hof": """
        ScanCheckpointPolicy ScanCheckpointSpec fold map scan vmap
    """,
    "haliax.jax_utils": """
        named_call
    """,
    "haliax.partitioning": """
        auto_sharded axis_mapping fsdp named_jit shard shard_map shard_with_axis_mapping
    """,
    "haliax.poly": """
        polyadd polyder polydiv polyfit polyint polymul polysub polyval roots trim_zeros vander
    """,
    "haliax.ref": """
        NamedRef freeze get new_ref swap
    """,
    "haliax.tree_util": """
        resize_axis
    """,
    "haliax.util": """
        is_named_array
    """,
}
_SUBMODULES = frozenset(
    """
    axis core debug errors fft field haxtyping hof jax_utils linalg nn ops partitioning poly quantization
    random ref specialized_fns state_dict tree tree_util types util wrap
    """.split()
)
_HOME = {name: module for module, names in _EXPORTS.items() for name in names.split()}

__all__ = sorted([*_HOME, *_SUBMODULES])


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"haliax.{name}")
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'haliax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
