"""The page of the description, in a real browser: what it offers is accepted."""

import json
import shutil
from contextlib import contextmanager

import pytest
from serving import ALL_FIELDS, Person

pytestmark = pytest.mark.long
ONLY_CI = "pip install -r tests/requirements.txt to run it"
webdriver = pytest.importorskip("selenium.webdriver", reason=ONLY_CI)
wait = pytest.importorskip("selenium.webdriver.support.wait", reason=ONLY_CI)
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip(
        "apt-get install chromium chromium-driver to run it", allow_module_level=True
    )

FLAGS = """
headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking
disable-component-update disable-sync disable-dev-shm-usage
"""


@contextmanager
def open_browser(folder, size, capabilities=()):
    """A browser whose window is of a size such as 1200,2000."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for name, value in capabilities:
        options.set_capability(name, value)
    for flag in (
        *FLAGS.split(),
        f"user-data-dir={folder}/browser",
        f"window-size={size}",
    ):
        options.add_argument(f"--{flag}")
    driver = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options, driver) as browser:
        yield browser


def address(service):
    return f"http://127.0.0.1:{service.port}"


class Page:
    """The page in a browser, and what one does there."""

    def __init__(self, browser, url):
        self.browser = browser
        browser.get(f"{url}/")
        self.find(".opblock")

    def find(self, selector, within=None):
        """The element, once it is there."""
        waiting = wait.WebDriverWait(within or self.browser, 40, 0.05)
        return waiting.until(lambda scope: scope.find_element("css selector", selector))

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
        """The answer to what the page offers, with these parameters: status, value."""
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
        urls = set()
        for event in self.browser.get_log("performance"):
            parameters = json.loads(event["message"])["message"]["params"]
            urls.add(parameters.get("request", {}).get("url", ""))
        return {url for url in urls if url.startswith("http")}


@pytest.fixture
def browser(tmp_path):
    logging = ("goog:loggingPrefs", {"performance": "ALL"})
    with open_browser(tmp_path, "1200,2000", [logging]) as browser:
        yield browser


@pytest.mark.parametrize(
    ("prefix", "fields"),
    [
        ("", ""),
        ("/profiles-api", ALL_FIELDS),
    ],
)
def test_what_the_page_offers_is_accepted(browser, serve, tmp_path, prefix, fields):
    settings = {"SCRIPT_NAME": prefix, "USER_PROFILE_FIELDS": fields}
    service = serve(f"sqlite:///{tmp_path}/p.db", **settings)
    url = address(service) + prefix
    person = Person(service, administrator=True)
    page = Page(browser, url)
    status, _ = page.execute("administrator", "listProfiles")
    assert status == 401
    # Nobody can type another address in.
    assert not browser.find_elements("css selector", ".topbar")
    block = page.open("user", "createProfile")
    body = json.loads(page.find(".body-param textarea", block).text)
    assert body["full-name"] == "Ada King"
    page.authorize(person.token)
    status, made = page.execute("user", "createProfile", accountid=person.accountid)
    assert status == 201
    assert made["fullName"] == "Ada King"
    profileid = made["profileid"]
    status, updated = page.execute("user", "updateProfile", profileid=profileid)
    assert status == 200
    assert updated["contactEmail"] == "ada@example.com"
    assert page.execute("administrator", "listProfiles") == (200, [updated])
    status, _ = page.execute("administrator", "listSessions")
    assert status == 200
    requests = page.requests()
    assert f"{url}/openapi.json" in requests
    for request in requests:
        assert request.startswith(url)
