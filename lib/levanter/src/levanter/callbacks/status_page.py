"""A page that shows how a run is doing, served by its first process.

    GET  /             HTML: progress, loss, speed, where the time went, configuration (secrets left out)
    GET  /status.json  the same as JSON
    POST /checkpoint   asks for a checkpoint after the current step: 202

A post must carry ``X-Levanter-Training-Control: request-checkpoint`` (or ``request-permanent-checkpoint``), which no
other web page can make a browser send, and in ``X-Levanter-Token`` a token from a page or a ``status.json``; each token
works once. Nothing is loaded from elsewhere, and the content security policy says so.
"""

import html
import json
import logging
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from levanter._checkpoint.policy import Retention
from levanter.errors import ConfigError

logger = logging.getLogger(__name__)

CONTROL_HEADER = "X-Levanter-Training-Control"
TOKEN_HEADER = "X-Levanter-Token"
CONTROLS = {"request-checkpoint": Retention.TEMPORARY, "request-permanent-checkpoint": Retention.PERMANENT}
SECRET = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
POINTS = 400
TOKENS = 64


@dataclass(frozen=True)
class StatusPageConfig:
    """Where the page is.

    Attributes:
        enabled: Serve it.
        host: Address to listen on; the default can be reached from this machine only.
        port: Port; 0 takes a free one, which is logged.
    """

    enabled: bool = False
    host: str = "127.0.0.1"
    port: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port={self.port}; expected 0 to 65535.", key="trainer.status_page.port")


class RunStatus:
    """What the page shows; the training thread writes, the page's threads read.

    Args:
        run_id: Name of the run.
        total_steps: Updates in it.
        config: Plain values; secrets are left out here.
    """

    def __init__(self, run_id: str, total_steps: int, config: Mapping[str, Any] | None = None) -> None:
        self.run_id = run_id
        self.total_steps = total_steps
        self.config = redact(config or {})
        self._lock = threading.Lock()
        self._losses: deque[tuple[int, float]] = deque(maxlen=POINTS)
        self._every = 1
        self._last: dict[str, Any] = {}
        self._goodput: dict[str, float] = {}
        self._checkpoint: str | None = None

    def update(
        self, step: int, metrics: Mapping[str, Any], goodput: Mapping[str, float], checkpoint: str | None
    ) -> None:
        """Take in the numbers of 0-based ``step``."""
        with self._lock:
            self._last = {"step": step, **metrics}
            self._goodput = dict(goodput)
            self._checkpoint = checkpoint
            if step % self._every == 0 and "train/loss" in metrics:
                self._losses.append((step, float(metrics["train/loss"])))
            if len(self._losses) == POINTS:
                self._every *= 2
                self._losses = deque((p for p in self._losses if p[0] % self._every == 0), maxlen=POINTS)

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        with self._lock:
            return {
                "run_id": self.run_id,
                "updates": self._last.get("step", -1) + 1,
                "num_train_steps": self.total_steps,
                "metrics": dict(self._last),
                "goodput": dict(self._goodput),
                "last_checkpoint": self._checkpoint,
                "losses": list(self._losses),
                "config": self.config,
            }


