"""The samples of the pages work, and their links and tables are right."""

import inspect
import json
import re
import subprocess

import pytest
from service import ROOT, sign_in, stored

import accounts
import profiles
import sessions
from config import LENGTHS, load
from errors import HTTP_CODES, ServiceError
from models import Profile
from outages import CONFLICTS
from validators import PROFILE_FIELDS, parse_date

FILES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
PAGES = {file.stem: file.read_text() for file in FILES}
README = PAGES["README"]
API = PAGES["API"]
PYTHON = PAGES["PYTHON"]
CODE = {file.stem: file.read_text() for file in ROOT.glob("*.py")}
CLIENT = (ROOT / "docs/client.py").read_text()
NODE_CLIENT = (ROOT / "docs/client.mjs").read_text()
DESCRIPTION = json.loads((ROOT / "openapi.json").read_text())
OPERATIONS = [path for path in DESCRIPTION["paths"] if "/api/" in path]
LIST_QUERY = {"accountid", "limit", "offset", "after", "x"}
QUERY = {"accountid", "profileid", "x"}
SESSION_QUERY = {"sessionid", "x"}
HEADERS = ("Idempotency-Key", "If-Match")
BODY = {"phone", "dob", "duration"}
SUCCESSES = {  # what a key created before is returned with 200
    "/api/administrator/create-account": ["200", "201"],
    "/api/administrator/create-session": ["201"],
    "/api/user/create-profile": ["200", "201"],
}
# What differs each time: identifiers, tokens and moments.
UNIQUE = re.compile("[a-z]{4}_[0-9a-f]{16}|[0-9a-f]{64}|[0-9-]+T[0-9:.]+Z")


SECTIONS = API.split("\n##")


def method_and_operation(path):
    """Of a request, its method and its part of the description."""
    ((method, operation),) = DESCRIPTION["paths"][path].items()
    return method.upper(), operation


def table(page, title):
    """The first two cells of each row of a section whose first one is code."""
    section = page.split(f"# {title}\n")[1].partition("\n##")[0]
    return dict(re.findall(r"(?m)^\| `(.+?)` \| `?(.*?)`? \|", section))


@pytest.mark.parametrize("file", FILES, ids=PAGES)
def test_links(file):
    links = re.findall(r"\]\(([^:#)]*)#?([^:)]*)\)", file.read_text())
    for path, anchor in links:
        target = file.parent / (path or file.name)
        assert target.exists()
        if anchor:
            text = target.read_text().lower()
            titles = re.sub(r"[^\w\s-]", "", text)
            assert f"\n-{anchor}\n" in titles.replace(" ", "-")


def test_version():
    version = DESCRIPTION["info"]["version"]
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f'\n__version__ = "{version}"' in CLIENT
    assert NODE_CLIENT.startswith(f"/* A client for Profiles {version} in JavaScript")
    assert version == re.search(r"\n## ([0-9.]+)", PAGES["CHANGELOG"])[1]  # the newest
    (text,) = re.findall(r"!\[(.*?)\]\(docs/page\.png\)", README)
    assert text.startswith(f"The page of version {version}:")  # taken anew


def test_lines_to_install():
    assert "\npip install -r requirements.txt && flask demo && flask run\n" in README
    assert "`pip install -r requirements.txt && pytest`" in README


def test_settings():
    """The row of the lengths has patterns, and says what their star stands for."""
    stars = re.findall("`(.+?)`", re.search(r"where `\*` is (.*) \|", README)[1])
    defaults = {}
    for patterns, values in table(README, "Settings").items():
        for pattern, value in zip(
            patterns.split("`, `"), values.split(", "), strict=True
        ):
            names = [pattern.replace("*", star) for star in stars]
            defaults |= dict.fromkeys(names, value)
    settings = load({})
    assert defaults.keys() == settings.keys() - {"PROFILE_LENGTHS"}
    defaults |= {"WEB_CONCURRENCY": "", "OPTIONAL_PROFILE_FIELDS": ""}
    assert load(defaults) == settings


