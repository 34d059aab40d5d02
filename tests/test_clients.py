"""Generated requests, clients that generators make, and the page in a browser."""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from datetime import date
from importlib import import_module
from itertools import chain

import pytest
from service import ROOT, close_connection, named, run, sign_in

from validators import PROFILE_FIELDS

pytest.importorskip("schemathesis", reason="pip install -r tests/requirements.txt")

import schemathesis  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from openapi_spec_validator import validate  # noqa: E402
from schemathesis.engine import Status  # noqa: E402
from schemathesis.engine.events import (  # noqa: E402
    FatalError,
    NonFatalError,
    ScenarioFinished,
)
from selenium import webdriver  # noqa: E402

pytestmark = pytest.mark.long
ALL_FIELDS = ",".join(PROFILE_FIELDS)
BODY = {name: row.example for name, row in PROFILE_FIELDS.items()}

# What is empty counts as not given, and `all` overrules the rest. The requests of the
# other two get a session here.
NOT_PROMISED = ["negative_data_rejection", "ignored_auth", "missing_required_header"]
END_SESSION = "/api/user/end-session"
DELETE_PROFILE = "/api/user/delete-profile"
CURSORS = {"accounts": "accountid", "sessions": "sessionid"}
# A domain must have a dot, which no schema can say.
ADDRESSES = st.emails(domains=st.just("example.com"))
schemathesis.openapi.format("email", ADDRESSES)