class StatusServer:
    """Serves a status on a thread.

    Args:
        config: Where.
        status: What.
        request_checkpoint: Called when somebody asks for a checkpoint.

    Attributes:
        url: Address of the page.
    """

    def __init__(
        self, config: StatusPageConfig, status: RunStatus, request_checkpoint: Callable[[Retention], None] | None
    ) -> None:
        self.status = status
        self.request_checkpoint = request_checkpoint
        self._tokens: deque[str] = deque(maxlen=TOKENS)
        self._tokens_lock = threading.Lock()
        server = self

        class Handler(_Handler):
            page = server

        try:
            self._http = ThreadingHTTPServer((config.host, config.port), Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {config.host}:{config.port}: {error}. Pick another port, or 0 for a free one.",
                key="trainer.status_page.port",
            ) from error
        self._http.daemon_threads = True
        self.url = f"http://{config.host}:{self._http.server_address[1]}/"
        self._thread = threading.Thread(target=self._http.serve_forever, name="levanter-status", daemon=True)

    def start(self) -> None:
        """Start serving."""
        self._thread.start()
        logger.info("status page: %s", self.url)

    def stop(self) -> None:
        """Stop serving and free the port."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def new_token(self) -> str:
        """A token that allows one post; the oldest is forgotten when there are many."""
        token = secrets.token_urlsafe(16)
        with self._tokens_lock:
            self._tokens.append(token)
        return token

    def use_token(self, token: str) -> bool:
        """Whether the token is good; it is not afterwards."""
        with self._tokens_lock:
            if token not in self._tokens:
                return False
            self._tokens.remove(token)
            return True


class _Handler(BaseHTTPRequestHandler):
    page: StatusServer

    def do_GET(self) -> None:
        nonce = secrets.token_urlsafe(12)
        if self.path == "/":
            body = render_page(self.page.status.as_dict(), self.page.new_token(), nonce)
            self._answer(200, "text/html; charset=utf-8", body, nonce)
        elif self.path == "/status.json":
            document = {**self.page.status.as_dict(), "token": self.page.new_token()}
            self._answer(200, "application/json", json.dumps(document, default=str), nonce)
        else:
            self._answer(404, "text/plain", "no such page; try / or /status.json\n", nonce)

    def do_POST(self) -> None:
        retention = CONTROLS.get(self.headers.get(CONTROL_HEADER, ""))
        if self.path != "/checkpoint":
            self._answer(404, "text/plain", "no such action; try /checkpoint\n")
        elif retention is None:
            self._answer(400, "text/plain", f"{CONTROL_HEADER} must be one of {', '.join(CONTROLS)}\n")
        elif not self.page.use_token(self.headers.get(TOKEN_HEADER, "")):
            self._answer(403, "text/plain", f"{TOKEN_HEADER} must be a fresh token of this page\n")
        elif self.page.request_checkpoint is None:
            self._answer(409, "text/plain", "this run has no checkpointer\n")
        else:
            self.page.request_checkpoint(retention)
            self._answer(202, "text/plain", "a checkpoint will be taken after the current step\n")

    def _answer(self, code: int, kind: str, body: str, nonce: str = "") -> None:
        data = body.encode()
        self.send_response(code)
        policy = f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'"
        self.send_header("Content-Security-Policy", policy)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        logger.debug(format, *args)


def redact(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without the values of keys that look like secrets, and without credentials inside URLs.

    Example:
        >>> redact({"wandb": {"api_key": "x", "project": "p"}, "url": "https://user:pass@example.org/x"})
        {'wandb': {'api_key': '(hidden)', 'project': 'p'}, 'url': 'https://(hidden)@example.org/x'}
    """

    def clean(value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {str(k): clean(v, str(k)) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [clean(item, key) for item in value]
        if isinstance(value, str):
            return (
                "(hidden)"
                if SECRET.search(key) and "tokenizer" not in key
                else re.sub(r"//[^/@\s]+@", "//(hidden)@", value)
            )
        return value

    return clean(config)


def render_page(status: Mapping[str, Any], token: str, nonce: str) -> str:
    """The HTML of the page, self-contained."""
    done, total = status["updates"], status["num_train_steps"]
    metrics = {k: v for k, v in status["metrics"].items() if isinstance(v, int | float | str)}
    spent = sum(v for k, v in status["goodput"].items() if k.endswith("_seconds")) or 1.0
    goodput = {k: f"{v:,.1f} s ({100 * v / spent:.0f} %)" for k, v in status["goodput"].items()}
    title = html.escape(f"{status['run_id']}: {done:,} of {total:,}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style nonce="{nonce}">
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c2530; background: #fff }}
table {{ border-collapse: collapse }} td {{ padding: .1rem 1rem .1rem 0; font-variant-numeric: tabular-nums }}
progress {{ width: 100% }} svg {{ width: 100%; height: 14rem; background: #f4f6f8 }}
polyline {{ fill: none; stroke: #2563a8; stroke-width: 1.5; vector-effect: non-scaling-stroke }}
pre {{ overflow: auto; background: #f4f6f8; padding: 1rem }}
@media (prefers-color-scheme: dark) {{
  body {{ color: #dde3ea; background: #14181d }} svg, pre {{ background: #1d232a }} }}
</style></head><body>
<h1>{html.escape(status["run_id"])}</h1>
<p>{done:,} of {total:,} updates</p>
<progress value="{done}" max="{total}" aria-label="updates done"></progress>
<h2>Loss</h2>{_curve(status["losses"])}
<h2>Last step</h2>{_table(metrics)}
<h2>Where the time went</h2>{_table(goodput)}
<h2>Checkpoint</h2><p>Last: {html.escape(str(status["last_checkpoint"] or "none yet"))}</p>
<p><button id="save">Save a checkpoint</button> <span id="answer" role="status"></span></p>
<h2>Configuration</h2><pre>{html.escape(json.dumps(status["config"], indent=2, default=str))}</pre>
<script nonce="{nonce}">
document.getElementById("save").onclick = async () => {{
  const answer = await fetch("/checkpoint", {{method: "POST", headers: {{
    "{CONTROL_HEADER}": "request-checkpoint", "{TOKEN_HEADER}": "{token}"}}}});
  document.getElementById("answer").textContent = await answer.text();
}};
</script></body></html>
"""


def _table(values: Mapping[str, Any]) -> str:
    rows = (
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(f'{v:.6g}' if isinstance(v, float) else str(v))}</td></tr>"
        for name, v in sorted(values.items())
    )
    return f"<table>{''.join(rows)}</table>"


def _curve(points: list[tuple[int, float]]) -> str:
    """The losses as a line; the text beside it says what the picture says."""
    finite = [(x, y) for x, y in points if abs(y) < 1e30]
    if len(finite) < 2:
        return "<p>not enough steps yet</p>"
    low, high = min(y for _, y in finite), max(y for _, y in finite)
    first, last = finite[0][0], finite[-1][0]
    line = " ".join(
        f"{100 * (x - first) / max(last - first, 1):.2f},{38 * (high - y) / max(high - low, 1e-12) + 1:.2f}"
        for x, y in finite
    )
    text = f"loss {finite[0][1]:.4f} at step {first}, {finite[-1][1]:.4f} at step {last}, lowest {low:.4f}"
    return (
        f'<svg viewBox="0 0 100 40" preserveAspectRatio="none" role="img" aria-label="{text}">'
        f'<polyline points="{line}"/></svg><p>{text}</p>'
    )
