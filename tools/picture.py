"""Makes docs/page.png, the picture in the README."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT), f"{ROOT}/tests"]

from service import Served  # noqa: E402

CHROMIUM = """
chromium --headless --no-sandbox --hide-scrollbars --virtual-time-budget=10000
--window-size=980,1092 --force-device-scale-factor=0.735
"""

with TemporaryDirectory() as name:
    service = Served(Path(name), f"sqlite:///{name}/profiles.db")
    service.start()
    try:
        service.wait_until_up()
        picture = f"--screenshot={ROOT}/docs/page.png"
        page = f"http://127.0.0.1:{service.port}/docs/"
        command = [*CHROMIUM.split(), picture, page]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    finally:
        service.kill()
