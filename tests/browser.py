"""Headless Chromium for tests that look at pages; where there is none, they are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-sync", "--window-size=1280,900")


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator:
    """A selenium driver with a profile of its own; `get_log("browser")` holds what pages write to the console."""
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if chromium is None or driver is None:
        pytest.skip("needs Chromium and its driver (Debian: apt install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    started.set_page_load_timeout(60)
    yield started
    started.quit()
