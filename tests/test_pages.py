"""The samples of the pages work, and their links, tables and lists are right.

No sentence is read: a test says which table or list of a page it compares.
"""

import inspect
import json
import re
import subprocess
import sys

import pytest
from service import ROOT, run_python, sign_in, stored

import accounts
import profiles
import sessions
from config import LENGTHS, load
from errors import HTTP_CODES, ServiceError
from lists import Paging
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


def codes(text):
    """What a text has in backticks."""
    return re.findall("`(.+?)`", text)


def rows(text):
    """The rows of each table of a text, as lists of their cells."""
    lines = re.findall(r"(?m)^ *\| (.+) \|$", text)
    return [line.split(" | ") for line in lines]


def table(page, title):
    """The rows of a section that begin with code."""
    section = page.split(f"# {title}\n")[1].partition("\n##")[0]
    return [row for row in rows(section) if row[0].startswith("`")]


def method_and_operation(path):
    """Of a request, its method and its part of the description."""
    ((method, operation),) = DESCRIPTION["paths"][path].items()
    return method.upper(), operation


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
    """It is the same in each file that has it, and in the picture of the page."""
    version = DESCRIPTION["info"]["version"]
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f'\n__version__ = "{version}"' in CLIENT
    assert NODE_CLIENT.startswith(f"/* A client for Profiles {version} in JavaScript")
    assert version == re.search(r"\n## ([0-9.]+)", PAGES["CHANGELOG"])[1]  # the newest
    (text,) = re.findall(r"!\[(.*?)\]\(docs/page\.png\)", README)
    assert version in text  # the picture was taken anew


def test_lines_to_install():
    assert "\npip install -r requirements.txt && flask demo && flask run\n" in README
    assert "`pip install -r requirements.txt && pytest`" in README


def test_settings():
    """README's table of settings: each with its default.

    The names of the lengths have a star; what it stands for ends their row.
    """
    defaults = {}
    for patterns, values, meaning in table(README, "Settings"):
        stars = re.findall("`([A-Z_]+)`", meaning)
        values = values.replace("`", "").split(", ", 1 if "*" in patterns else 0)
        for pattern, value in zip(codes(patterns), values, strict=True):
            names = [pattern.replace("*", star) for star in stars or [""]]
            defaults |= dict.fromkeys(names, value)
    settings = load({})
    assert defaults.keys() == settings.keys() - {"PROFILE_LENGTHS"}
    defaults |= {"WEB_CONCURRENCY": "", "OPTIONAL_PROFILE_FIELDS": ""}
    assert load(defaults) == settings


def test_commands(app):
    """README's table of commands: each with its arguments and options.

    The help of each has an example, too.
    """
    listed = {}
    for name, *arguments, _ in table(README, "Commands"):
        words = re.findall("`[a-z_]+|--[a-z-]+", " ".join(arguments).lower())
        listed[name] = [word.strip("`") for word in words]
    commands = app.cli.commands.items()
    assert listed == {
        f"`flask {name}`": [parameter.opts[0] for parameter in command.params]
        for name, command in commands
    }
    for name, command in commands:
        if any(parameter.required for parameter in command.params):
            assert f"Example: flask {name} " in command.help


def test_fields():
    """API's table of fields: each with its property."""
    listed = {tuple(codes(name + cell)) for name, cell, *_ in table(API, "Fields")}
    assert listed == {(name, row.property) for name, row in PROFILE_FIELDS.items()}


@pytest.mark.parametrize(
    ("client", "pattern"),
    [
        pytest.param(CLIENT, r"(?s)\nFIELDS = \((.*?)\)", id="py"),
        pytest.param(NODE_CLIENT, r"(?s)\nconst FIELDS = `(.*?)`", id="mjs"),
    ],
)
def test_fields_of_the_clients(client, pattern):
    listed = re.search(pattern, client)[1]
    assert {*re.findall("[a-z-]+", listed)} == {*PROFILE_FIELDS}


def test_sample_of_a_whole_profile():
    """The sample of create-profile."""
    sample = re.search('(?s)```json\n({"profileid": .*?)```', API)[1]
    row = dict.fromkeys(Profile._meta.sorted_field_names)
    assert list(json.loads(sample)) == list(Profile.to_resource(row))


