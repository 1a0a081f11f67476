import pytest
from hypothesis import given
from hypothesis import strategies as st
from rigging.errors import ResourceError, SizeParseError
from rigging.resources import (
    ANY_REGION,
    GPU_VARIANTS,
    TPU_TOPOLOGIES,
    CpuConfig,
    GpuConfig,
    ResourceConfig,
    TpuConfig,
    device_flops,
    format_bytes,
    get_tpu_topology,
    parse_bytes,
)


@given(st.integers(0, 2**60))
def test_sizes_survive_formatting(size):
    assert parse_bytes(format_bytes(size)) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [("1k", 1024), ("4G", 4 << 30), ("1.5GiB", 3 << 29), ("10 mb", 10 << 20), ("7", 7), (" 2t ", 2 << 40), (12, 12)],
)
def test_sizes_are_binary_whatever_their_spelling(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "g", "-1g", "1x", "1.2.3g", None, -5, True, 1.5])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(SizeParseError, match="cannot read a size"):
        parse_bytes(text)


def test_tpu_topologies_are_consistent():
    for name, info in TPU_TOPOLOGIES.items():
        assert info.name == name
        assert info.vm_count * info.chips_per_vm == info.chip_count
        assert 1 <= info.host_count <= info.vm_count
    assert get_tpu_topology("v5p-12288").chip_count == 6144
    assert get_tpu_topology("v5litepod-16").host_count == 2 and get_tpu_topology("v5litepod-16").vm_count == 4
    assert get_tpu_topology("v6e-8").vm_count == 1 and get_tpu_topology("v6e-256").vm_count == 64
    with pytest.raises(ResourceError, match="v4-7"):
        get_tpu_topology("v4-7")


def test_every_gpu_but_auto_has_a_published_rate():
    for variant in GPU_VARIANTS:
        assert variant == "auto" or device_flops(variant, "fp16")
    assert device_flops("v5litepod-16", "int8") == 394e12
    with pytest.raises(ResourceError):
        GpuConfig("H100").device_flops("fp1")
    with pytest.raises(NotImplementedError):
        CpuConfig().device_flops()


def test_bad_devices_are_refused():
    for make in (lambda: GpuConfig("H900"), lambda: GpuConfig("H100", 0), lambda: TpuConfig("v9-1")):
        with pytest.raises(ResourceError):
            make()


def test_device_environments():
    assert CpuConfig().default_env_vars() == {"JAX_PLATFORMS": "cpu"}
    assert GpuConfig("H100").default_env_vars() == {"JAX_PLATFORMS": ""}
    assert TpuConfig("v6e-8").default_env_vars()["LIBTPU_INIT_ARGS"].endswith("98304")
    assert TpuConfig("v5p-8").default_env_vars()["LIBTPU_INIT_ARGS"].endswith("50000")
    assert "LIBTPU_INIT_ARGS" not in TpuConfig("v4-8").default_env_vars()


def test_chips_and_rates_count_all_replicas():
    slices = ResourceConfig.with_tpu("v4-16", slice_count=2)
    assert slices.replicas == 4 and slices.chip_count() == 16 and slices.ram == "128g"
    assert slices.total_flops() == 16 * 275e12
    assert ResourceConfig.with_gpu("H100", 8, replicas=2).chip_count() == 16
    assert ResourceConfig(replicas=3).total_flops() == 3e11


def test_alternatives_must_have_the_shape_of_the_first():
    either = ResourceConfig.with_tpu(["v4-8", "v5p-8"])
    assert either.device == TpuConfig("v4-8") and either.device_alternatives == ["v5p-8"]
    with pytest.raises(ResourceError, match="v4-8 has 1 VMs.*v4-16 has 2 VMs"):
        ResourceConfig.with_tpu(["v4-8", "v4-16"])
    with pytest.raises(ResourceError, match="non-empty"):
        ResourceConfig.with_tpu([])


def test_scaling_changes_what_it_says_and_nothing_else():
    base = ResourceConfig(cpu=2, ram="4g", disk="16g", zone="z", regions=["r"])
    doubled = base.scale(2)
    assert (doubled.cpu, doubled.ram, doubled.disk, doubled.zone, doubled.regions) == (4, "8g", "32g", "z", ["r"])
    assert base.scale(ram=0.5).ram == "2g" and base.scale(ram=0.5).cpu == 2
    for bad in ({"factor": 2, "ram": 3}, {"factor": 0}, {"cpu": -1}):
        with pytest.raises(ResourceError, match="scale"):
            base.scale(**bad)


@pytest.mark.parametrize(
    "fields",
    [{"cpu": 0}, {"replicas": 0}, {"regions": [ANY_REGION, "us-east1"]}, {"ram": "lots"}, {"disk": ""}],
)
def test_requests_that_cannot_be_are_refused(fields):
    with pytest.raises(ValueError):
        ResourceConfig(**fields)
    assert ResourceConfig(regions=[ANY_REGION]).regions == [ANY_REGION]