def test_commands(app):
    """Each with its arguments and options; its help has an example."""
    listed = table(README, "Commands")
    for name, command in app.cli.commands.items():
        words = re.findall("^[a-z_]+|--[a-z]+", listed.pop(f"flask {name}").lower())
        assert words == [parameter.opts[0] for parameter in command.params]
        assert f"Example: flask {name}" in command.help
    assert not listed


def test_fields():
    assert table(API, "Fields") == {
        name: row.property for name, row in PROFILE_FIELDS.items()
    }


@pytest.mark.parametrize(
    ("client", "pattern"),
    [
        pytest.param(CLIENT, r"(?s)\nFIELDS = \((.*?)\)", id="py"),
        pytest.param(NODE_CLIENT, r"(?s)\nconst FIELDS = `(.*?)`", id="mjs"),
    ],
)
def test_fields_of_the_clients(client, pattern):
    """They refuse all others."""
    listed = re.search(pattern, client)[1]
    assert {*re.findall("[a-z-]+", listed)} == {*PROFILE_FIELDS, "default", "duration"}


def test_sample_of_a_whole_profile():
    """The sample of create-profile."""
    sample = re.search('(?s)```json\n({"profileid": .*?)```', API)[1]
    row = dict.fromkeys(Profile._meta.sorted_field_names)
    assert list(json.loads(sample)) == list(Profile.to_resource(row))


@pytest.mark.parametrize("texts", table(API, "Dates"))
def test_dates(texts):
    for text in texts.split("`, `"):
        assert parse_date(text) == "1950-01-31"


def statuses_of_codes(page=API):
    """The statuses of each code in the tables of API.md."""
    rows = re.findall(r"(?m)^\| (`[a-z-]+`.*?) \| ([45].*?) \|", page)
    return {
        code: {*re.findall("[0-9]{3}", statuses)}
        for codes, statuses in rows
        for code in re.findall("`([a-z-]+)`", codes)
    }


def test_errors():
    """All codes, with their statuses."""
    names = ["accountid", "profileid", "sessionid", "limit", "offset", "duration"]
    names += [*PROFILE_FIELDS, *(f"{name}-length" for name in LENGTHS)]
    codes = {
        "bad-request",
        *HTTP_CODES.values(),
        *(f"invalid-{name}" for name in names),
        *re.findall(r'ServiceError\("([a-z-]+)"', str(CODE)),
    }
    listed = statuses_of_codes()
    assert listed.keys() == codes
    for status, code in HTTP_CODES.items():
        assert listed.pop(code) == {str(status)}
    for name in ("accountid", "profileid"):
        assert listed.pop(f"invalid-{name}") == {"400", "404"}
    assert listed.pop("invalid-sessionid") == {"404"}
    for code, statuses in listed.items():
        assert statuses == {str(ServiceError(code).status)}


def test_requests():
    """README lists each. API says what a repeat of each does that changes something."""
    (repeats,) = [text for text in SECTIONS if text.startswith(" Repeats")]
    for path in OPERATIONS:
        method, _ = method_and_operation(path)
        assert f"`{method} {path}`" in README
        name = path.rpartition("/")[2]
        assert (f"\n| {name} |" in repeats) == (method != "GET")


def section_of(path):
    """The section of API.md that describes the request."""
    method, _ = method_and_operation(path)
    request = re.compile(f"`{method} {path}[?`]")
    (section,) = filter(request.search, SECTIONS)
    return section


def codes_of(path):
    """The codes of the request's own section, where a field stands for all of them."""
    codes = re.search(r"\*\*Codes[^.]*", section_of(path))[0]
    return re.findall(
        "`(.+?)`", codes.replace("those of the fields", "`invalid-phone`")
    )


def resolve(part):
    """A part of the description, or the shared one to which it refers."""
    if "$ref" not in part:
        return part
    *_, kind, name = part["$ref"].split("/")
    return DESCRIPTION["components"][kind][name]


@pytest.mark.parametrize("path", OPERATIONS)
def test_the_parameters_of_a_request(path):
    """The required one is in the query; its section or a list names the others."""
    _, operation = method_and_operation(path)
    shared = ["X-Appid", *table(API, "Lists")]
    for parameter in map(resolve, operation["parameters"]):
        name = parameter["name"]
        if parameter.get("required"):
            assert f"{path}?{name}=`" in section_of(path)
        else:
            assert name in shared or f"`{name}`" in section_of(path)


