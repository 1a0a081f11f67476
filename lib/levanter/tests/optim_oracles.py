"""Every optimizer once more, in float64 NumPy and written from its formula: what the JAX transforms are held against.

A parameter set is a dictionary of arrays by leaf name. ``MATRICES`` says which of them are matrices and how they lie in
memory; nothing here uses the package under test except the random probes of Kron and Sophia, which must be the same.
"""

import jax
import numpy as np

EMBED, Q, MLP, BIAS, NORM, HEAD = (
    "embeddings.weight",
    "q_proj.weight",
    "mlp.weight",
    "mlp.bias",
    "norm.weight",
    "lm_head.weight",
)
DECAYED = (Q, MLP, HEAD)
LISTS = {
    "simple": [(3.4445, -4.7750, 2.0315)],
    "quintic": [
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ],
}


def matrices(name, x):
    """List of ``(in, out)`` matrices of one array: q is (layer, in, head, size), mlp is (out, in)."""
    if name == Q:
        return [layer.reshape(layer.shape[0], -1) for layer in x]
    return [x.T] if name == MLP else [x]


def restore(name, parts, shape):
    if name == MLP:
        return parts[0].T
    return np.stack(parts).reshape(shape)


def clip(grad, limit=1.0):
    norm = np.sqrt(sum((g**2).sum() for g in grad.values()))
    return {k: g * min(1.0, limit / norm) for k, g in grad.items()}


class Adam:
    """Bias-corrected Adam directions, one call per array and step."""

    def __init__(self, b1, b2, eps=1e-8):
        self.b1, self.b2, self.eps, self.m, self.v, self.t = b1, b2, eps, {}, {}, {}

    def __call__(self, key, g, square=None):
        self.t[key] = t = self.t.get(key, 0) + 1
        self.m[key] = self.b1 * self.m.get(key, 0) + (1 - self.b1) * g
        self.v[key] = self.b2 * self.v.get(key, 0) + (1 - self.b2) * (g**2 if square is None else square)
        return self.m[key] / (1 - self.b1**t) / (np.sqrt(self.v[key] / (1 - self.b2**t)) + self.eps)


def descend(params, grads, rates, direction, *, decay=0.1, limit=1.0):
    """``p -= rate * (direction(name, g, p) + decay p)`` with a clip before and the default decay mask."""
    for grad, rate in zip(grads, rates, strict=True):
        grad = clip(grad, limit) if limit else grad
        for name, p in params.items():
            u = direction(name, grad[name])
            params[name] = p - rate * (u + (decay * p if name in DECAYED else 0))
    return params


def orthogonal(x, steps, table, eps=1e-8):
    x = x / (np.linalg.norm(x) + eps)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for k in range(steps):
        a, b, c = LISTS[table][k % len(LISTS[table])]
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def hyperball(p, d, rate):
    """The direct form: step on the sphere, then back to it."""
    new = p - rate * d * np.linalg.norm(p) / max(np.linalg.norm(d), 1e-10)
    return new * np.linalg.norm(p) / np.linalg.norm(new)


def lion(params, grads, rates):
    m = {}

    def direction(name, g):
        old = m.get(name, 0)
        m[name] = 0.95 * old + 0.05 * g
        return np.sign(0.9 * old + 0.1 * g)

    return descend(params, grads, rates, direction)


def rmsprop(params, grads, rates):
    m, v, t = {}, {}, {}

    def direction(name, g):
        t[name] = t.get(name, 0) + 1
        v[name] = 0.99 * v.get(name, 0) + 0.01 * g**2
        n = g / (np.sqrt(v[name] / (1 - 0.99 ** t[name])) + 1e-30)
        m[name] = 0.9 * m.get(name, 0) + 0.1 * n
        return m[name] / (1 - 0.9 ** t[name])

    return descend(params, grads, rates, direction)


def cautious(params, grads, rates):
    adam = Adam(0.95, 0.95)

    def direction(name, g):
        u = adam(name, g)
        keep = (u * g > 0).astype(float)
        return u * keep / (keep.mean() + 1e-8)

    return descend(params, grads, rates, direction)


def mars(params, grads, rates):
    corrected, last = [], {k: 0.0 for k in params}
    for grad in grads:
        c = {k: g + 0.025 * 0.95 / 0.05 * (g - last[k]) for k, g in grad.items()}
        corrected.append(clip(c))
        last = grad
    return descend(params, corrected, rates, Adam(0.95, 0.99), limit=None)


def adopt(params, grads, rates):
    m, v, t = {}, {}, {}

    def direction(name, g):
        t[name] = seen = t.get(name, -1) + 1
        old = v.get(name, 0)
        v[name] = 0.95 * old + 0.05 * g**2
        if seen == 0:
            m[name] = 0.0 * g
            return 0.0
        m[name] = 0.9 * m[name] + 0.1 * g / (np.sqrt(old / (1 - 0.95**seen)) + 1e-6)
        return m[name] / (1 - 0.9**seen)

    return descend(params, grads, rates, direction)


