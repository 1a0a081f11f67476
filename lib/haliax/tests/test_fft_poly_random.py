"""FFT, polynomials and samplers against jax, axes included."""

import haliax as hax
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from haliax import Axis
from haliax import random as hr
from haliax.errors import AxisNotFoundError, AxisSpecError

A, B = hax.make_axes(A=4, B=6)


def close(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours.array), np.asarray(theirs), rtol=1e-4, atol=1e-5)


def test_fft_family():
    x = hax.random.normal(jr.key(0), (A, B))
    r = np.asarray(x.array)
    close(hax.fft(x), np.fft.fft(r))
    close(hax.fft(x, "A"), np.fft.fft(r, axis=0))
    longer = hax.fft(x, Axis("A", 8))
    assert longer.shape == {"A": 8, "B": 6}
    close(longer, np.fft.fft(r, n=8, axis=0))
    close(hax.ifft(hax.fft(x, ("B", "A")), ("B", "A")).real, r)
    close(hax.rfft(x, "B"), np.fft.rfft(r))
    close(hax.irfft(hax.rfft(x, "B"), "B"), r)
    close(hax.rfft(x, {"A": None, "B": None}), np.fft.rfftn(r, axes=(0, 1)))
    close(hax.irfft(hax.rfft(x, ("A", "B")), ("A", "B")), r)
    close(hax.hfft(x, "B"), np.fft.hfft(r))
    close(hax.ihfft(x, "B"), np.fft.ihfft(r))
    close(hax.fftshift(x, "A"), np.fft.fftshift(r, axes=0))
    close(hax.ifftshift(hax.fftshift(x)), r)
    close(hax.fftfreq(B, 0.5), np.fft.fftfreq(6, 0.5))
    close(hax.rfftfreq(B), np.fft.rfftfreq(6))
    with pytest.raises(AxisSpecError, match="single"):
        hax.hfft(x, ("A", "B"))
    with pytest.raises(AxisNotFoundError):
        hax.fft(x, "zz")


def test_the_module_and_the_function_are_one():
    from haliax.fft import fft

    x = hax.ones(A)
    close(hax.fft(x), np.asarray(fft(x).array))
    close(hax.fft.rfft(x), np.fft.rfft(np.ones(4)))
    assert hax.poly.polyval([1.0, 2.0], 3.0) == 5.0


def test_polynomials():
    p, q = hax.named([1.0, -3.0, 2.0], "c"), hax.named([1.0, 1.0], "c")
    close(hax.poly(hax.named([1.0, 2.0], "c")), np.poly([1.0, 2.0]))
    for name in ("polyadd", "polysub", "polymul"):
        out = getattr(hax, name)(p, q)
        assert out.names == ("c",)
        close(out, getattr(np, name)([1.0, -3.0, 2.0], [1.0, 1.0]))
    quotient, remainder = hax.polydiv(p, q)
    close(quotient, np.polydiv([1.0, -3.0, 2.0], [1.0, 1.0])[0])
    close(remainder, np.asarray(jnp.polydiv(jnp.array([1.0, -3.0, 2.0]), jnp.array([1.0, 1.0]))[1]))
    close(hax.polyint(p), np.polyint([1.0, -3.0, 2.0]))
    close(hax.polyder(p), np.polyder([1.0, -3.0, 2.0]))
    x = hax.arange((A, B), dtype=float)
    assert hax.polyval(p, x).names == ("A", "B")
    close(hax.polyval(p, x), np.polyval([1.0, -3.0, 2.0], x.array))
    assert sorted(np.asarray(hax.roots(p).array).real.round(4)) == [1.0, 2.0]
    close(hax.trim_zeros(hax.named([0.0, 1.0, 0.0], "c")), [1.0])
    xs = hax.linspace(Axis("s", 9), start=0, stop=1)
    fit, cov = hax.polyfit(xs, xs * xs, 2, cov=True)
    assert cov.names == ("s", "s_cov")
    np.testing.assert_allclose(fit.array, [1, 0, 0], atol=1e-3)
    assert hax.vander(xs, Axis("degree", 3)).names == ("s", "degree")
    assert hax.polyadd([1.0], [2.0]).names == ("degree",)
    with pytest.raises(AxisSpecError):
        hax.polyadd(x, p)


