"""Links from points: exact where the points are, and not led astray by a wild one."""

import numpy as np
import pytest

from runtime.link_fit import fit_link

SIZES = [4096, 16384, 65536, 2**18, 2**20, 2**22]


@pytest.mark.parametrize(("latency_s", "bandwidth"), [(20e-6, 5e9), (0.0, 1e10), (1e-3, 1e12), (5e-9, 4.5e11)])
def test_exact_points_give_the_line_back(latency_s, bandwidth):
    found = fit_link(SIZES, [latency_s + size / bandwidth for size in SIZES])
    assert found == pytest.approx((latency_s, bandwidth), rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("wild", range(len(SIZES)))
def test_one_wild_point_of_six_changes_nothing(wild):
    seconds = [20e-6 + size / 5e9 for size in SIZES]
    seconds[wild] *= 50
    assert fit_link(SIZES, seconds) == pytest.approx((20e-6, 5e9), rel=1e-6)


def test_noise_moves_the_line_a_little():
    rng = np.random.default_rng(0)
    seconds = [(20e-6 + size / 5e9) * rng.uniform(0.95, 1.05) for size in SIZES]
    assert fit_link(SIZES, seconds) == pytest.approx((20e-6, 5e9), rel=0.1)


def test_times_that_do_not_grow_have_no_bandwidth_and_latency_is_never_negative():
    assert fit_link([100, 200, 400], [3.0, 2.0, 1.0]) == (2.0, np.inf)
    latency_s, bandwidth = fit_link([100, 200, 400], [0.5, 2.0, 5.0])
    assert (latency_s, bandwidth) == (0.0, 100.0)


def test_one_size_tells_nothing_of_the_bandwidth():
    assert fit_link([4096], [3e-5]) == (3e-5, np.inf)
