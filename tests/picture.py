"""Makes docs.png, the picture in the README."""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent.parent))

from selenium import webdriver  # noqa: E402
from serving import ROOT, Served  # noqa: E402
from test_page import FLAGS, Page, address  # noqa: E402

with TemporaryDirectory() as name:
    service = Served(Path(name), f"sqlite:///{name}/profiles.db")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        *FLAGS.split(),
        f"user-data-dir={name}/browser",
        "window-size=900,1020",
    ):
        options.add_argument(f"--{flag}")
    driver = webdriver.ChromeService(shutil.which("chromedriver"))
    with service.start(), webdriver.Chrome(options, driver) as browser:
        service.wait_until_up()
        Page(browser, address(service))
        browser.save_screenshot(ROOT / "docs.png")