K = jr.key(7)
S = (4, 6)
SAMPLERS = {
    "uniform": (lambda: hr.uniform(K, (A, B), minval=-1, maxval=2), lambda: jr.uniform(K, S, minval=-1, maxval=2)),
    "normal": (lambda: hr.normal(K, (A, B)), lambda: jr.normal(K, S)),
    "truncated_normal": (lambda: hr.truncated_normal(K, (A, B), -2, 2), lambda: jr.truncated_normal(K, -2, 2, S)),
    "bernoulli": (lambda: hr.bernoulli(K, (A, B), 0.3), lambda: jr.bernoulli(K, 0.3, S)),
    "randint": (lambda: hr.randint(K, (A, B), 0, 9), lambda: jr.randint(K, S, 0, 9)),
    "poisson": (lambda: hr.poisson(K, (A, B), 3.0), lambda: jr.poisson(K, 3.0, S)),
    "exponential": (lambda: hr.exponential(K, (A, B)), lambda: jr.exponential(K, S)),
    "gamma": (lambda: hr.gamma(K, (A, B), 2.0), lambda: jr.gamma(K, 2.0, S)),
    "beta": (lambda: hr.beta(K, (A, B), 2.0, 3.0), lambda: jr.beta(K, 2.0, 3.0, S)),
    "laplace": (lambda: hr.laplace(K, (A, B)), lambda: jr.laplace(K, S)),
    "cauchy": (lambda: hr.cauchy(K, (A, B)), lambda: jr.cauchy(K, S)),
    "logistic": (lambda: hr.logistic(K, (A, B)), lambda: jr.logistic(K, S)),
    "gumbel": (lambda: hr.gumbel(K, (A, B)), lambda: jr.gumbel(K, S)),
    "rademacher": (lambda: hr.rademacher(K, (A, B)), lambda: jr.rademacher(K, S, float)),
    "t": (lambda: hr.t(K, (A, B), 3.0), lambda: jr.t(K, 3.0, S)),
    "weibull_min": (lambda: hr.weibull_min(K, (A, B), 1.0, 2.0), lambda: jr.weibull_min(K, 1.0, 2.0, S)),
    "pareto": (lambda: hr.pareto(K, (A, B), 2.0), lambda: jr.pareto(K, 2.0, S)),
    "loggamma": (lambda: hr.loggamma(K, (A, B), 2.0), lambda: jr.loggamma(K, 2.0, S)),
}


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_bits_equal_jax_random(name):
    ours, theirs = SAMPLERS[name]
    out = ours()
    assert out.names == ("A", "B")
    np.testing.assert_array_equal(out.array, theirs())


def test_parameters_may_be_named():
    low = hax.arange(B, dtype=float)
    out = hr.uniform(K, (A, B), minval=low, maxval=low + 1)
    np.testing.assert_array_equal(out.array, jr.uniform(K, S, minval=np.arange(6.0), maxval=np.arange(6.0) + 1))
    assert hr.normal(K, ()).names == ()
    assert hr.ball(K, A, Axis("D", 3)).names == ("A", "D")


def test_choices_and_permutations():
    x = hax.arange((A, B))
    picked = hr.choice(K, Axis("n", 3), x, "B")
    assert picked.names == ("n", "A")
    logits = hax.random.normal(K, (A, B))
    drawn = hr.categorical(K, logits, "B")
    np.testing.assert_array_equal(drawn.array, jr.categorical(K, logits.array, axis=-1))
    assert hr.categorical(K, logits, "B", shape=(Axis("n", 3), A)).shape == {"n": 3, "A": 4}
    with pytest.raises(AxisSpecError):
        hr.categorical(K, logits, "B", shape=(A, B))
    np.testing.assert_array_equal(hr.permutation(K, x, "B").array, jr.permutation(K, x.array, axis=1))
    assert hr.multivariate_normal(K, A, hax.zeros({"d": 2}), jnp.eye(2), "d").shape == {"A": 4, "d": 2}
    assert jax.jit(lambda k: hr.normal(k, A).array)(K).shape == (4,)
