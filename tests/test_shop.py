"""docs/shop.py, run by its command beside the service, as its users see it."""

import re
import time
from html import unescape

import pytest
from service import ROOT, Program, SignedIn, execute, named, on_sqlite, run, sign_in

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
    def users(self):
        return re.findall("<p>(.+: .*)</p>", self.html)

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
    shop = Program(
        tmp_path,
        DATABASE_URL=service.app.database_url,
        PROFILES_URL=f"http://127.0.0.1:{service.port}",
        PROFILES_TOKEN=sign_in(service.app, administrator=True).token,
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


def sign_in_elsewhere(service):
    """Return a client of another program for the only user of the shop."""
    user = SignedIn(service.app)
    ((user.accountid,),) = execute(service.app.database_url, SHOPPERS)
    token = run(service.app, "create-session", user.accountid)["token"]
    user.headers = {"Authorization": f"Bearer {token}"}
    return user


def test_a_user_from_sign_up_to_leaving(shop):
    browser = Browser(shop)
    assert browser.status == 401
    assert "Please sign in" in browser.html
    browser.sign_up("eve")
    assert browser.inputs == {"updatedAt": "", "full-name": "", "contact-email": ""}
    browser.save("", "x")
    assert "Please enter your name." in browser.html
    assert "Please enter a valid e-mail address." in browser.html
    assert "(now" not in browser.html
    assert browser.inputs["contact-email"] == "x"
    browser.save("x" * 51, "eve@example.com")
    assert "This name is too long or too short." in browser.html
    assert "invalid-" not in browser.html
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


def test_a_user_whose_profile_another_program_stores(shop, service):
    """The shop saves a profile of its own, and shows it after a reload."""
    browser = Browser(shop)
    browser.sign_up("eve")
    user = sign_in_elsewhere(service)
    other = user.create(named("Other")).json
    for name in ("Eve", "Eva"):
        browser.save(name, "eve@example.com")
        assert "Saved." in browser.html
        browser.open("/")
        assert browser.inputs["full-name"] == name
    path = f"/api/user/profiles?accountid={user.accountid}"
    shops, others = user.get(path).json
    assert shops["fullName"] == "Eva"
    assert others == other


def test_a_stale_tab(shop):
    tab = Browser(shop)
    tab.sign_up("eve")
    other = Browser(shop)
    other.sign_in("eve")
    tab.save("Eve", "eve@example.com")
    other.save("Eva", "eve@example.com")
    assert "(now Eve)" in other.html
    other.save("Eva", "eve@example.com")
    tab.save("", "eve@example.com")
    tab.save("Evi", "eve@example.com")
    assert "The profile has changed meanwhile." in tab.html
    assert "(now Eva)" in tab.html
    assert tab.inputs["full-name"] == "Evi"
    tab.save("Evi", "eve@example.com")
    other.open("/")
    assert other.inputs["full-name"] == "Evi"


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


def test_a_session_that_has_expired(shop, service):
    """The user must sign in again, and the list of devices has only the new session."""
    browser = Browser(shop)
    browser.sign_up("eve")
    url = service.app.database_url
    expire = "UPDATE session SET expiresAt = createdAt WHERE accountid IN "
    execute(url, f"{expire} ({SHOPPERS})")
    for _ in range(2):
        browser.open("/devices")
        assert browser.status == 401
        assert "Please sign in" in browser.html
    browser.sign_in("eve")
    browser.open("/devices")
    assert len(browser.devices) == 1


def test_a_service_without_a_field_of_the_shop(shop, service):
    """The operator finds its name in the shop's log; the user can do nothing."""
    browser = Browser(shop)
    browser.sign_up("eve")
    service.stop()
    service.environment["USER_PROFILE_FIELDS"] = "full-name"
    service.start()
    service.wait_until_up()
    browser.save("Eve", "eve@example.com")
    assert browser.status == 503
    assert "Sorry" in browser.html
    assert "contact-email: not-stored" in shop.log()


def test_the_shops_own_session_lasts_as_long(shop, service):
    browser = Browser(shop)
    browser.sign_up("eve")
    browser.sign_in("eve")
    (cookie,) = browser.http.cookies
    url = service.environment["DATABASE_URL"]
    select = f"SELECT duration FROM session WHERE accountid IN ({SHOPPERS})"
    assert execute(url, select) == [(2_592_000,)] * 2
    assert abs(cookie.expires - time.time() - 2_592_000) < 60


def test_the_administrator(shop, service):
    """The page lists the shop's users alone, although the service has others."""
    for name in ("ada", "eve"):
        browser = Browser(shop)
        browser.sign_up(name)
        browser.save(name.title(), f"{name}@example.com")
    Browser(shop).sign_up("new")
    browser.sign_in("ada")
    browser.open("/users")
    assert sorted(browser.users) == [
        "ada: Ada, ada@example.com",
        "eve: Eve, eve@example.com",
        "new: , ",
    ]
    browser.open("/users?email=EVE@example.com")
    assert browser.users == ["eve: Eve, eve@example.com"]


def test_the_pages_of_a_search(shop, service):
    browser = Browser(shop)
    browser.sign_up("ada")
    address = "ada+shop@example.com"
    user = sign_in_elsewhere(service)
    for number in range(21):
        fields = {"full-name": f"Ada {number:02}", "contact-email": address}
        assert user.create(fields).status_code == 201
    browser.open("/users?email=ada%2Bshop@example.com")
    names = [f"ada: Ada {number:02}, {address}" for number in reversed(range(21))]
    assert browser.users == names[:20]
    browser.open(unescape(re.search('<a href="(.*?)">Next page', browser.html)[1]))
    assert browser.users == names[20:]
    assert "Next page" not in browser.html


def test_who_is_not_let_in(shop):
    browser = Browser(shop)
    browser.sign_up("eve")
    sign_up = {"is_new": "yes"}
    wrong, taken = "Wrong name or password.", "This name is taken."
    missing = "Please enter a name and a password."
    for name, password, form, status, message in (
        ("eve", "guessed", sign_up, 401, taken),
        ("eve", "guessed", {}, 401, wrong),
        ("ada", "guessed", {}, 401, wrong),
        (" ", "guessed", sign_up, 400, missing),
        ("eve", "", {}, 400, missing),
    ):
        stranger = Browser(shop)
        stranger.open("/sign-in", name=name, password=password, **form)
        assert stranger.status == status
        assert f"<p>{message}</p>" in stranger.html
        assert stranger.inputs == {"name": name}
        assert "guessed" not in stranger.html
        stranger.open("/")
        assert stranger.status == 401


def test_a_service_that_is_down(shop, service):
    """What a user has typed is shown again, and can be saved once it is up.

    A page that cannot be read has no form: an empty one would replace what is stored.
    """
    stranger, browser = Browser(shop), Browser(shop)
    browser.sign_up("eve")
    browser.save("Eve", "eve@example.com")
    typed = browser.inputs | {"full-name": '"Eva"', "contact-email": "eva@example.com"}
    service.stop()
    browser.open("/")
    assert (browser.status, browser.inputs) == (503, {})
    stranger.sign_up("lea")
    browser.open("/", **typed)
    for each in (stranger, browser):
        assert each.status == 503
        assert "Sorry" in each.html
    assert stranger.inputs == {"name": "lea"}
    assert browser.inputs == typed
    address = f"http://127.0.0.1:{service.port}"
    assert f"no-answer, {address}, Connection refused" in shop.log()
    service.start()
    service.wait_until_up()
    stranger.sign_up("lea")
    assert stranger.status == 200
    browser.open("/", **browser.inputs)
    assert "Saved." in browser.html
    browser.open("/")
    assert browser.inputs["full-name"] == '"Eva"'
