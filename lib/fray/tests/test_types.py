import os

import pytest
from fray import (
    ANY_REGION,
    ActorConfig,
    BackendNotFoundError,
    Entrypoint,
    EnvironmentConfig,
    JobRequest,
    JobRequestError,
    JobStatus,
    LocalClient,
    ResourceConfig,
    SerializationError,
    connect_backend,
    create_environment,
    current_client,
    set_current_client,
)

NOTHING = Entrypoint.from_callable(print)


@pytest.mark.parametrize(
    "make",
    [
        lambda: JobRequest("two words", NOTHING),
        lambda: JobRequest("", NOTHING),
        lambda: JobRequest("a", NOTHING, replicas=0),
        lambda: JobRequest("a", NOTHING, max_retries_failure=-1),
        lambda: Entrypoint(),
        lambda: Entrypoint(fn=print, command=("ls",)),
        lambda: Entrypoint.from_callable("print"),
        lambda: EnvironmentConfig(),
        lambda: EnvironmentConfig(workspace="/", docker_image="x"),
        lambda: ActorConfig(max_concurrency=0),
        lambda: ActorConfig(max_restarts=-1),
        lambda: LocalClient(mode="cloud"),
        lambda: LocalClient(max_workers=0),
    ],
)
def test_requests_that_cannot_be_are_refused(make):
    with pytest.raises(JobRequestError, match="expected"):
        make()


def test_replicas_come_from_the_resources_unless_given():
    assert JobRequest("a", NOTHING, resources=ResourceConfig(replicas=3)).num_replicas == 3
    assert JobRequest("a", NOTHING, resources=ResourceConfig(replicas=3), replicas=2).num_replicas == 2


def test_final_states():
    final = {status for status in JobStatus if JobStatus.finished(status)}
    assert final == {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED}


def test_an_environment_has_defaults_that_the_caller_overrides(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "t")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    made = create_environment(env_vars={"HF_DATASETS_TRUST_REMOTE_CODE": None, "A": "b"})
    assert made.workspace == os.getcwd() and made.docker_image is None
    assert made.env_vars == {"TOKENIZERS_PARALLELISM": "false", "HF_TOKEN": "t", "A": "b"}
    assert create_environment(docker_image="img").workspace is None
    assert ANY_REGION == "*"


def test_backends_are_found_by_name_and_an_unknown_one_lists_what_is_there():
    with connect_backend("local", mode="thread") as client:
        assert isinstance(client, LocalClient)
    with pytest.raises(BackendNotFoundError, match=r"name='moon'; expected one of \[.*'local'"):
        connect_backend("moon")


def test_the_current_client_nests_and_is_one_per_process():
    default = current_client()
    assert default is current_client()
    with LocalClient(mode="thread") as outer, LocalClient(mode="thread") as inner, set_current_client(outer):
        with set_current_client(inner):
            assert current_client() is inner
        assert current_client() is outer
    assert current_client() is default


def test_what_the_local_backend_cannot_give_is_refused(process_client):
    for environment in (create_environment(docker_image="img"), create_environment(extras=["no-such-extra"])):
        with pytest.raises(JobRequestError, match="local backend|extras that the pyproject"):
            process_client.submit(JobRequest("a", NOTHING, environment=environment))


def test_what_cannot_be_pickled_is_refused_at_once(process_client):
    import threading

    with pytest.raises(SerializationError, match="the entrypoint"):
        process_client.submit(JobRequest("a", Entrypoint.from_callable(print, (threading.Lock(),))))
    with pytest.raises(JobRequestError, match="count"):
        process_client.create_actor_group(dict, name="x", count=0)
    with pytest.raises(JobRequestError, match="slashes"):
        process_client.create_actor(dict, name="a/b")