@pytest.mark.parametrize(
    "text", [text for cell, *_ in table(API, "Dates") for text in codes(cell)]
)
def test_dates(text):
    """API's table of dates: all are the same day."""
    assert parse_date(text) == "1950-01-31"


def statuses_of_codes():
    """The statuses of each code, by the rows of API that have both."""
    return {
        code: {*re.findall("[0-9]{3}", status)}
        for cell, status, *_ in rows(API)
        if re.match("[45][0-9]{2}", status)
        for code in codes(cell)
    }


def test_errors():
    """API's tables of errors: all codes, with their statuses."""
    names = ["accountid", "profileid", "sessionid", "limit", "offset", "duration"]
    names += [*PROFILE_FIELDS, *(f"{name}-length" for name in LENGTHS)]
    expected = {
        "bad-request",
        *HTTP_CODES.values(),
        *(f"invalid-{name}" for name in names),
        *re.findall(r'ServiceError\("([a-z-]+)"', str(CODE)),
    }
    listed = statuses_of_codes()
    assert listed.keys() == expected
    for status, code in HTTP_CODES.items():
        assert listed.pop(code) == {str(status)}
    for name in ("accountid", "profileid"):
        assert listed.pop(f"invalid-{name}") == {"400", "404"}
    assert listed.pop("invalid-sessionid") == {"404"}
    for code, statuses in listed.items():
        assert statuses == {str(ServiceError(code).status)}


def test_requests():
    """README's table of requests has all, API's of repeats those that change something.

    The rows of repeats begin with the name of a request.
    """
    methods = {path: method_and_operation(path)[0] for path in OPERATIONS}
    listed = {code for row in rows(README) for code in codes(row[0])}
    assert {f"{method} {path}" for path, method in methods.items()} <= listed
    names = [row[0] for row in rows(API.split("# Repeats\n")[1].partition("\n##")[0])]
    changing = [path for path, method in methods.items() if method != "GET"]
    assert {path.rpartition("/")[2] for path in changing} <= {*names}


def section_of(path):
    """The section of API.md that describes the request."""
    method, _ = method_and_operation(path)
    request = re.compile(f"`{method} {path}[?`]")
    (section,) = filter(request.search, SECTIONS)
    return section


def codes_of(path):
    """The codes of the request's own section, where a field stands for all of them."""
    listed = re.search(r"\*\*Codes[^.]*", section_of(path))[0]
    return codes(re.sub("[^`,]*fields", "`invalid-phone`", listed))


def resolve(part):
    """A part of the description, or the shared one to which it refers."""
    if "$ref" not in part:
        return part
    *_, kind, name = part["$ref"].split("/")
    return DESCRIPTION["components"][kind][name]


@pytest.mark.parametrize("path", OPERATIONS)
def test_the_parameters_of_a_request(path):
    """Its section of API has them, the required one in the path.

    API's table of the parameters of lists has others.
    """
    _, operation = method_and_operation(path)
    shared = ["X-Appid", *(codes(row[0])[0] for row in table(API, "Lists"))]
    for parameter in map(resolve, operation["parameters"]):
        name = parameter["name"]
        if parameter.get("required"):
            assert f"{path}?{name}=`" in section_of(path)
        else:
            assert name in shared or f"`{name}`" in section_of(path)


@pytest.mark.parametrize("path", OPERATIONS)
def test_the_statuses_of_a_request(path):
    """Those described are a success, what every request can get, and its own codes."""
    _, operation = method_and_operation(path)
    statuses = {"400", "401", "500", "503", *SUCCESSES.get(path, ["200"])}
    if "requestBody" in operation:
        statuses |= {"413", "415"}
    for code in codes_of(path):
        statuses |= statuses_of_codes()[code]
    assert operation["responses"].keys() == statuses


