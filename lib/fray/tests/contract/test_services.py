"""Ports, endpoints and gangs, on every backend."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from fray import (
    EndpointNotFoundError,
    EndpointTakenError,
    Entrypoint,
    JobFailed,
    JobRequest,
    JobRequestError,
    PortNotFoundError,
    create_environment,
    current_client,
    job_port,
    set_current_client,
)


def job(name, fn, *args, **fields):
    return JobRequest(name, Entrypoint.from_callable(fn, args), **fields)


def bind(names):
    numbers = []
    for name in names:
        with socket.socket() as server:
            server.bind(("", job_port(name)))
            numbers.append(job_port(name))
    return numbers


def serve(name, folder):
    port = job_port("http")
    current_client().publish_endpoint(name, f"http://127.0.0.1:{port}")
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.005)
    return port


def test_a_job_is_given_the_ports_it_names_and_no_others(client):
    numbers = client.submit(job("ports", bind, ["http", "debug"], ports=["http", "debug"])).result(60)
    assert len(set(numbers)) == 2 and min(numbers) > 1023
    with pytest.raises(JobFailed, match="no port of this name") as caught:
        client.submit(job("none", bind, ["http"], ports=["debug"])).result(60)
    assert isinstance(caught.value.__cause__, PortNotFoundError) and caught.value.__cause__.allocated == ["debug"]


def test_two_jobs_at_once_never_share_a_port(client, tmp_path):
    with set_current_client(client):
        jobs = [client.submit(job(f"s{n}", serve, f"s{n}", str(tmp_path), ports=["http"])) for n in range(3)]
        addresses = [client.resolve_endpoint(f"s{n}", timeout=60) for n in range(3)]
        assert len(set(addresses)) == 3
        assert client.endpoints("s") == {f"s{n}": address for n, address in enumerate(addresses)}
        with pytest.raises(EndpointTakenError, match="published with address"):
            client.publish_endpoint("s1", "http://other:1")
        (tmp_path / "go").touch()
        assert [f"http://127.0.0.1:{one.result(60)}" for one in jobs] == addresses
        assert client.endpoints() == {}, "they end with their jobs"
        with pytest.raises(EndpointNotFoundError, match="waited 0.05 s"):
            client.resolve_endpoint("s1", timeout=0.05)


def test_an_endpoint_of_the_driver_is_found_by_its_jobs(client):
    client.publish_endpoint("a/b", "one")
    client.publish_endpoint("a/b", "two")
    with set_current_client(client):
        assert client.submit(job("ask", lambda: current_client().resolve_endpoint("a/b", 60))).result(60) == "two"


@pytest.mark.parametrize(("name", "address"), [("", "x"), ("a b", "x"), ("a", "")])
def test_a_bad_endpoint_is_refused(client, name, address):
    with pytest.raises(JobRequestError):
        client.publish_endpoint(name, address)


def test_ports_of_a_command_are_variables():
    from fray import LocalClient

    with LocalClient(max_workers=1) as client:
        entry = Entrypoint.from_binary("sh", ["-c", "echo $MARIN_PORT_HTTP_2"])
        made = client.submit(JobRequest("cmd", entry, ports=["http-2"]))
        made.wait(60)
        assert int(made.logs()[0]) > 1023


@pytest.mark.parametrize("ports", ["http", ["a", "a"], ["a b"], ["a", "A"], [""]])
def test_bad_port_names_are_refused(ports):
    with pytest.raises(JobRequestError, match="ports"):
        job("bad", bind, [], ports=ports)


def test_a_killed_holder_leaks_no_port(tmp_path):
    code = "from fray.ports import PortLease; import time; print(PortLease().number, flush=True); time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    number = int(holder.stdout.readline())
    import fcntl
    import tempfile

    path = os.path.join(tempfile.gettempdir(), f"fray-ports-{os.getuid()}", str(number))
    with open(path) as stream:
        with pytest.raises(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def meet(folder):
    from rigging.job_identity import JobIdentity

    me = JobIdentity.from_environment()
    open(os.path.join(folder, f"{me.attempt}-{me.rank}"), "w").close()
    while any(not os.path.exists(os.path.join(folder, f"{me.attempt}-{rank}")) for rank in range(me.count)):
        time.sleep(0.005)
    print(f"rank {me.rank} of {me.count} at {me.coordinator}, attempt {me.attempt}")
    if me.attempt == 0 and me.rank == 1:
        raise OSError("the first attempt of rank 1 fails")
    return me.attempt


@pytest.mark.parametrize("client", ["process", "ray"], indirect=True)
def test_a_gang_starts_together_and_starts_again_together(client, tmp_path):
    # Each rank waits for all of its attempt, so this ends only if the others were started again with the failed one.
    request = job("gang", meet, str(tmp_path), replicas=2, max_retries_failure=1)
    made = client.submit(request)
    assert made.result(100) == 1
    lines = [line for line in made.logs() if "attempt 1" in line]
    assert [line[:10] for line in lines] == ["[0] rank 0", "[1] rank 1"]
    assert len({line.split(" at ")[1] for line in lines}) == 1


def environment_of(names):
    return {name: os.environ.get(name) for name in names} | {"cwd": os.getcwd()}


@pytest.mark.parametrize("client", ["process", "ray"], indirect=True)
def test_a_job_has_its_variables_and_folder_and_leaves_none_behind(client, tmp_path):
    environment = create_environment(str(tmp_path), env_vars={"MODE": "m1"})
    names = ["MODE", "JAX_PLATFORMS", "LEFT"]

    def look():
        seen = environment_of(names)
        os.environ["LEFT"] = "yes"
        os.chdir("/")
        return seen

    seen = client.submit(job("look", look, environment=environment)).result(60)
    assert seen == {"MODE": "m1", "JAX_PLATFORMS": "cpu", "LEFT": None, "cwd": str(tmp_path)}
    again = client.submit(job("again", look, environment=environment)).result(60)
    assert again == seen
