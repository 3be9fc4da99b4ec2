"""The page as a browser shows it: its numbers, keys, buttons, print."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from doppler_tf.cli import main
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.records import graph_from_records
from tests.runs import make_run

NAMES = ("fan", "</script><script>alert(1)</script> & 'b' <b>\"x\"</b>")


def fan(name: str):
    """A root, twelve vertices of names that look like markup, and a last one that joins them; one input."""
    nodes = [{"id": "x", "input": True}, {"id": 0, "exec_s": 0.5, "kind": "<i>root</i>", "name": "root"}]
    nodes += [{"id": i, "exec_s": 1.0, "kind": "leaf", "name": f"</script><b>leaf[{i}]</b><!--&\"'"} for i in range(1, 13)]
    nodes += [{"id": 13, "exec_s": 0.25, "kind": "join"}]
    edges = [{"source": "x", "target": 0}, *({"source": 0, "target": i, "transfer_s": 0.1} for i in range(1, 13)),
             *({"source": i, "target": 13, "transfer_s": 0.1} for i in range(1, 13))]
    return graph_from_records(nodes, edges, {"name": name})


@pytest.fixture(scope="module")
def made(browser, tmp_path_factory):
    """A page of a run on two graphs: (its address, result.json)."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    make_run(folder, [fan(name) for name in NAMES], read_topology("cpu:4"))
    assert main(["report", str(folder)]) == 0
    return (folder / "report" / "index.html").as_uri(), json.loads((folder / "result.json").read_text())["graphs"]