@pytest.mark.parametrize("path", OPERATIONS)
def test_the_described_codes_of_a_request(path):
    """Those of its own section of API, and the listed ones that no section has."""
    method, operation = method_and_operation(path)
    listed = statuses_of_codes()
    fields = {code for name in PROFILE_FIELDS for code in listed if name in code}
    others = {"not-found", *fields}.union(*map(codes_of, OPERATIONS))
    if "requestBody" not in operation:
        others.add("invalid-body")
    if method == "GET":
        others.add("read-only-token")
    every = [code for code in listed if code not in others]
    for status, response in operation["responses"].items():
        if status >= "400":
            text = resolve(response)["description"].format(codes="invalid-phone")
            own = [code for code in codes_of(path) + every if status in listed[code]]
            assert sorted(re.findall("`([a-z-]+)`", text)) == sorted(own)


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
    """CONTRIBUTING's table of the files: each imports only from files below it."""
    listed = [code for row in rows(PAGES["CONTRIBUTING"]) for code in codes(row[0])]
    names = [name.removesuffix(".py") for name in listed if name.endswith(".py")]
    assert {*names} == CODE.keys()
    above = "app"
    for name in names:
        above += f"|{name}"
        assert not re.search(rf"\n(from|import) ({above})\b", CODE[name])


def test_modules_in_python():
    """PYTHON's list of the modules, whose names must not clash with a program's own."""
    (listed,) = re.findall(r"(?:`[a-z_]+`(?:,\s|\sand\s)?){9,}", PYTHON)
    assert sorted([*codes(listed), "gunicorn.conf"]) == sorted(CODE)


def test_calls_in_python(database_url, monkeypatch, capsys):
    """The sample can be repeated, because its account and its profile have keys."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    sample, _ = re.findall("(?s)```python\n(.*?)```", PYTHON)
    for _ in range(2):
        exec(sample, {})
        printed = capsys.readouterr().out
        assert printed.splitlines() == re.findall("print.*# (.+)", sample)


PRODUCT_TESTS = """
import client
import pytest

@pytest.mark.parametrize("name", ["Ada", "Alan"])
def test_sign_up(profiles_service, name):
    user = client.sign_up("1")
    assert user.account()["profile"] is None
    user.save_profile({"contact-email": "x@example.com", "full-name": name})
    assert [profile["fullName"] for profile in client.profiles()] == [name]
"""


@pytest.mark.long
def test_the_fixture_for_products(tmp_path):
    """PYTHON's, in the tests of a product that has an app.py of its own, too.

    Each test has a database of its own.
    """
    _, sample = re.findall("(?s)```python\n(.*?)```", PYTHON)
    clone, product = tmp_path / "clone", tmp_path / "product"
    clone.mkdir()
    for path in ROOT.glob("[!.]*"):
        (clone / path.name).symlink_to(path)
    (clone / ".venv").symlink_to(sys.prefix)
    product.mkdir()
    (product / "app.py").write_text("raise AssertionError")
    (product / "conftest.py").write_text(
        sample.replace("/path/to/profiles", str(clone))
    )
    (product / "test_product.py").write_text(PRODUCT_TESTS)
    path = f"{product}:{ROOT / 'docs'}"
    words = ["-m", "pytest", "-q", "-W", "error"]
    done = run_python(*words, cwd=product, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_operations_in_python():
    """PYTHON's table of the operations: one for each request, with its parameters."""
    listed = re.findall(r"\| `(\w+)\((caller.*?), \*, (.*?)\)`", PYTHON)
    assert len(listed) == len(OPERATIONS)
    operations = vars(profiles) | vars(accounts) | vars(sessions)
    for name, positional, keywords in listed:
        call = inspect.signature(operations[name])
        own = dict.fromkeys(keywords.split(", "))
        paging = call.bind(*positional.split(", "), **own).arguments.get("paging", {})
        Paging(**paging)


def test_conflicts_in_python():
    """PYTHON names each error after which a program's transaction can run again."""
    numbers = {*map(int, re.findall("[0-9]+", PYTHON))}
    assert {1205, *CONFLICTS} <= numbers  # 1205: a lock


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
    lines = "\n".join(re.findall("(?m)^export .*", printed))
    known = dict(re.findall(r"(\w+)=(\S+)", lines))
    known = {f"${name}": value for name, value in known.items()}
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
