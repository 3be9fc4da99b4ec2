"""Numbers as persons read them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from doppler_tf.report.tables import NOTHING, markdown_table, over, percent, quantity, time_unit, yes_no


@pytest.mark.parametrize(("largest_s", "value_s", "text"), [
    (0.0123456, 0.0123456, "12.35 ms"), (0.0123456, 0.001, "1.00 ms"), (120.282, 120.282, "120,282 ms"), (3e-6, 3e-6, "0.003000 ms"),
    (0.0, 0.0, "0 ms"), (999_999.0, 1.0, "1,000 ms"), (4.80028e13, 4.80028e13, "48.0028e12"), (4.80028e13, 1e9, "0.0010e12"),
    (1e6, 1e6, "1.0000e6"),
])
def test_times_that_stand_together_are_written_alike(largest_s, value_s, text):
    assert time_unit([largest_s, value_s, None, math.inf]).text(value_s) == text


def test_what_is_not_known_is_a_dash():
    assert {time_unit([]).text(None), percent(None), over(math.inf, 1.0), over(1.0, 0.0), quantity(None, "B"), yes_no(None)} == {NOTHING}


def test_an_infinite_makespan_is_one_that_does_not_fit():
    assert time_unit([1.0, math.inf]).text(math.inf) == "out of memory"


def test_shares_and_quantities():
    assert (percent(0.1234), over(1.5, 1.2), over(1.0, 1.0)) == ("12.3%", "+25.0%", "+0.0%")
    assert [quantity(x, "B") for x in (0, 999, 1000, 2.4e9, 3e21)] == ["0 B", "999 B", "1 kB", "2.4 GB", "3000 EB"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [float, np.float64])
def test_numbers_near_the_largest_float(number):
    huge = number(1e308)
    assert (time_unit([huge]).text(huge), time_unit([1.0]).text(huge)) == ("100.0000e306", "100.0000e306")
    assert (over(number(1e300), 1.0), over(huge, 1.0), over(huge, number(1e-3))) == ("+1.0e+302%", "over 1e308%", "over 1e308%")
    assert (percent(huge), quantity(huge, "B")) == ("over 1e308%", "1e+290 EB")


def test_below_the_bound():
    assert (over(0.9, 1.0), over(1.0 - 1e-15, 1.0)) == ("-10.0%", "+0.0%")


def test_markdown():
    assert markdown_table(["a", "b"], [["x|y", "1"]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |"
    assert markdown_table(["a", "b"], [["x", "y"]], words=True) == "| a | b |\n| --- | --- |\n| x | y |"
