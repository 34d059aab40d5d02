"""The description and its page."""

import json
import re
from functools import partial

import pytest
from serving import ALL_FIELDS, Person, assert_error

from database import connection
from models import Account

FORMS = ["application/x-www-form-urlencoded", "multipart/form-data"]
TIGHT = {
    "USER_PROFILE_FIELDS": ALL_FIELDS,
    "MINIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH": 1,
    "MINIMUM_PROFILE_COMPANY_NAME_LENGTH": 0,
}
SETTINGS = pytest.mark.parametrize("settings", [{}, TIGHT], ids=["default", "tight"])


@pytest.fixture
def description(app):
    return app.test_client().get("/openapi.json").json


def parts(value):
    """Every object within a description."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            yield from parts(part)


def test_every_answer_forbids_storing(app):
    client = app.test_client()
    pages = ("/", "/docs/", "/docs/swagger-ui.css", "/docs/nothing")
    for path in (*pages, "/openapi.json", "/health"):
        response = client.get(path)
        assert "no-store" in response.headers["Cache-Control"], path
        response.close()
    assert "no-store" in client.options("/health").headers["Cache-Control"]


def test_the_front_leads_to_the_page(app):
    response = app.test_client().get("/", follow_redirects=True)
    assert response.status_code == 200
    assert response.content_type == "text/html; charset=utf-8"
    assert response.request.path == "/docs/"


def test_a_missing_slash_is_led_on(app):
    response = app.test_client().get("/docs")
    assert (response.status_code, response.headers["Cache-Control"]) == (302, "no-store")
    assert response.headers["Location"] == "docs/"


def test_the_page_asks_nothing_of_the_network(app):
    host = "evil.example"
    page = app.test_client().get("/docs/", headers={"Host": host}).text
    config = json.loads(page.split("user_config = ", 1)[1].split(";", 1)[0])
    assert config["url"] == "../openapi.json"
    assert config["validatorUrl"] is None
    assert "http" not in page
    assert host not in page
    assert set(re.findall('(?:href|src)="(.)', page)) == {"."}, "relative, under any prefix"


@pytest.mark.parametrize(
    "header",
    [
        {"Range": "bytes=0-9"},
        {"Range": "bytes=999999999-"},
        {"If-Match": '"other"'},
        {"If-None-Match": "*"},
        {"If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"},
        {"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"},
        {"If-Range": '"other"', "Range": "bytes=0-9"},
    ],
)
def test_every_file_of_the_page_is_sent_whole(app, header):
    client = app.test_client()
    for path in ("/docs/", "/docs/swagger-ui.css"):
        with client.get(path) as whole, client.get(path, headers=header) as response:
            assert (response.status_code, response.data) == (200, whole.data)
            assert "Content-Range" not in response.headers
    assert_error(client.get("/docs/nothing", headers=header), 404, "not-found")


@pytest.mark.parametrize("path", ["/x", "../app.py", "%2e%2e/app.py", "%00", "a%00b", "%ff", "."])
def test_other_files_are_not_found(app, path):
    assert_error(app.test_client().get(f"/docs/{path}"), 404, "not-found")


def test_the_description_needs_no_session(app, make_app):
    other = make_app(USER_PROFILE_FIELDS="dob", PAGE_SIZE=7)
    described = other.test_client().get("/openapi.json").json
    assert described["openapi"] == "3.1.0"
    schemas = described["components"]["schemas"]
    assert schemas["UpdateProfile"]["required"] == ["dob"]
    query = described["paths"]["/api/administrator/profiles"]["get"]["parameters"]
    assert {"limit": 7}.items() <= {p["name"]: p["schema"].get("default") for p in query}.items()


def test_clients_find_names_and_the_service(description):
    operations = {
        (method, path): (operation["operationId"], operation["tags"])
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    }
    assert operations == {
        ("patch", "/api/user/update-profile"): ("updateProfile", ["user"]),
        ("post", "/api/user/create-profile"): ("createProfile", ["user"]),
        ("get", "/api/administrator/profiles"): ("listProfiles", ["administrator"]),
        ("get", "/api/administrator/sessions"): ("listSessions", ["administrator"]),
        ("get", "/health"): ("getHealth", ["service"]),
    }
    assert [tag["name"] for tag in description["tags"]] == ["user", "administrator", "service"]
    assert description["servers"] == [{"url": "."}]  # beside /openapi.json, under any prefix


def test_everything_has_a_type_and_a_description(description):
    for part in parts(description):
        assert "type" in part or not {"enum", "const"} & part.keys(), part
        assert "description" in part or not {"in", "scheme"} & part.keys(), part
        for name, field in part.get("properties", {}).items():
            assert {"type", "description"} <= field.keys(), name
    assert all(tag["description"] for tag in description["tags"])


def test_dates_cursors_and_switches(description):
    schemas = description["components"]["schemas"]
    profile, session = schemas["Profile"]["properties"], schemas["Session"]["properties"]
    assert (profile["dob"]["format"], profile["dob"]["type"]) == ("date", ["string", "null"])
    moments = [field for name, field in (profile | session).items() if name.endswith("At")]
    assert [field["format"] for field in moments] == ["date-time"] * 4
    assert schemas["CreateProfile"]["properties"]["default"]["type"] == "boolean"
    for path, prefix in (("profiles", "prof"), ("sessions", "sess")):
        parameters = description["paths"][f"/api/administrator/{path}"]["get"]["parameters"]
        query = {each["name"]: each["schema"] for each in parameters}
        assert query["after"]["pattern"] == f"^{prefix}_[0-9a-f]{{16}}$"
        assert query["all"] == {"type": "string", "enum": ["all"]}


@SETTINGS
@pytest.mark.parametrize("media_type", ["application/json", *FORMS])
def test_the_examples_are_accepted_as_they_stand(make_app, settings, media_type):
    app = make_app(**settings)
    person = Person(app)
    description = app.test_client().get("/openapi.json").json
    made = {"profileid": None}
    for path, method in (("create-profile", "post"), ("update-profile", "patch")):
        content = description["paths"][f"/api/user/{path}"][method]["requestBody"]["content"]
        assert list(content) == ["application/json", *FORMS]
        send = person.create if method == "post" else partial(person.update, made["profileid"])
        if media_type == "application/json":
            response = send(json=content[media_type]["example"])
        else:
            fields = content[media_type]["schema"]["properties"]
            example = {name: field["examples"][0] for name, field in fields.items()}
            response = send(example, content_type=media_type)
        assert response.status_code in (200, 201), response.json
        made = response.json
    with app.app_context(), connection():
        account = Account.get_by_id(person.accountid)
    assert account.profileid is None, "an example does not change the account"
    assert len(made["fullName"]) == (100 if settings else 8)


def test_the_description_lists_the_codes_in_order(make_app):
    app = make_app(USER_PROFILE_FIELDS="dob,full-name")
    paths = app.test_client().get("/openapi.json").json["paths"]
    answers = paths["/api/user/update-profile"]["patch"]["responses"]
    codes = {
        status: list(answer["content"]["application/json"]["examples"])
        for status, answer in answers.items()
        if status >= "400"
    }
    assert codes == {
        "400": [
            *("invalid-profileid", "invalid-dob", "invalid-full-name", "invalid-full-name-length"),
            *("invalid-body", "invalid-appid"),
        ],
        "401": ["sign-in-required"],
        "403": ["invalid-account"],
        "404": ["invalid-profileid"],
        "413": ["body-too-large"],
        "415": ["unsupported-media-type"],
        "500": ["internal-error"],
        "503": ["database-unavailable"],
    }


def test_described_objects_are_the_ones_answered(app):
    person = Person(app, administrator=True)
    profile = person.create({"contact-email": "a@example.com", "full-name": "A"}).json
    session = person.get("/api/administrator/sessions").json[0]
    schemas = app.test_client().get("/openapi.json").json["components"]["schemas"]
    assert list(schemas["Profile"]["properties"]) == list(profile)
    assert list(schemas["Session"]["properties"]) == list(session)