def mini(params, grads, rates):
    adam = Adam(0.9, 0.95)
    axes = {EMBED: (1,), HEAD: (0,), Q: (1, 3), MLP: (1,)}

    def direction(name, g):
        square = (g**2).mean(axes[name], keepdims=True) if name in axes else g**2
        return adam(name, g, square)

    return descend(params, grads, rates, direction)


def by_matrix(name, x, fn):
    parts = [fn(i, part) for i, part in enumerate(matrices(name, x))]
    return restore(name, parts, x.shape)


def momentum(b, name, g, mu=0.95):
    b[name] = mu * b.get(name, 0) + g
    return mu * b[name] + g


def muon(params, grads, rates, adam_rates, *, table="quintic", kimi=False):
    adam, b = Adam(0.9, 0.95), {}
    for grad, rate, adam_rate in zip(grads, rates, adam_rates, strict=True):
        grad = clip(grad)
        for name, p in params.items():
            if name not in (Q, MLP):
                params[name] = p - adam_rate * adam(name, grad[name])
                continue

            def step(_, x):
                big, ratio = max(x.shape), x.shape[1] / x.shape[0]
                return orthogonal(x, 5, table) * (0.2 * np.sqrt(big) if kimi else np.sqrt(max(1, ratio)))

            params[name] = p - rate * by_matrix(name, momentum(b, name, grad[name]), step)
    return params


def adamh(params, grads, rates, adam_rates):
    adam = Adam(0.9, 0.95)
    for grad, rate, adam_rate in zip(grads, rates, adam_rates, strict=True):
        grad = clip(grad)
        for name, p in params.items():
            u = adam(name, grad[name])
            if name in (Q, MLP, HEAD):
                d = matrices(name, u)
                params[name] = by_matrix(name, p, lambda i, x, d=d, rate=rate: hyperball(x, d[i], rate))
            else:
                params[name] = p - adam_rate * u
    return params


def muonh(params, grads, rates, adam_rates):
    adam, b = Adam(0.9, 0.95), {}
    for grad, rate, adam_rate in zip(grads, rates, adam_rates, strict=True):
        grad = clip(grad)
        for name, p in params.items():
            if name in (Q, MLP):
                d = [orthogonal(x, 5, "quintic") for x in matrices(name, momentum(b, name, grad[name]))]
            else:
                u = adam(name, grad[name])
                d = [u]
            if name in (Q, MLP, HEAD):
                params[name] = by_matrix(name, p, lambda i, x, d=d, rate=rate: hyperball(x, d[i], rate))
            else:
                params[name] = p - adam_rate * u
    return params


def scion(params, grads, rates):
    m = {}
    for grad, rate in zip(grads, rates, strict=True):
        grad = clip(grad)
        for name, p in params.items():
            mu = 0.95 if name in (Q, MLP) else 0.9
            m[name] = mu * m.get(name, 0) + (1 - mu) * grad[name]
            if name in (Q, MLP):
                u = by_matrix(
                    name,
                    m[name],
                    lambda _, x: orthogonal(x, 10, "simple") * np.sqrt(max(1, x.shape[1] / x.shape[0])),
                )
                eta = rate
            else:
                u, eta = np.sign(m[name]), rate * 0.25
            params[name] = p - eta * (u + (0.1 * p if name in DECAYED else 0))
    return params


def namo(params, grads, rates, adam_rates, *, clamp=None):
    adam, m, v = Adam(0.9, 0.95), {}, {}
    for t, (grad, rate, adam_rate) in enumerate(zip(grads, rates, adam_rates, strict=True), start=1):
        grad = clip(grad)
        for name, p in params.items():
            if name not in (Q, MLP):
                u = adam(name, grad[name])
                params[name] = p - adam_rate * (u + (0.1 * p if name in DECAYED else 0))
                continue
            m[name] = 0.95 * m.get(name, 0) + 0.05 * grad[name]
            moment, now = matrices(name, m[name]), matrices(name, grad[name])

            def step(i, x, t=t, rate=rate, name=name, moment=moment, now=now):
                axis = None if clamp is None else 0
                key = (name, i)
                v[key] = 0.99 * v.get(key, 0) + 0.01 * (now[i] ** 2).sum(axis)
                size = np.sqrt((moment[i] ** 2).sum(axis))
                a = np.minimum(1, rate * np.sqrt(1 - 0.99**t) / (1 - 0.95**t) * size / (np.sqrt(v[key]) + 1e-8))
                if clamp is not None:
                    a = np.clip(a, clamp * a.mean(), a.mean() / clamp)
                scale = np.minimum(1, a * 0.2 * np.sqrt(max(x.shape)))
                return x - 0.1 * a * x - scale * orthogonal(moment[i], 5, "simple")

            params[name] = by_matrix(name, p, step)
    return params


