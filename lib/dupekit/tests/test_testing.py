import dupekit
import pytest
from dupekit.testing import forced_simd, simd_path, simd_paths


def test_the_widest_path_is_the_default_and_comes_back() -> None:
    widest = simd_paths()[-1]
    assert simd_path() == widest
    with forced_simd("scalar"):
        assert simd_path() == "scalar"
    assert simd_path() == widest


def test_a_forced_path_ends_with_an_error_in_the_block() -> None:
    with pytest.raises(ZeroDivisionError), forced_simd("scalar"):
        _ = 1 / 0
    assert simd_path() == simd_paths()[-1]


def test_an_unknown_path_is_refused_with_the_choices() -> None:
    with pytest.raises(dupekit.ParameterError, match=r"sse9.*scalar"), forced_simd("sse9"):
        pytest.fail("the block must not run")
