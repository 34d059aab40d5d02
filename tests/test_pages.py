"""The samples of the pages work, and their links and tables are right."""

import json
import re
import shutil
import subprocess
from importlib import import_module, reload
from threading import Thread

import pytest
from service import ROOT, execute, named, on_sqlite, run, sign_in, stored
from werkzeug.serving import make_server
from werkzeug.wsgi import get_input_stream

from config import LENGTHS, load
from errors import HTTP_CODES, ServiceError
from validators import PROFILE_FIELDS, parse_date

FILES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
PAGES = {file.stem: file.read_text() for file in FILES}
README = PAGES["README"]
API = PAGES["API"]
OPERATING = PAGES["OPERATING"]
CODE = {file.stem: file.read_text() for file in ROOT.glob("*.py")}
DESCRIPTION = json.loads((ROOT / "openapi.json").read_text())
OPERATIONS = [path for path in DESCRIPTION["paths"] if "/api/" in path]
# What differs each time: identifiers, tokens and moments.
UNIQUE = re.compile("[a-z]{4}_[0-9a-f]{16}|[0-9a-f]{64}|[0-9-]+T[0-9:.]+Z")


def table(page, title):
    """The first two cells of each row of a section whose first one is code."""
    section = page.split(f"\n## {title}\n")[1].partition("\n##")[0]
    return dict(re.findall(r"(?m)^\| `(.+?)` \| `?(.*?)`? \|", section))


def run_sample(title):
    """Run the sample in Python of a section of the API."""
    sample = re.search(f"(?s)\n## {title}\n.*?```python\n(.*?)```", API)[1]
    exec(sample, {})


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
    assert re.search(rf"\n## \[?{version}\b", PAGES["CHANGELOG"])


def test_lines_to_install():
    assert "\npip install -r requirements.txt && flask demo && flask run\n" in README
    assert "\npip install -r requirements.txt && pytest\n" in README


def test_settings():
    defaults = table(README, "Settings")
    settings = load({})
    assert defaults.keys() == settings.keys() - {"PROFILE_LENGTHS"}
    defaults["WEB_CONCURRENCY"] = ""
    assert load(defaults) == settings


def test_commands(app):
    """Each with its arguments and options."""
    listed = table(README, "Commands")
    for name, command in app.cli.commands.items():
        words = re.findall("^[a-z_]+|--[a-z]+", listed.pop(f"flask {name}").lower())
        assert words == [parameter.opts[0] for parameter in command.params]
    assert not listed


def test_fields():
    assert table(API, "Fields") == {
        name: row.property for name, row in PROFILE_FIELDS.items()
    }


@pytest.mark.parametrize("texts", table(API, "Dates"))
def test_dates(texts):
    for text in texts.split("`, `"):
        assert parse_date(text) == "1950-01-31"


def test_errors():
    """All codes, with their statuses."""
    names = ["accountid", "profileid", "limit", "offset", "duration", *PROFILE_FIELDS]
    names += [f"{name}-length" for name in LENGTHS]
    codes = {
        "bad-request",
        *HTTP_CODES.values(),
        *(f"invalid-{name}" for name in names),
        *re.findall(r'ServiceError\("([a-z-]+)"', str(CODE)),
    }
    listed = table(API, "Errors")
    assert listed.keys() == codes
    for status, code in HTTP_CODES.items():
        assert str(status) in listed.pop(code)
    for code, statuses in listed.items():
        assert str(ServiceError(code).status) in statuses


@pytest.mark.parametrize("path", OPERATIONS)
def test_the_section_of_an_endpoint(path):
    """It has the described parameters, and the statuses of the errors."""
    ((method, operation),) = DESCRIPTION["paths"][path].items()
    request = f"`{method.upper()} {path}"
    assert request in README
    section = API.split(f"\n{request}` ")[1].split("\n## ")[0]
    for parameter in operation["parameters"]:
        assert f"\n| `{parameter['name']}` |" in section
    statuses = operation["responses"].keys() - {"200", "201", "500"}
    assert {*re.findall(r"\n\| ([0-9]+) \|", section)} == statuses


def test_rooms():
    """Each file of the code is listed, and imports only from files below it."""
    names = re.findall(r"\n\| `([a-z.]+)\.py` \|", PAGES["CONTRIBUTING"])
    assert {*names} == CODE.keys()
    above = "app"
    for name in names:
        above += f"|{name}"
        assert not re.search(rf"\n(from|import) ({above})\b", CODE[name])


def test_calls_in_python(database_url, monkeypatch, capsys):
    monkeypatch.setenv("DATABASE_URL", database_url)
    run_sample("In Python")
    assert "'phone': '+44 20 7946 0958'" in capsys.readouterr().out