class Soap:
    """One matrix: the published algorithm with its first step skipped."""

    def __init__(self, frequency):
        self.frequency, self.seen, self.m, self.v = frequency, 0, 0.0, 0.0
        self.L, self.R = 0.0, 0.0

    def __call__(self, g):
        seen, self.seen = self.seen, self.seen + 1
        update = 0 * g
        if seen:
            self.m = 0.95 * self.m + 0.05 * g
            self.v = 0.95 * self.v + 0.05 * (self.ql.T @ g @ self.qr) ** 2
            turned = self.ql.T @ self.m @ self.qr / (1 - 0.95**seen)
            update = self.ql @ (turned / (np.sqrt(self.v / (1 - 0.95**seen)) + 1e-8)) @ self.qr.T
        self.L, self.R = 0.95 * self.L + 0.05 * g @ g.T, 0.95 * self.R + 0.05 * g.T @ g
        if seen == 0:
            self.ql, self.qr = np.linalg.eigh(self.L)[1][:, ::-1], np.linalg.eigh(self.R)[1][:, ::-1]
        elif seen % self.frequency == 0:
            left = np.argsort(-np.diag(self.ql.T @ self.L @ self.ql))
            right = np.argsort(-np.diag(self.qr.T @ self.R @ self.qr))
            self.v = self.v[left][:, right] if np.ndim(self.v) else self.v
            self.ql = np.linalg.qr(self.L @ self.ql[:, left])[0]
            self.qr = np.linalg.qr(self.R @ self.qr[:, right])[0]
        return update


def soap(params, grads, rates, *, frequency):
    cells, adams, seen = {}, Adam(0.95, 0.95), set()

    def direction(name, g):
        if name not in (EMBED, Q, MLP, HEAD):
            first = name not in seen
            seen.add(name)
            return 0 * g if first else adams(name, g)
        return by_matrix(name, g, lambda i, x: cells.setdefault((name, i), Soap(frequency))(x))

    return descend(params, grads, rates, direction)


def norm_bound(x):
    """PSGD's lower bound of the spectral norm: ``||A y|| / ||y||`` with ``y = A a`` for the largest row ``a``."""
    y = x @ x[np.argmax((x**2).sum(1))]
    return np.linalg.norm(x @ y) / np.linalg.norm(y)


def kron(params, grads, rates, shapes, *, balance_every=100):
    """Every refresh happens: the runs held against this are shorter than the flat start."""
    q, m = {}, {}
    key = jax.random.PRNGKey(0)
    for t, (grad, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        grad = clip(grad)
        key, probe = jax.random.split(key)
        probes = dict(zip(shapes, jax.random.split(probe, len(shapes)), strict=True))
        for name, p in params.items():
            m[name] = 0.9 * m.get(name, 0) + 0.1 * grad[name]
            v = np.asarray(jax.random.normal(probes[name], shapes[name]), np.float64).reshape(-1, *shapes[name][-2:])
            view = matrices(name, m[name] / (1 - 0.9**t)) if name in (EMBED, Q, MLP, HEAD) else None
            parts = view if view is not None else [(m[name] / (1 - 0.9**t))[None]]
            due, triangular = t % balance_every == 0, view is not None
            out = [kron_block(q, (name, i), g, v[i], triangular, due) for i, g in enumerate(parts)]
            u = restore(name, out, p.shape) if view is not None else out[0][0]
            params[name] = p - rate * (u + (0.1 * p if name in DECAYED else 0))
    return params


def kron_block(q, key, g, v, triangular, balance):
    left, right = q.get(key, (np.eye(g.shape[0]), np.eye(g.shape[1])))
    a = left @ g @ right.T
    b = np.linalg.inv(left).T @ v @ np.linalg.inv(right)
    cut, size = (np.triu, norm_bound) if triangular else (lambda x: np.diag(np.diag(x)), lambda x: np.diag(x).max())
    sums = a @ a.T, b @ b.T, a.T @ a, b.T @ b
    left = left - 0.1 / size(sums[0] + sums[1]) * cut(sums[0] - sums[1]) @ left
    right = right - 0.1 / size(sums[2] + sums[3]) * cut(sums[2] - sums[3]) @ right
    if balance:
        peaks = np.abs(left).max(), np.abs(right).max()
        left, right = (side * np.sqrt(np.prod(peaks)) / peak for side, peak in zip((left, right), peaks, strict=True))
    q[key] = left, right
    u = left.T @ left @ g @ right.T @ right
    return u / max(1.0, np.sqrt((u**2).mean()) / 1.1)


def sophia(params, grads, rates, curvature, probes, *, interval, gamma):
    """``curvature``: diagonal Hessian by name; ``probes``: the Gaussian z of each estimate, in order."""
    m, h, t = {}, {k: 0.0 for k in params}, {}
    estimates = iter(probes)

    for step, (grad, rate) in enumerate(zip(grads, rates, strict=True)):
        grad = clip(grad)
        fresh = next(estimates) if step % interval == 0 else None
        for name, p in params.items():
            t[name] = t.get(name, 0) + 1
            m[name] = 0.96 * m.get(name, 0) + 0.04 * grad[name]
            u = np.clip(m[name] / (1 - 0.96 ** t[name]) / np.maximum(gamma * h[name], 1e-8), -1, 1)
            params[name] = p - rate * (u + (0.1 * p if name in DECAYED else 0))
            if fresh is not None:
                h[name] = 0.99 * h[name] + 0.01 * fresh[name] ** 2 * curvature[name]
    return params
