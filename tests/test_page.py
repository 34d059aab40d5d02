"""The page of the description, in a real browser: what it offers is accepted as it stands."""

import json
import shutil
from contextlib import contextmanager, nullcontext
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from serving import ALL_FIELDS, Person

pytestmark = pytest.mark.long
ONLY_CI = "pip install -r tests/requirements.txt to run it"
webdriver = pytest.importorskip("selenium.webdriver", reason=ONLY_CI)
By = pytest.importorskip("selenium.webdriver.common.by", reason=ONLY_CI).By
Select = pytest.importorskip("selenium.webdriver.support.select", reason=ONLY_CI).Select
Wait = pytest.importorskip("selenium.webdriver.support.wait", reason=ONLY_CI).WebDriverWait
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("apt-get install chromium chromium-driver to run it", allow_module_level=True)

PREFIX = "/profiles-api"
FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync disable-dev-shm-usage window-size=1200,2000"
)
TYPES = ["application/json", "application/x-www-form-urlencoded", "multipart/form-data"]


def address(service):
    return f"http://127.0.0.1:{service.port}"


@contextmanager
def router(service):
    """The URL of a router that serves the service under a prefix, which it strips."""

    class Router(BaseHTTPRequestHandler):
        def forward(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            connection = HTTPConnection("127.0.0.1", service.port)
            path = self.path.removeprefix(PREFIX)
            connection.request(self.command, path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            self.send_response(answer.status if path != self.path else 404)
            for name in ("Content-Type", "Location"):
                if answer.headers[name]:
                    self.send_header(name, answer.headers[name])
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

        do_GET = do_POST = do_PATCH = forward

    with ThreadingHTTPServer(("127.0.0.1", 0), Router) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
        finally:
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
        return Wait(scope, 20, 0.05).until(lambda _: scope.find_element(By.CSS_SELECTOR, selector))

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

    def choose(self, block, media_type):
        Select(self.find(".body-param-content-type select", block)).select_by_value(media_type)

    def execute(self, tag, operation, media_type=None, **fill):
        """The status and the value of the answer to what the page offers, with these filled in."""
        block = self.open(tag, operation)
        for name, value in fill.items():
            field = self.find(f'tr[data-param-name="{name}"] input', block)
            field.clear()
            field.send_keys(value)
        if media_type:
            self.choose(block, media_type)
        self.find(".btn.execute", block).click()
        answer = ".live-responses-table .response"
        status = self.find(f"{answer} .response-col_status", block).text
        text = self.find(f"{answer} .highlight-code code", block).text
        self.find(".btn-clear", block).click()
        return int(status.split()[0]), json.loads(text)

    def requests(self):
        """The addresses on a network that the browser asked for."""
        events = [json.loads(each["message"]) for each in self.browser.get_log("performance")]
        messages = [event["message"] for event in events]
        sent = [
            each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"
        ]
        return {
            each["request"]["url"] for each in sent if each["request"]["url"].startswith("http")
        }


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


@pytest.mark.parametrize("way", ["without a prefix", "SCRIPT_NAME", "router"])
def test_what_the_page_offers_is_accepted(browser, serve, tmp_path, way):
    settings = {"SCRIPT_NAME": PREFIX, "USER_PROFILE_FIELDS": ALL_FIELDS}
    service = serve(f"sqlite:///{tmp_path}/p.db", **settings if way == "SCRIPT_NAME" else {})
    person = Person(service, administrator=True)
    own = nullcontext(address(service) + (PREFIX if way == "SCRIPT_NAME" else ""))
    with router(service) if way == "router" else own as url:
        page = Page(browser, url)
        assert page.execute("administrator", "listProfiles")[0] == 401
        page.authorize(person.token)
        owner = {"accountid": person.accountid}
        for media_type in TYPES:
            status, made = page.execute("user", "createProfile", media_type, **owner)
            assert (status, made["fullName"]) == (201, "Ada King")
            target = {"profileid": made["profileid"]}
            status, updated = page.execute("user", "updateProfile", media_type, **target)
            assert (status, updated["contactEmail"]) == (200, "ada@example.com")
        status, profiles = page.execute("administrator", "listProfiles")
        assert (status, profiles[0], len(profiles)) == (200, updated, len(TYPES))
        assert page.execute("administrator", "listSessions")[0] == 200
        assert page.execute("service", "getHealth") == (200, {"object": "health", "status": "ok"})
        requests = page.requests()
    assert f"{url}/openapi.json" in requests
    assert [each for each in requests if not each.startswith(f"{url}/")] == []


def test_default_is_a_switch_that_is_off(browser, serve, tmp_path):
    page = Page(browser, address(serve(f"sqlite:///{tmp_path}/p.db")))
    block = page.open("user", "createProfile")
    assert json.loads(page.find(".body-param textarea", block).text)["default"] is False
    for media_type in TYPES[1:]:
        page.choose(block, media_type)
        switch = Select(page.find('tr[data-property-name="default"] select', block))
        assert {each.text for each in switch.options} == {"--", "true", "false"}
        assert switch.first_selected_option.text == "false"
