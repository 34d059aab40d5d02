"""docs/shop.py, run by its command beside the service, as its users see it."""

import re
from html import unescape

import pytest
from service import ROOT, Served, execute, on_sqlite, run, sign_in

SHOPPERS = "SELECT accountid FROM account WHERE NOT administrator"
pytestmark = [pytest.mark.long, on_sqlite]


class Browser:
    """A browser that shows a page of the shop."""

    def __init__(self, shop):
        requests = pytest.importorskip("requests")
        self.address = f"http://127.0.0.1:{shop.port}"
        self.http = requests.Session()
        self.open("/")

    def open(self, path, **form):
        method = "POST" if form else "GET"
        response = self.http.request(method, self.address + path, data=form)
        self.status = response.status_code
        self.html = response.text

    def sign_up(self, name):
        self.open("/sign-in", name=name, password=f"secret of {name}", is_new="yes")

    def sign_in(self, name):
        self.open("/sign-in", name=name, password=f"secret of {name}")

    def save(self, name, email):
        fields = {"full-name": name, "contact-email": email}
        self.open("/", **self.inputs | fields)

    @property
    def inputs(self):
        found = re.findall('<input .*?name="(.*?)".*? value="(.*?)"', self.html)
        return {name: unescape(value) for name, value in found}

    @property
    def devices(self):
        """The sessionid of each button of the page, without that of its head."""
        return re.findall('name="sessionid" value="(.*?)"', self.html)[1:]


@pytest.fixture
def service(serve, empty_database_url):
    return serve(empty_database_url)


@pytest.fixture
def shop(service, tmp_path):
    """The shop, run by its command in an empty folder. Ada is its administrator."""
    shop = Served(
        tmp_path,
        service.environment["DATABASE_URL"],
        PROFILES_URL=f"http://127.0.0.1:{service.port}",
        PROFILES_TOKEN=sign_in(service, administrator=True).token,
        SHOP_ADMINISTRATOR="ada",
        PYTHONDONTWRITEBYTECODE="1",
    )
    program, port = str(ROOT / "docs/shop.py"), str(shop.port)
    shop.start("flask", "--app", program, "run", "--port", port, cwd=tmp_path)
    try:
        shop.wait_until_up()
        yield shop
    finally:
        shop.kill()


def test_a_user_from_sign_up_to_leaving(shop):
    browser = Browser(shop)
    assert browser.status == 401
    assert "Please sign in" in browser.html
    browser.sign_up("eve")
    assert browser.inputs == {"updatedAt": "", "full-name": "", "contact-email": ""}
    browser.save("", "x")
    assert "invalid full name" in browser.html
    assert "invalid contact email" in browser.html
    assert "(now" not in browser.html
    assert browser.inputs["contact-email"] == "x"
    browser.save(' <b>"Eve"', "eve@example.com")
    assert "Saved." in browser.html
    assert "<b>" not in browser.html
    browser.open("/")
    assert browser.inputs["full-name"] == '<b>"Eve"'
    browser.open("/users")
    assert browser.status == 403
    browser.open("/leave", confirmed="yes")
    assert browser.status == 401
    browser.sign_in("eve")
    assert browser.status == 401


def test_a_stale_tab(shop):
    tab = Browser(shop)
    tab.sign_up("eve")
    tab.save("Eve", "eve@example.com")
    other = Browser(shop)
    other.sign_in("eve")
    other.save("Eva", "eve@example.com")
    tab.save("", "eve@example.com")
    tab.save("Evi", "eve@example.com")
    assert "profile changed" in tab.html
    assert "(now Eva)" in tab.html
    assert tab.inputs["full-name"] == "Evi"
    tab.save("Evi", "eve@example.com")
    other.open("/")
    assert other.inputs["full-name"] == "Evi"


def test_a_user_whom_the_operator_has_deleted(shop, service):
    """Signing in does not create the account again, but signing up does."""
    browser = Browser(shop)
    browser.sign_up("eve")
    ((accountid,),) = execute(service.environment["DATABASE_URL"], SHOPPERS)
    run(service, "delete-account", accountid)
    browser.sign_in("eve")
    assert browser.status == 401
    browser.sign_up("eve")
    assert browser.status == 200


def test_devices(shop):
    laptop, phone, tablet = (Browser(shop) for _ in range(3))
    laptop.sign_up("eve")
    phone.sign_in("eve")
    tablet.sign_in("eve")
    phone.open("/devices")
    assert len(phone.devices) == 3
    assert phone.html.count("this device") == 1
    phone.open("/devices", sessionid=phone.devices[-1])
    assert len(phone.devices) == 2
    laptop.open("/")
    assert laptop.status == 401
    tablet.open("/devices", all="yes")
    for browser in (phone, tablet):
        browser.open("/devices")
        assert browser.status == 401


def test_an_expired_session_is_renewed_once(shop, service):
    browser = Browser(shop)
    browser.sign_up("eve")
    url = service.environment["DATABASE_URL"]
    expire = "UPDATE session SET expiresAt = createdAt WHERE accountid IN "
    execute(url, f"{expire} ({SHOPPERS})")
    for _ in range(2):
        browser.open("/devices")
        assert len(browser.devices) == 1


def test_the_administrator(shop, service):
    """The page lists the shop's users alone, although the service has others."""
    for name in ("ada", "eve"):
        browser = Browser(shop)
        browser.sign_up(name)
        browser.save(name.title(), f"{name}@example.com")
    Browser(shop).sign_up("new")
    browser.sign_in("ada")
    browser.open("/users")
    users = re.findall("<p>(.+: .*)</p>", browser.html)
    assert sorted(users) == [
        "ada: Ada, ada@example.com",
        "eve: Eve, eve@example.com",
        "new: , ",
    ]
    browser.open("/users?email=EVE@example.com")
    assert re.findall("<p>(.+: .*)</p>", browser.html) == ["eve: Eve, eve@example.com"]


def test_who_is_not_let_in(shop):
    browser = Browser(shop)
    browser.sign_up("eve")
    forms = [
        {"name": "eve", "is_new": "yes"},
        {"name": "ada"},
        {"name": "", "is_new": "yes"},
    ]
    for form in forms:
        stranger = Browser(shop)
        stranger.open("/sign-in", password="guessed", **form)
        assert stranger.status == 401
        stranger.open("/")
        assert stranger.status == 401


def test_a_service_that_is_down(shop, service):
    browser = Browser(shop)
    browser.sign_up("eve")
    service.stop()
    browser.open("/")
    assert browser.status == 503
    assert "Sorry" in browser.html
    assert "no-answer" in shop.log()
    service.start()
    service.wait_until_up()
    browser.open("/")
    assert browser.status == 200