@pytest.mark.parametrize("path", OPERATIONS)
def test_the_statuses_of_a_request(path):
    """The description has a success, what every request can get, and its own codes."""
    _, operation = method_and_operation(path)
    statuses = {"400", "401", "500", "503", *SUCCESSES.get(path, ["200"])}
    if "requestBody" in operation:
        statuses |= {"413", "415"}
    for code in codes_of(path):
        statuses |= statuses_of_codes()[code]
    assert operation["responses"].keys() == statuses


@pytest.mark.parametrize("path", OPERATIONS)
def test_the_described_codes_of_a_request(path):
    """Those of its own section, and those that every request can return."""
    _, operation = method_and_operation(path)
    every = statuses_of_codes(API.partition("The section of each request")[0])
    del every["not-found"]  # of an unknown path
    if "requestBody" not in operation:
        del every["invalid-body"]
    for status, response in operation["responses"].items():
        if status >= "400":
            text = resolve(response)["description"].format(codes="invalid-phone")
            listed = re.findall("`([a-z-]+)`", text)
            own = [
                code for code in codes_of(path) if status in statuses_of_codes()[code]
            ]
            shared = [code for code in every if status in every[code]]
            assert sorted(listed) == sorted(own + shared)


@pytest.mark.parametrize("path", OPERATIONS)
def test_the_codes_of_a_request(make_app, empty_database_url, path):
    """A request in which everything is wrong gets them in the order of its section.

    After each, nothing was stored.
    """
    app = make_app(DATABASE_URL=empty_database_url, USER_PROFILE_FIELDS="phone,dob")
    fields = {"phone": "7", "dob": "1950-01-31"}
    user = sign_in(app)
    administrator = sign_in(app, administrator=True)
    own = user.create(fields).json
    own = {name: own[name] for name in ("accountid", "profileid")}
    own["sessionid"] = user.session["sessionid"]
    foreign = administrator.create(fields).json
    mended = {
        "administrator-required": [{"caller": administrator}],
        "invalid-accountid": [
            {"accountid": "acct_" + "0" * 16},
            {"accountid": foreign["accountid"]},
        ],
        "invalid-profileid": [
            {"profileid": "prof_" + "0" * 16},
            {"profileid": foreign["profileid"]},
        ],
        "invalid-sessionid": [{"sessionid": administrator.session["sessionid"]}],
        "invalid-account": [own],
        "invalid-phone": [fields | {"phone": "8"}],
        "profile-changed": [{"If-Match": "*"}],
        "invalid-duration": [{"duration": "1"}],
        "invalid-idempotency-key": [{"Idempotency-Key": "x"}],
        "invalid-parameter": [{"x": None}],
        "invalid-limit": [{"limit": "1"}],
        "invalid-offset": [{"offset": "1"}],
        "invalid-after": [{"after": ""}],
    }
    given = dict.fromkeys("duration limit offset after x".split(), "x")
    given |= dict.fromkeys(HEADERS, "")
    given |= {"caller": user, "sessionid": "sess_" + "0" * 16}
    method, _ = method_and_operation(path)
    names = LIST_QUERY if "invalid-limit" in codes_of(path) else QUERY
    if "invalid-sessionid" in codes_of(path):
        names = SESSION_QUERY

    def send():
        return given["caller"].open(
            path,
            method=method,
            query_string={name: given[name] for name in names if given.get(name)},
            data={name: given[name] for name in BODY & given.keys()},
            headers={name: given[name] for name in HEADERS},
        )

    before = stored(empty_database_url)
    for code in codes_of(path):
        for more in mended[code]:
            response = send()
            assert response.json["message"] == code
            assert str(response.status_code) in statuses_of_codes()[code]
            assert stored(empty_database_url) == before
            given |= more
    assert send().status_code in (200, 201)


