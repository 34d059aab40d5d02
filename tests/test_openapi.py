"""The description and its page."""

import json

from serving import Person


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
    assert config["url"] == "/openapi.json"
    assert config["validatorUrl"] is None
    assert "http" not in page
    assert host not in page


def test_the_description_needs_no_session(app, make_app):
    other = make_app(USER_PROFILE_FIELDS="dob", PAGE_SIZE=7)
    described = other.test_client().get("/openapi.json").json
    assert described["openapi"] == "3.1.0"
    schemas = described["components"]["schemas"]
    assert schemas["UpdateProfile"]["required"] == ["dob"]
    query = described["paths"]["/api/administrator/profiles"]["get"]["parameters"]
    assert {"limit": 7}.items() <= {p["name"]: p["schema"].get("default") for p in query}.items()


def test_the_description_lists_the_codes_in_order(make_app):
    app = make_app(USER_PROFILE_FIELDS="dob,full-name")
    paths = app.test_client().get("/openapi.json").json["paths"]
    answers = paths["/api/user/update-profile"]["patch"]["responses"]
    codes = {
        status: answer["content"]["application/json"]["schema"]["properties"]["message"]["enum"]
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