def test_questions_to_the_log(tmp_path):
    (sample,) = re.findall("\n(time=.*)", OPERATING)
    names = re.findall("[a-z_]+=", sample)
    assert names == re.findall("([a-z_]+=){", CODE["gunicorn.conf"])
    failed = sample.replace("=200 ", "=503 ").replace(" ms=", " ms=100")
    (tmp_path / "log").write_text(f"{sample}\n{failed}\n")
    for question in re.findall("\n(grep .*)", OPERATING):
        assert subprocess.check_output(question, shell=True, cwd=tmp_path)


@pytest.mark.long
def test_requests_with_curl(serve, empty_database_url):
    """Each gets the answer that follows it."""
    service = serve(empty_database_url)
    known = {
        "$URL": f"http://127.0.0.1:{service.port}",
        "$ADMIN": sign_in(service, administrator=True).token,
        "$TOKEN": "e3b71f5a08c94d26b1f07a4c9d82e6503f6a1d8b7c2e94f05ab36d17c8e2f094",
    }
    pairs = "(?s)```sh\n(curl [^`]+)```(?:(?!```).)*```json\n(.+?)```"
    for request, sample in re.findall(pairs, API):
        for shown, real in known.items():
            request = request.replace(shown, real)
        answer = subprocess.check_output(request, shell=True)
        shown = json.dumps(json.loads(sample))
        real = json.dumps(json.loads(answer))
        assert UNIQUE.split(shown) == UNIQUE.split(real)
        known |= zip(UNIQUE.findall(shown), UNIQUE.findall(real), strict=True)


@pytest.mark.long
def test_the_client(serve, empty_database_url, monkeypatch, capsys):
    """The first answer to each request is lost, the second one is a 503."""
    pytest.importorskip("requests", reason="pip install -r tests/requirements.txt")
    service = serve(empty_database_url)
    administrator = sign_in(service, administrator=True)
    sent = []

    def route(environ, start_response):
        sent.append(environ["PATH_INFO"])
        count = sent.count(sent[-1])
        if count == 2:
            # With its length, so that nobody waits for the end of the connection.
            start_response("503 Service Unavailable", [("Content-Length", "0")])
            return []
        environ["wsgi.input"] = get_input_stream(environ)
        environ["HTTP_CONNECTION"] = "close"  # as this router closes each one
        answer = service(environ, start_response)
        if count == 1:
            raise ConnectionError  # the answer is lost
        return answer

    with make_server("127.0.0.1", 0, route) as router:
        Thread(target=router.serve_forever).start()
        monkeypatch.setenv("PROFILES_URL", f"http://127.0.0.1:{router.port}")
        monkeypatch.setenv("PROFILES_TOKEN", administrator.token)
        monkeypatch.syspath_prepend(ROOT / "docs")
        client = reload(import_module("client"))
        try:
            saved = client.User("Eve").save_profile(named("Eve"))
            run_sample("The life of a user")
        finally:
            router.shutdown()
            client.http.close()
    assert capsys.readouterr().out == "Ada King\nAda Lovelace\ninvalid-contact-email\n"
    assert administrator.profiles() == [saved]
    assert len(stored(empty_database_url)["account"]) == 2


@pytest.mark.long
def test_files_for_systemd_and_cron(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd")
    unit = re.search(r"(?s)\[Service\].*?=multi-user.target\n", OPERATING)[0]
    file = tmp_path / "profiles@.service"
    file.write_text(re.sub("=.*gunicorn", "=/bin/sh", unit))
    subprocess.check_call(["systemd-analyze", "verify", file])
    cron = r"\n(\S+ ){5}profiles cd /srv/profiles && .*flask purge-sessions "
    assert re.search(cron, OPERATING)


@on_sqlite
def test_what_was_deleted_is_overwritten(make_app, tmp_path):
    """By the lines of OPERATING, while the service has the file open."""
    file = tmp_path / "x.db"
    app = make_app(DATABASE_URL=f"sqlite:///{file}", USER_PROFILE_FIELDS="phone")
    user = sign_in(app)
    profileid = user.create({"phone": "secret"}).json["profileid"]
    user.update(profileid, {"phone": "secret" * 2_000})  # splits the page
    run(app, "delete-account", user.accountid)

    def content():
        return file.read_bytes() + tmp_path.joinpath("x.db-wal").read_bytes()

    assert b"secret" in content()
    for statement in re.findall('sqlite3 .*"(VACUUM|PRAGMA wal_.*?)"', OPERATING):
        rows = execute(f"sqlite:///{file}", statement)
    assert rows == [(0, 0, 0)]
    assert b"secret" not in content()
