"""The public names, and how light the package is."""

import importlib
import importlib.util
import pkgutil
import resource
import subprocess
import sys

import fray
import pytest

PUBLIC = """
ANY_REGION ActorConfig ActorContext ActorFuture ActorGroup ActorHandle ActorOperation ActorUnavailableError
BackendMissingError BackendNotFoundError CallCancelledError Client ClientClosedError CpuConfig
EndpointNotFoundError EndpointTakenError Entrypoint EnvironmentConfig EnvironmentSetupError FrayError GpuConfig
HostedActor JobAlreadyExists JobFailed JobHandle JobRequest JobRequestError JobStatus LocalClient PortNotFoundError
RemoteError ResourceConfig SerializationError TpuConfig cancel_requested connect_backend create_environment
current_actor current_client job_port set_current_client wait_all
""".split()

BANNED = ("ray", "numpy", "fsspec", "asyncio", "importlib.metadata", "concurrent.futures", "multiprocessing")


def modules() -> list[str]:
    found = sorted(module.name for module in pkgutil.walk_packages(fray.__path__, "fray."))
    if importlib.util.find_spec("ray") is None:
        found = [name for name in found if not name.startswith("fray.ray_backend")]  # needs its extra
    return ["fray", *found]


def test_the_public_names_are_these():
    assert sorted(PUBLIC) == fray.__all__ == dir(fray)
    for name in PUBLIC:
        assert getattr(fray, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        fray.no_such_name  # noqa: B018


def test_current_client_is_the_function_even_after_its_module_was_imported():
    code = "import fray.current_client; import fray; from fray import current_client; assert callable(current_client)"
    subprocess.run([sys.executable, "-c", code + "; assert current_client() is not None"], check=True)


def test_the_module_current_client_travels_too():
    import pickle

    import cloudpickle

    module = importlib.import_module("fray.current_client")
    assert pickle.loads(cloudpickle.dumps(module)) is module


def test_every_public_definition_has_a_docstring():
    missing = []
    for name in modules():
        module = importlib.import_module(name)
        if not module.__doc__:
            missing.append(name)
        for key, value in vars(module).items():
            if not key.startswith("_") and getattr(value, "__module__", None) == name and callable(value):
                if not getattr(value, "__doc__", None):
                    missing.append(f"{name}.{key}")
    assert missing == []


def test_a_backend_without_its_library_names_the_extra():
    code = "import sys; sys.modules['ray'] = None; import fray; fray.connect_backend('ray')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'marin-fray[ray]'" in done.stderr


def test_a_thread_client_fulfils_the_protocol_by_name():
    public = {name for name in vars(fray.Client) if not name.startswith("_")}
    assert public and all(callable(getattr(fray.LocalClient, name)) for name in public)


def test_a_ray_client_fulfils_the_protocol_by_name():
    backend = pytest.importorskip("fray.ray_backend", reason="needs the extra: marin-fray[ray]", exc_type=ImportError)
    public = {name for name in vars(fray.Client) if not name.startswith("_")}
    assert all(callable(getattr(backend.RayClient, name)) for name in public)


def test_resources_are_rigging_s_own():
    import rigging.resources

    assert fray.ResourceConfig is rigging.resources.ResourceConfig


def cpu_seconds(code: str) -> tuple[float, str]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "budget_s"), [("fray", 0.10), ("fray.types", 0.12), ("fray.client", 0.15)])
def test_imports_are_quick_and_load_nothing_heavy(name, budget_s):
    runs = [
        cpu_seconds(f"import sys; import {name}; print([m for m in {BANNED!r} if m in sys.modules])") for _ in "123"
    ]
    assert runs[0][1] == "[]"
    assert min(seconds for seconds, _ in runs) < budget_s * 3
