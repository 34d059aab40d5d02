"""Makes docs/page.png, the picture in the README."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT), f"{ROOT}/tests"]

from serving import Served  # noqa: E402
from test_page import Page, address, open_browser  # noqa: E402

VIEW = {"width": 900, "height": 990, "deviceScaleFactor": 0.8, "mobile": True}

with TemporaryDirectory() as name:
    folder = Path(name)
    service = Served(folder, f"sqlite:///{folder}/profiles.db")
    with service.start(), open_browser(folder, "900,1020") as browser:
        service.wait_until_up()
        Page(browser, address(service))
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", VIEW)
        browser.save_screenshot(ROOT / "docs" / "page.png")