@pytest.mark.parametrize(
    "database_url, fields",
    [("sqlite", ALL_FIELDS), ("mysql", "contact-email,full-name")],
    indirect=["database_url"],
)
def test_the_description_is_valid_and_any_request_is_answered_as_it_says(
    make_app, fields
):
    app = make_app(USER_PROFILE_FIELDS=fields)
    administrator = sign_in(app, appid="shop", administrator=True)
    profile = administrator.create(json=BODY).json
    schema = schemathesis.openapi.from_wsgi("/openapi.json", app)
    validate(schema.raw_schema)
    # Schemathesis would send paths without the slash, since the server is ".".
    schema.config.update(base_url="http://localhost/")
    schema.config.generation.update(deterministic=True, max_examples=35)
    schema.config.checks.update(excluded_check_names=NOT_PROMISED)
    accepted = schema.config.checks.positive_data_acceptance
    accepted.expected_statuses = [*accepted.expected_statuses, "412"]
    answers = Counter()

    @schema.hooks.hook("map_case")
    def aim(context, case):
        """Send, most times, a session of the application and identifiers of it."""
        caller = administrator
        existing = profile | administrator.session
        existing["after"] = existing[CURSORS.get(case.path.split("/")[-1], "profileid")]
        if case.path == END_SESSION:
            caller = sign_in(app, appid="shop")
            existing = caller.session
        elif case.path == DELETE_PROFILE:
            existing = administrator.create(json=BODY).json
        elif "/administrator/" in case.path and case.method != "GET":
            existing = run(app, "create-account", "--appid", "shop")
        if answers.total() % 5:
            case.headers.update(caller.headers)
        if "after" in case.query or answers.total() % 4:
            for name in existing.keys() & case.query.keys():
                case.query[name] = existing[name]
        return case

    @schema.hooks.hook("after_call")
    def count(context, case, response):
        answers[case.path, response.status_code // 100] += 1
        close_connection()

    for event in schemathesis.engine.from_schema(schema).execute():
        assert not isinstance(event, NonFatalError | FatalError), event
        if isinstance(event, ScenarioFinished):
            checks = chain.from_iterable(event.recorder.checks.values())
            failures = [each.failure_info for each in checks if each.failure_info]
            assert [f"{each.failure}\n{each.code_sample}" for each in failures] == []
            assert event.status in (Status.SUCCESS, Status.SKIP), event
    for path in {*schema.raw_schema["paths"]} - {"/health", "/live"}:
        assert answers[path, 2] >= 10, answers
        assert answers[path, 4] >= 5, answers


@pytest.fixture
def world(serve, tmp_path, monkeypatch):
    """An administrator of a service under a prefix; the working directory is empty."""
    database = f"sqlite:///{tmp_path}/profiles.db"
    service = serve(database, SCRIPT_NAME="/prefix", USER_PROFILE_FIELDS=ALL_FIELDS)
    world = sign_in(service.app, administrator=True)
    world.address = f"http://127.0.0.1:{service.port}/prefix"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return world


def test_a_generated_client_in_python(world):
    page = f"{world.address}/openapi.json"
    command = "openapi-python-client generate --meta none --output-path generated --url"
    subprocess.run([*command.split(), page], check=True)
    client = import_module("generated")
    models = import_module("generated.models")

    def call(operation, **arguments):
        """What an operation answers, as an object of the generated classes."""
        module = import_module(f"generated.api.{operation}")
        return module.sync(client=session, **arguments)

    body = models.CreateProfile.from_dict(BODY | {"default": True})
    once = {"body": body, "accountid": world.accountid, "idempotency_key": "once"}
    with client.AuthenticatedClient(world.address, world.token) as session:
        made = call("user.create_profile", **once)
        assert call("user.create_profile", **once) == made
        assert made.fields is None
        body = models.UpdateProfile.from_dict(BODY | {"dob": "1815-12-10"})
        updated = call("user.update_profile", profileid=made.profileid, body=body)
        assert updated.dob == date(1815, 12, 10)
        assert updated.updated_at.tzinfo
        refused = call("administrator.end_sessions", accountid="acct_x")
        assert refused == models.Error("error", "invalid-accountid")


PACKAGES = (
    "openapi-typescript@7.13.0 openapi-fetch@0.17.0 orval@7.13.0 typescript@5.9.3"
)
STRICT = (
    "--strict --noUncheckedIndexedAccess --exactOptionalPropertyTypes "
    "--module nodenext --target es2022"
)

ORVAL = """module.exports = {{ profiles: {{
  input: "{}/openapi.json",
  output: {{ target: "orval.ts", client: "fetch", headers: true }},
}} }};
"""

# What API's sample leaves out.
ARGUMENTS = """
declare const process: { argv: [string, string, string, string, string] };
const [, , baseUrl, token, accountid] = process.argv;
"""


@pytest.mark.skipif(not shutil.which("npx"), reason="install node and npm")
def test_generated_clients_in_typescript(serve, tmp_path):
    """They compile with strict types. The one that API's sample shows works, too."""
    service = serve(f"sqlite:///{tmp_path}/profiles.db")
    administrator = sign_in(service.app, administrator=True)
    administrator.create(named("Ada", default="true"))
    address = f"http://127.0.0.1:{service.port}"
    shutil.copy(ROOT / "tests/client.mts", tmp_path)
    (sample,) = re.findall("(?s)```ts\n(.*?)```", (ROOT / "docs/API.md").read_text())
    (tmp_path / "sample.mts").write_text(ARGUMENTS + sample)
    (tmp_path / "orval.config.js").write_text(ORVAL.format(address))
    printed = {}
    for command in (
        f"npm install --silent --no-audit --no-fund --prefix . {PACKAGES}",
        f"npx openapi-typescript {address}/openapi.json --output profiles.d.ts",
        "npx orval --config orval.config.js",
        f"npx tsc {STRICT} client.mts sample.mts orval.ts",
        f"node sample.mjs {address} {administrator.token} {administrator.accountid}",
        f"node client.mjs {address} {administrator.token}",
    ):
        words = command.split()
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        printed[words[1]] = done.stdout
    assert printed["sample.mjs"] == "Ada\n"
    assert "createAccount = async (headers?:" in (tmp_path / "orval.ts").read_text()
    answers = ["invalid-contact-email", "Ada King", ["Ada King"], None]
    assert json.loads(printed["client.mjs"]) == answers


def find(scope, selector):
    return scope.find_element("css selector", selector)


def unfold(browser, operation):
    block = find(browser, f".opblock[id$=-{operation}]")
    find(block, ".opblock-summary-control").click()
    return block


def try_out(browser, operation, status, target=""):
    """Send what the page offers, for an account or a profile; what is answered."""
    block = unfold(browser, operation)
    find(block, ".try-out__btn").click()
    find(block, "tr[data-param-name$=id] input").send_keys(target)
    find(block, ".btn.execute").click()
    answer = find(block, ".live-responses-table tbody .response")
    assert find(answer, ".response-col_status").text.startswith(status)
    return json.loads(find(answer, ".highlight-code code").text)


def authorize(browser, slot, token):
    """Paste a token into one of the two slots."""
    find(browser, ".btn.authorize").click()
    form = browser.find_element("xpath", SLOT.format(slot))
    find(form, "#auth-bearer-value").send_keys(token)
    find(form, ".modal-btn.authorize").click()
    find(browser, ".btn-done").click()


SLOT = "//*[@class='auth-container'][.//h4/code='{}']"
CHROMIUM = [
    "headless",
    "no-sandbox",
    "disable-dev-shm-usage",  # which is small in a container
    "hide-scrollbars",
    "window-size=980,1690",
    "force-device-scale-factor=0.735",
]
# The addresses outside the folder above the page that the browser asked for.
ELSEWHERE = """
return performance.getEntriesByType("resource").map((each) => each.name).filter(
    (name) => !name.startsWith("data:") && !name.startsWith(new URL("..", location)))
"""


@pytest.fixture
def browser():
    if not shutil.which("chromedriver"):
        pytest.skip("install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    for option in CHROMIUM:
        options.add_argument(option)
    with webdriver.Chrome(options) as browser:
        browser.implicitly_wait(40)
        yield browser


def test_what_the_page_offers_is_accepted(world, browser):
    """TEST_PICTURE names a file in which a picture of the page is stored."""
    browser.get(f"{world.address}/")
    assert find(browser, ".opblock")
    assert browser.title == "Profiles API"
    assert find(browser, ".servers option").text == ". - This service"
    if picture := os.environ.get("TEST_PICTURE"):
        browser.save_screenshot(f"{ROOT / picture}")
    try_out(browser, "endSessions", "401", world.accountid)
    assert "topbar" not in browser.page_source  # nobody types another address in
    authorize(browser, "administrator", world.token)
    accountid = try_out(browser, "createAccount", "201")["accountid"]
    token = try_out(browser, "createSession", "201", accountid)["token"]
    authorize(browser, "user", token)
    made = try_out(browser, "createProfile", "201", accountid)
    updated = try_out(browser, "updateProfile", "200", made["profileid"])
    assert updated["fullName"] == "Ada King"
    assert try_out(browser, "listProfiles", "200") == [updated]
    assert try_out(browser, "endSession", "200")["ended"]
    assert browser.execute_script(ELSEWHERE) == []
    messages = [entry["message"] for entry in browser.get_log("browser")]
    assert not [each for each in messages if "Content Security Policy" in each]
