"""One small HTTP GET; the standard library's client is loaded with the first request, as it brings TLS with it."""

from collections.abc import Mapping


def get_bytes(
    url: str,
    *,
    timeout_s: float,
    limit_bytes: int,
    headers: Mapping[str, str] | None = None,
    wanted: Mapping[str, str] | None = None,
) -> bytes:
    """Return the body of a 200 answer; redirects are not followed, proxies not asked.

    Args:
        url: Where.
        timeout_s: Seconds to wait for each step.
        limit_bytes: Longest body.
        headers: What to send.
        wanted: Headers that the answer must have.
    Raises:
        OSError: No answer, another status, a header is missing, or the body is longer.
    """
    import http.client
    import urllib.parse

    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request(
            "GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), headers=dict(headers or {})
        )
        answer = connection.getresponse()
        body = answer.read(limit_bytes + 1)
        if answer.status != 200:
            raise OSError(f"{url} answers with status {answer.status}; expected 200")
        if any(answer.getheader(name) != value for name, value in (wanted or {}).items()):
            raise OSError(f"{url} is not the server that was expected: it does not send {sorted(wanted or {})}")
        if len(body) > limit_bytes:
            raise OSError(f"{url} answers with more than {limit_bytes} bytes")
        return body
    except http.client.HTTPException as error:
        raise OSError(f"{url} does not speak HTTP: {error!r}") from error
    finally:
        connection.close()
