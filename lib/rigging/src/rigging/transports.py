"""Addresses of services, also of those that a tunnel must be dug to first.

==========================================================  =========================================
``http://host:port/path``, ``https://...``                  straight
``iap+https://host/path?audience=A``                        through Google's identity-aware proxy
``ssh+gcp://instance:port?project=P&zone=Z[&sa=S][&iap=true]``  a port forward by ``gcloud compute ssh``
``k8s://service:port?namespace=N[&context=C]``              a port forward by ``kubectl``
==========================================================  =========================================
"""

import urllib.parse
from dataclasses import dataclass
from typing import Final

from rigging.errors import TransportError


@dataclass(frozen=True, slots=True)
class HttpTransport:
    """A service that can be reached straight away.

    Example:
        >>> parse_transport("https://example.com/api")
        HttpTransport(url='https://example.com/api')
    """

    url: str


@dataclass(frozen=True, slots=True)
class IapTransport:
    """A service behind an identity-aware proxy; ``audience`` is what the proxy's tokens must be for.

    Example:
        >>> parse_transport("iap+https://example.com?audience=a")
        IapTransport(url='https://example.com', audience='a')
    """

    url: str
    audience: str


@dataclass(frozen=True, slots=True)
class GcpSshForwardTarget:
    """A port of a machine on Google Cloud, reached by ``gcloud compute ssh``."""

    instance: str
    port: int
    project: str
    zone: str
    service_account: str | None = None
    iap: bool = False

    def command(self, local_port: int) -> list[str]:
        """Return the command that forwards ``local_port`` of 127.0.0.1.

        Example:
            >>> GcpSshForwardTarget("vm", 80, "p", "z").command(8000)[-4:]
            ['-N', '-o', 'ExitOnForwardFailure=yes', '-L127.0.0.1:8000:localhost:80']
        """
        words = ["gcloud", "compute", "ssh", self.instance, f"--project={self.project}", f"--zone={self.zone}"]
        if self.service_account is not None:
            words.append(f"--impersonate-service-account={self.service_account}")
        if self.iap:
            words.append("--tunnel-through-iap")
        words += ["--quiet", "--", "-N", "-o", "ExitOnForwardFailure=yes"]
        return [*words, f"-L127.0.0.1:{local_port}:localhost:{self.port}"]


@dataclass(frozen=True, slots=True)
class K8sPortForwardTarget:
    """A port of a Kubernetes service, reached by ``kubectl port-forward``."""

    service: str
    port: int
    namespace: str
    context: str | None = None

    def command(self, local_port: int) -> list[str]:
        """Return the command that forwards ``local_port`` of 127.0.0.1.

        Example:
            >>> K8sPortForwardTarget("web", 80, "prod").command(8000)[-3:]
            ['--address=127.0.0.1', 'service/web', '8000:80']
        """
        words = ["kubectl", f"--namespace={self.namespace}"]
        if self.context is not None:
            words.append(f"--context={self.context}")
        return [*words, "port-forward", "--address=127.0.0.1", f"service/{self.service}", f"{local_port}:{self.port}"]


Transport = HttpTransport | IapTransport | GcpSshForwardTarget | K8sPortForwardTarget
_PARAMETERS: Final = {
    "http": (),
    "https": (),
    "iap+https": ("audience",),
    "ssh+gcp": ("project", "zone", "sa", "iap"),
    "k8s": ("namespace", "context"),
}


def parse_transport(text: str) -> Transport:
    """Read a transport URL.

    Raises:
        TransportError: Another scheme, a part that is missing or unknown, or a password in it.

    Example:
        >>> parse_transport("k8s://web:80?namespace=prod")
        K8sPortForwardTarget(service='web', port=80, namespace='prod', context=None)
    """
    try:
        parts = urllib.parse.urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise TransportError(text, f"a URL ({error})") from error
    if parts.scheme not in _PARAMETERS:
        raise TransportError(text.partition("://")[0] + "://...", f"one of the schemes {sorted(_PARAMETERS)}")
    shown = f"{parts.scheme}://{host or ''}..."
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise TransportError(shown, "no user, password or fragment in it", "Pass credentials as auth=.")
    if not host or any(char.isspace() for char in text):
        raise TransportError(shown, "a host and no blanks")
    given = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    known = _PARAMETERS[parts.scheme]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise TransportError(shown, f"parameters among {list(known)}, not {unknown}")
    if parts.scheme in ("http", "https"):
        return HttpTransport(urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")))
    if parts.scheme == "iap+https":
        url = urllib.parse.urlunsplit(("https", parts.netloc, parts.path, "", ""))
        return IapTransport(url, _needed(shown, given, "audience"))
    if port is None or parts.path not in ("", "/"):
        raise TransportError(shown, "a port and no path")
    if parts.scheme == "k8s":
        return K8sPortForwardTarget(host, port, _needed(shown, given, "namespace"), given.get("context") or None)
    if given.get("iap", "false") not in ("true", "false"):
        raise TransportError(shown, "iap=true or iap=false")
    project, zone = _needed(shown, given, "project"), _needed(shown, given, "zone")
    return GcpSshForwardTarget(host, port, project, zone, given.get("sa") or None, given.get("iap") == "true")


def _needed(shown: str, given: dict[str, str], name: str) -> str:
    if not given.get(name):
        raise TransportError(shown, f"the parameter {name}")
    if given[name].startswith("-"):
        raise TransportError(shown, f"a {name} that no program takes for an option")
    return given[name]
