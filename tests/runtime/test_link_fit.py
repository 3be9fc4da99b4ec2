"""Links from points: exact where the points are, and not led astray by a wild one."""

import numpy as np
import pytest

from runtime.profiling.link_fit import fit_link, fit_shares

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


def test_shares_are_found_and_a_burst_counts_for_no_more_than_the_transfers_beside_it():
    beside_s = np.random.default_rng(0).uniform(0, 1, (50, 2))
    longer_s = beside_s @ [0.25, 0.5]
    assert fit_shares(longer_s, beside_s).tolist() == pytest.approx([0.25, 0.5])
    longer_s[7] = 1000.0
    assert fit_shares(longer_s, beside_s).tolist() == pytest.approx([0.25, 0.5], abs=0.1)


def test_shares_are_never_negative_and_never_more_than_all():
    assert fit_shares(np.array([-1.0, -2.0]), np.ones((2, 1))).tolist() == [0.0]
    assert fit_shares(np.array([3.0, 3.0]), np.array([[1.0, 2.0], [1.0, 1.0]])).max() <= 1.0
