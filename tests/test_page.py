"""The page of the description, in a real browser: what it offers is accepted as it stands."""

import json
import shutil
from contextlib import contextmanager, nullcontext
from threading import Thread

import pytest
from serving import ALL_FIELDS, Person
from werkzeug.exceptions import NotFound
from werkzeug.middleware.http_proxy import ProxyMiddleware
from werkzeug.serving import make_server

pytestmark = pytest.mark.long
ONLY_CI = "pip install -r tests/requirements.txt to run it"
webdriver = pytest.importorskip("selenium.webdriver", reason=ONLY_CI)
Wait = pytest.importorskip(
    "selenium.webdriver.support.wait", reason=ONLY_CI
).WebDriverWait
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip(
        "apt-get install chromium chromium-driver to run it", allow_module_level=True
    )

PREFIX = "/profiles-api"
FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync disable-dev-shm-usage window-size=1200,2000"
)


def address(service):
    return f"http://127.0.0.1:{service.port}"


@contextmanager
def router(service):
    """The URL of a router that serves the service under a prefix, which it strips."""
    targets = {f"{PREFIX}/": {"target": address(service), "remove_prefix": True}}
    with make_server(
        "127.0.0.1", 0, ProxyMiddleware(NotFound(), targets), True
    ) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.port}{PREFIX}"
        server.shutdown()
        thread.join()


class Page:
    """The page in a browser, and what one does there."""

    def __init__(self, browser, url):
        self.browser, self.url = browser, url
        browser.get(f"{url}/")
        self.find(".opblock")

    def find(self, selector, within=None):
        """The element, once it is there."""
        scope = within or self.browser
        return Wait(scope, 20, 0.05).until(
            lambda _: scope.find_element("css selector", selector)
        )

    def authorize(self, token):
        self.find(".btn.authorize").click()
        self.find("#auth-bearer-value").send_keys(token)
        self.find(".modal-btn.authorize").click()
        self.find(".btn-done").click()

    def open(self, tag, operation):
        """The open form of an operation."""
        block = self.find(f"#operations-{tag}-{operation}")
        if "is-open" not in block.get_attribute("class"):
            self.find(".opblock-summary-control", block).click()
            self.find(".try-out__btn", block).click()
        return block

    def execute(self, tag, operation, **fill):
        """The status and the value of the answer to what the page offers, with these filled in."""
        block = self.open(tag, operation)
        for name, value in fill.items():
            field = self.find(f'tr[data-param-name="{name}"] input', block)
            field.clear()
            field.send_keys(value)
        self.find(".btn.execute", block).click()
        answer = ".live-responses-table .response"
        status = self.find(f"{answer} .response-col_status", block).text
        text = self.find(f"{answer} .highlight-code code", block).text
        self.find(".btn-clear", block).click()
        return int(status.split()[0]), json.loads(text)

    def requests(self):
        """The addresses on a network that the browser asked for."""
        events = [
            json.loads(each["message"]) for each in self.browser.get_log("performance")
        ]
        sent = [
            each["message"]["params"].get("request", {}).get("url", "")
            for each in events
        ]
        return {url for url in sent if url.startswith("http")}


@pytest.fixture
def browser(tmp_path):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    for flag in (*FLAGS.split(), f"user-data-dir={tmp_path}/browser"):
        options.add_argument(f"--{flag}")
    driver = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options, driver) as browser:
        yield browser


@pytest.mark.parametrize("way", ["alone", "mounted", "behind a router"])
def test_what_the_page_offers_is_accepted(browser, serve, tmp_path, way):
    mounted = {"SCRIPT_NAME": PREFIX, "USER_PROFILE_FIELDS": ALL_FIELDS}
    settings = mounted if way == "mounted" else {}
    service = serve(f"sqlite:///{tmp_path}/p.db", **settings)
    person = Person(service, administrator=True)
    own = nullcontext(address(service) + settings.get("SCRIPT_NAME", ""))
    with router(service) if way == "behind a router" else own as url:
        page = Page(browser, url)
        assert page.execute("administrator", "listProfiles")[0] == 401
        assert not browser.find_elements("css selector", ".topbar"), (
            "to type another address in"
        )
        block = page.open("user", "createProfile")
        assert (
            json.loads(page.find(".body-param textarea", block).text)["default"]
            is False
        )
        page.authorize(person.token)
        status, made = page.execute("user", "createProfile", accountid=person.accountid)
        assert (status, made["fullName"]) == (201, "Ada King")
        status, updated = page.execute(
            "user", "updateProfile", profileid=made["profileid"]
        )
        assert (status, updated["contactEmail"]) == (200, "ada@example.com")
        assert page.execute("administrator", "listProfiles") == (200, [updated])
        assert page.execute("administrator", "listSessions")[0] == 200
        requests = page.requests()
    assert f"{url}/openapi.json" in requests and all(
        each.startswith(url) for each in requests
    )