@pytest.fixture
def sections(browser, made):
    """The page, freshly opened: its sections by graph."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.get_log("browser")
    browser.get(made[0])
    found = dict(zip(NAMES, browser.find_elements("css selector", "section.graph"), strict=True))
    yield found
    assert browser.get_log("browser") == []


def press(element, *keys: str) -> None:
    element.send_keys(*keys)


def shown(plot) -> tuple[float, float]:
    return float(plot.get_attribute("data-from_s")), float(plot.get_attribute("data-to_s"))


def test_the_numbers_are_those_of_the_run(made, sections):
    for name, figures in made[1].items():
        section = sections[name]
        assert section.find_element("tag name", "h2").text == name
        for key, value in figures.items():
            figure = section.find_element("css selector", f"[data-figure={key}]")
            assert float(figure.get_attribute("value")) == value
            assert re.fullmatch(r"[\d,.]+( m?s)?", figure.text)
        assert section.find_element("css selector", "[data-figure=best_makespan_s]").text == f"{1e3 * figures['best_makespan_s']:,.0f} ms"
        above = figures["best_makespan_s"] / figures["lower_bound_s"] - 1
        assert section.find_element("css selector", "[data-figure=above_bound]").text == f"+{100 * above:.1f}%"
        learned = section.find_element("css selector", "[data-method='learned, best'] data")
        assert float(learned.get_attribute("value")) == figures["best_makespan_s"]


def test_everything_is_drawn_and_nothing_is_loaded(browser, sections):
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return document.querySelectorAll('b, i').length") == 0
    for name, section in sections.items():
        assert len(section.find_elements("css selector", ".gantt rect[data-bar]")) >= 14
        assert len(section.find_elements("css selector", ".drawing circle[data-vertex]")) == 14
        assert len(section.find_elements("css selector", ".chart polyline, .chart circle")) == 4
        (link,) = section.find_elements("css selector", ".traces a")
        assert link.get_attribute("href").endswith(".trace.json"), name
        assert [row.text for row in section.find_elements("css selector", ".devices tbody th")] == [f"{d} CPU:{d}" for d in range(4)]


def test_the_chart_is_used_from_the_keyboard(browser, made, sections):
    whole = (0.0, made[1]["fan"]["best_makespan_s"])
    plot = sections["fan"].find_element("css selector", ".gantt .plot")
    assert shown(plot) == whole
    browser.execute_script("arguments[0].previousElementSibling.previousElementSibling.querySelector('[data-do=all]').focus()", plot)
    press(browser.switch_to.active_element, "\ue004")  # Tab
    assert browser.switch_to.active_element == plot
    assert browser.execute_script("return getComputedStyle(arguments[0]).outlineStyle", plot) == "solid"
    press(plot, "+", "+")
    first, last = shown(plot)
    assert last - first == pytest.approx((whole[1] - whole[0]) / 2.25)
    assert first + last == pytest.approx(whole[0] + whole[1])
    press(plot, "\ue014")  # right
    assert shown(plot)[0] == pytest.approx(first + 0.2 * (last - first))
    press(plot, *["\ue012"] * 20)  # left, to the begin and no further
    assert shown(plot)[0] == 0.0
    press(plot, "-")
    assert shown(plot)[1] == pytest.approx(whole[1] / 1.5)
    press(plot, "0")
    assert shown(plot) == whole
    press(plot, "n")
    status = sections["fan"].find_element("css selector", ".gantt .status")
    assert status.text.startswith("root (id 0) <i>root</i> on CPU:")
    press(plot, "p")
    assert status.text.startswith("13 join on CPU:")


def test_buttons_and_the_mouse_move_the_pictures(browser, sections):
    from selenium.webdriver import ActionChains

    section = sections["fan"]
    plot, range_ = (section.find_element("css selector", f".gantt {part}") for part in (".plot", ".range"))
    before = range_.text
    section.find_element("css selector", ".gantt [data-do=in]").click()
    first, last = shown(plot)
    assert range_.text != before
    ActionChains(browser).move_to_element(plot).click_and_hold().move_by_offset(120, 0).release().perform()
    assert shown(plot)[0] < first
    assert shown(plot)[1] - shown(plot)[0] == pytest.approx(last - first)
    section.find_element("css selector", ".gantt [data-do=all]").click()
    assert range_.text == before
    drawing = section.find_element("css selector", ".drawing .plot")
    drawing.find_element("css selector", "circle[data-vertex='3']").click()
    assert "leaf[3]</b><!--&\"' (id 3): leaf on CPU:" in section.find_element("css selector", ".drawing .status").text
    press(drawing, "+")
    assert float(drawing.get_attribute("data-scale")) == 1.5


def test_print_shows_everything_but_the_buttons(browser, sections):
    pages = set()
    for width in (400, 1900):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
        pages.add(len(re.findall(rb"/Type\s*/Page\b", pdf)))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(pages) == 1  # the window's width does not decide what is on paper
    button = sections["fan"].find_element("tag name", "button")
    assert button.is_displayed()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not any(element.is_displayed() for element in browser.find_elements("css selector", "button, .hint, .status"))
    assert all(element.is_displayed() for element in browser.find_elements("css selector", ".plot svg, table.methods, table.devices, dl"
                                                                                           ".facts:not(.small)"))
    assert browser.execute_script("return getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


def test_no_row_of_a_table_and_no_list_of_traces_is_alone_on_paper(browser, sections):
    if (pdftotext := shutil.which("pdftotext")) is None:
        pytest.skip("needs pdftotext (Debian: apt install poppler-utils)")
    seen = set()
    for height_in in np.arange(10.5, 14.0, 0.1):
        pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"paperHeight": height_in})["data"])
        text = subprocess.run([pdftotext, "-layout", "-", "-"], input=pdf, capture_output=True, check=True).stdout.decode()
        for page in text.split("\f"):
            lines = [line.strip() for line in page.splitlines() if line.strip()]
            assert not lines[-1:] or not lines[-1].startswith(("learned, best", "0 CPU:0", "Traces")), (height_in, lines)
            assert lines[:1] != ["Traces"], (height_in, lines)
            seen |= {word for word in ("learned, best", "Traces") if any(line.startswith(word) for line in lines)}
    assert seen == {"learned, best", "Traces"}