def test_rooms():
    """Each file of the code is listed, and imports only from files below it."""
    rows = re.findall(r"(?m)^\| (`.*\.py`) \|", PAGES["CONTRIBUTING"])
    names = re.findall(r"`([a-z_.]+)\.py`", "\n".join(rows))
    assert {*names} == CODE.keys()
    above = "app"
    for name in names:
        above += f"|{name}"
        assert not re.search(rf"\n(from|import) ({above})\b", CODE[name])


def test_modules_in_python():
    """Those that app imports, whose names must not clash with a program's own."""
    sentence = re.search(r"(?s)other names than these:(.*?)\.\n", PYTHON)[1]
    listed = re.findall("`([a-z_]+)`", sentence)
    assert {*listed, "gunicorn.conf"} == CODE.keys()


def test_calls_in_python(database_url, monkeypatch, capsys):
    """The sample can be repeated, because its account and its profile have keys."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    (sample,) = re.findall("(?s)```python\n(.*?)```", PYTHON)
    for _ in range(2):
        exec(sample, {})
        printed = capsys.readouterr().out
        assert printed.splitlines() == re.findall("print.*# (.+)", sample)


def test_operations_in_python():
    """One for each request, with its parameters."""
    listed = re.findall(r"\| `(\w+)\((caller[^*]*), \*, (.*?)\)` \|", PYTHON)
    assert len(listed) == len(OPERATIONS)
    operations = vars(profiles) | vars(accounts) | vars(sessions)
    for name, positional, keywords in listed:
        call = inspect.signature(operations[name])
        named = dict.fromkeys(keywords.split(", "))
        call.bind(*positional.split(", "), **named)


def test_conflicts_in_python():
    """The errors after which a transaction of the caller's runs again; 1205: a lock."""
    (listed,) = re.findall(r"on MySQL, that is error (.*?),\s+or an\s", PYTHON)
    numbers = map(int, re.findall("[0-9]+", listed))
    assert {*numbers} == {1205, *CONFLICTS}


@pytest.mark.long
def test_requests_with_curl(serve, empty_database_url):
    """API's, which use each other's identifiers and tokens."""
    service = serve(empty_database_url)
    known = {
        "$URL": f"http://127.0.0.1:{service.port}",
        "$ADMIN": sign_in(service.app, administrator=True).token,
        "$TOKEN": "e3b71f5a08c94d26b1f07a4c9d82e6503f6a1d8b7c2e94f05ab36d17c8e2f094",
    }
    assert send_samples(API, known) == API.count("\ncurl ") == len(OPERATIONS)


@pytest.mark.long
def test_the_request_of_the_first_screen(serve, make_app, empty_database_url):
    """README's, after the lines of the demo that export its variables."""
    service = serve(empty_database_url)
    app = make_app(DATABASE_URL=empty_database_url, APPID="default")
    printed = app.test_cli_runner().invoke(args=["demo"]).stdout
    exports = dict(
        re.findall(r"(\w+)=(\S+)", "\n".join(re.findall("(?m)^export .*", printed)))
    )
    known = {f"${name}": value for name, value in exports.items()}
    known["$URL"] = f"http://127.0.0.1:{service.port}"
    assert send_samples(README, known) == 1


def send_samples(page, known):
    """Send a page's requests and return how many; ``known`` is what to put in them.

    Each gets the answer that follows it, as a comment or in a block of its own, where
    "…" stands for other properties.
    """
    samples = re.findall(
        r"(?ms)^(curl .+?)\n(?:```\n\n```json|#)\s(.+?)\n(?=`|c)", page
    )
    for request, sample in samples:
        for shown, real in known.items():
            request = request.replace(shown, real)
        answer = json.loads(subprocess.check_output(request, shell=True))
        expected = json.loads(sample.replace(", …", ""))
        if "…" in sample:
            answer = without_others(answer, expected)
        shown = json.dumps(expected)
        real = json.dumps(answer)
        assert UNIQUE.split(shown) == UNIQUE.split(real)
        known |= zip(UNIQUE.findall(shown), UNIQUE.findall(real), strict=True)
    return len(samples)


def without_others(answer, expected):
    """Those properties of an object, or of the objects of a list, that are expected."""
    if isinstance(answer, list):
        return [without_others(*pair) for pair in zip(answer, expected, strict=True)]
    return {name: answer[name] for name in expected}
