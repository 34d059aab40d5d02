"""The settings: their defaults, what each takes, and how a refusal reads."""

import os
import runpy
import ssl
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from service import ROOT, Program, execute, on_mysql, user_with

from app import create_app
from config import SettingError, load, parse_database_url
from validators import PROFILE_FIELDS

CA = ssl.get_default_verify_paths().cafile
NUMBER = "must be a whole number from 1 to 2147483647"
FIELDS = (
    f"must list each field once, and only {', '.join(PROFILE_FIELDS)} "
    "or fields of your own, such as x-postal-address"
)
LISTS = ["USER_PROFILE_FIELDS", "OPTIONAL_PROFILE_FIELDS"]
# The variable, the value, and the reason.
REFUSED = [
    ("APPID", "a b", "must match [A-Za-z0-9._-]{1,64}"),
    ("APPID", "shop\n", "must match [A-Za-z0-9._-]{1,64}"),
    ("MAXIMUM_POST_DATA_LENGTH", "0", NUMBER),
    ("MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH", "0", NUMBER),
    ("MINIMUM_PROFILE_COMPANY_NAME_LENGTH", "x", NUMBER.replace("1", "0", 1)),
    (
        "MINIMUM_PROFILE_FULL_NAME_LENGTH",
        "51",
        "is greater than MAXIMUM_PROFILE_FULL_NAME_LENGTH=50",
    ),
    ("PORT", "0", "must be a whole number from 1 to 65535"),
    ("PORT", "65536", "must be a whole number from 1 to 65535"),
    ("WEB_CONCURRENCY", "1001", "must be a whole number from 1 to 1000"),
    *(
        ("PAGE_SIZE", value, NUMBER)
        for value in "0 １ 2147483648 1_0 1.5 10\n".split(" ")
    ),
    *(
        (name, value, FIELDS)
        for name in LISTS
        for value in (
            *("fax", "dob,", "dob,dob", "x-note,x-note", "X-note", "x-", "x-note-"),
            *("x-a--b", "x-a_b", "x-né", f"x-{'a' * 63}"),
        )
    ),
]
SCHEME = (
    "must look like sqlite:///file, sqlite:////folder/file or "
    "mysql://user:password@host/name, percent-encoded"
)
ENCODE = 'percent-encode "/", "?" and "#" in the user and the password'
HOST = "has an invalid host or port, or characters that must be encoded"
OPTIONS = (
    "the options are ssl-mode (DISABLED, PREFERRED, REQUIRED, VERIFY_CA, "
    "VERIFY_IDENTITY), ssl-ca (a file, not with DISABLED) and unix_socket (a file, "
    "with no host or localhost), each once"
)
CERTIFICATE = "cannot read a certificate from the ssl-ca file"
REFUSED_URLS = {
    "postgres://u:secret@h/d": SCHEME,
    "secret": SCHEME,
    "jdbc:mysql://u:secret@h/d": SCHEME,
    "sqlite:///x#y.db": SCHEME,
    "sqlite:///:memory:": SCHEME,
    "sqlite:///folder/": SCHEME,
    "sqlite://x.db": SCHEME,
    "mysql://u:se/cret@h/d": ENCODE,
    "mysql://u:s?slsecret@h/d": ENCODE,
    "mysql://u:s#ecret@h/d": ENCODE,
    "mysql://h/d?x=u:secret%40h": ENCODE,
    "mysql://u:secret@h": SCHEME,
    "mysql://u:secret@h?x=/": SCHEME,
    "mysql:///secret": SCHEME,
    "mysql://h/d/secret": SCHEME,
    "mysql://u:secret@/d": HOST,
    "mysql://u:secret@h:0/d": HOST,
    "mysql://u:secret/d": HOST,
    "mysql://u:p@a..b/d": HOST,
    "mysql://u:se[cret@h/d": HOST,
    "mysql://u:secret%FF@h/d": HOST,
    "mysql://u:sec\nret@h/d": HOST,
    "mysql://u:secret@h/d%00": HOST,
    "mysql://h/d?sslmode=require": OPTIONS,
    "mysql://h/d?SSL-MODE=REQUIRED": OPTIONS,
    "mysql://h/d?ssl-mode=REQUIRED&ssl-mode=DISABLED": OPTIONS,
    "mysql://h/d?ssl-ca=": OPTIONS,
    "mysql://h/d?ssl-ca=/a&x=1&ssl-ca=/b": OPTIONS,
    "mysql://h/d?ssl-mode=DISABLED&ssl-ca=/secret": OPTIONS,
    "mysql://u:secret@h/d?unix_socket=/s": OPTIONS,
    "mysql://u:secret@127.0.0.1/d?unix_socket=/s": OPTIONS,
    "mysql://u:secret@/d?unix_socket=": OPTIONS,
    "mysql://u:secret@localhost/d?unix_socket=": OPTIONS,
    "mysql://u:secret@/d?unix_socket=/s&unix_socket=/s": OPTIONS,
    "mysql://u:secret@localhost/d?socket=/s": OPTIONS,
    "mysql://h/d?ssl-ca=/secret": CERTIFICATE,
    "mysql://h/d?ssl-ca=/": CERTIFICATE,
    "mysql://h/d?ssl-ca=/dev/null": CERTIFICATE,
}


@pytest.mark.parametrize(
    "usable, workers",
    [
        (1, 1),
        (3, 3),
        (64, 4),
        (None, 2),
    ],
)
def test_by_default_each_usable_core_has_a_worker_but_four_at_most(
    monkeypatch, usable, workers
):
    """README's table has the other defaults: see test_pages.py."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(usable))
    if not usable:
        monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    config = runpy.run_path(f"{ROOT}/config.py")
    assert config["load"]({})["WEB_CONCURRENCY"] == workers


def test_an_empty_variable_counts_as_not_set():
    defaults = load({})
    assert load(dict.fromkeys(defaults, "")) == defaults


def test_an_override_wins_over_the_environment(make_app, monkeypatch):
    monkeypatch.setenv("PAGE_SIZE", "7")
    assert make_app().config["PAGE_SIZE"] == 7
    assert make_app(PAGE_SIZE=8).config["PAGE_SIZE"] == 8


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("PAGE_SIZE", "7", 7),
        ("DATABASE_URL", "sqlite:////a.db", parse_database_url("sqlite:////a.db")),
        (
            "USER_PROFILE_FIELDS",
            "website, dob ,full-name",
            ("website", "dob", "full-name"),
        ),
    ],
)
def test_blanks_around_a_value_do_not_count(name, text, value):
    assert load({name: f" {text}  "})[name] == value


@pytest.mark.parametrize(
    "name",
    ["APPID", "PORT", "DATABASE_URL", *LISTS],
)
def test_a_value_of_blanks_alone_is_refused(name):
    with pytest.raises(SettingError, match=f"^{name}="):
        load({name: "  "})


@pytest.mark.parametrize(
    "optional, required",
    [
        ("full-name,phone", ("contact-email",)),
        ("full-name,contact-email", ()),
        ("phone", ("contact-email", "full-name")),
    ],
)
def test_what_is_optional_is_not_required_by_default(optional, required):
    checked = load({"OPTIONAL_PROFILE_FIELDS": optional})
    assert checked["USER_PROFILE_FIELDS"] == required


@pytest.mark.parametrize("name, value, reason", REFUSED)
def test_a_refusal_names_the_variable_and_the_value_in_one_line(name, value, reason):
    with pytest.raises(SettingError) as caught:
        create_app({name: value})
    shown = repr(value) if "\n" in value else value
    assert str(caught.value) == f"{name}={shown}: {reason}"


def test_a_field_that_is_required_and_optional_is_refused():
    with pytest.raises(SettingError) as caught:
        load(dict.fromkeys(LISTS, "dob,full-name"))
    reason = "must not repeat a field of USER_PROFILE_FIELDS=dob,full-name"
    assert str(caught.value) == f"OPTIONAL_PROFILE_FIELDS=dob,full-name: {reason}"


@pytest.mark.parametrize(
    "url, reason",
    REFUSED_URLS.items(),
)
def test_a_refusal_says_what_is_wrong_with_a_url_but_shows_nothing_of_it(url, reason):
    with pytest.raises(SettingError) as caught:
        load({"DATABASE_URL": url})
    assert str(caught.value) == f"DATABASE_URL=***: {reason}"


@pytest.mark.long
def test_a_command_ends_with_the_line_of_a_refusal(tmp_path):
    command = Program(tmp_path, PAGE_SIZE="x")
    command.start(sys.executable, "-m", "flask", "init-db")
    assert command.process.wait(60) == 1
    assert command.log() == f"Error: PAGE_SIZE=x: {NUMBER}\n"


@pytest.mark.parametrize(
    "url, engine, name, options",
    [
        ("sqlite:////var/lib/a%20b.db", "sqlite", "/var/lib/a b.db", {}),
        ("sqlite:///a%3Fb%23c.db", "sqlite", f"{ROOT}/a?b#c.db", {}),
        ("MySQL://h/d", "mysql", "d", {"host": "h", "port": 3306, "user": ""}),
        ("mysql://u:s%40%2F%C3%BF@h/d", "mysql", "d", {"password": "s@/ÿ".encode()}),
        ("mysql://u:s@a&ssl-ca=@h/d", "mysql", "d", {"password": b"s@a&ssl-ca="}),
        ("mysql://secret:secret@h:3307/d", "mysql", "d", {"port": 3307}),
        ("mysql2://u%2B:secret@h/d?charset=x&pool=5", "mysql", "d", {"user": "u+"}),
        ("mysql+pymysql://u:secret@[::1]/d", "mysql", "d", {"host": "::1"}),
        ("mysql://[fe80::1%25eth0]/d", "mysql", "d", {"host": "fe80::1%eth0"}),
        ("mysql://u:s@h/d?socketTimeout=5", "mysql", "d", {"unix_socket": None}),
        (
            "mysql://u:s@/d?unix_socket=%2Fcloudsql%2Fp:r:i",
            *("mysql", "d", {"unix_socket": "/cloudsql/p:r:i"}),
        ),
        (
            "mysql://u:s@LOCALHOST:7/d?ssl-mode=DISABLED&unix_socket=/a%2520b",
            *("mysql", "d", {"unix_socket": "/a%20b", "ssl_disabled": True}),
        ),
        ("mariadb://u:secret@h/d%2Dname", "mysql", "d-name", {"host": "h"}),
    ],
)
def test_a_database_url_as_providers_write_it(url, engine, name, options):
    """``options``: some of those for PyMySQL."""
    parsed = parse_database_url(url)
    assert (parsed.engine, parsed.name) == (engine, name)
    assert parsed.server == parsed.server | options
    assert "secret" not in repr(parsed)


@on_mysql
@pytest.mark.parametrize("host", ["", "localhost"])
def test_a_database_url_that_names_a_socket(empty_database_url, host):
    """The server shows a port for a connection by TCP."""
    ((socket,),) = execute(empty_database_url, "SELECT @@socket")
    if not Path(socket).is_socket():
        pytest.skip(f"the server has no socket on this machine: {socket}")
    with user_with(empty_database_url, "SELECT") as url:
        name = parse_database_url(url).name
        url = f"mysql://{name}:x@{host}/{name}?unix_socket={quote(socket, safe='')}"
        table = "information_schema.processlist"
        select = f"SELECT host FROM {table} WHERE id = connection_id()"
        assert execute(url, select) == [("localhost",)]


def tls_options(query):
    """PyMySQL's options for TLS."""
    server = parse_database_url(f"mysql://h/d?{query}").server
    return {name: server[name] for name in server if "ssl" in name}


@pytest.mark.parametrize(
    "query, options",
    [
        ("reconnect=true&charset=utf8mb4&pool=5&x=ssl-proxy", {}),
        ("ssl-mode=PREFERRED", {}),
        ("ssl-mode=DISABLED", {"ssl_disabled": True}),
    ],
)
def test_a_database_url_that_does_not_require_tls(query, options):
    assert tls_options(query) == options


@pytest.mark.skipif(not CA, reason="this machine has no file of CAs")
@pytest.mark.parametrize(
    "query, verify_mode, checks_the_host",
    [
        ("ssl-mode=REQUIRED", ssl.CERT_NONE, False),
        ("ssl-mode=VERIFY_CA", ssl.CERT_REQUIRED, False),
        ("ssl-mode=VERIFY_IDENTITY", ssl.CERT_REQUIRED, True),
        (f"ssl-ca={CA}", ssl.CERT_REQUIRED, False),
        (f"ssl-mode=REQUIRED&ssl-ca={CA}", ssl.CERT_REQUIRED, False),
        (f"ssl-ca={CA}&ssl-mode=VERIFY_IDENTITY", ssl.CERT_REQUIRED, True),
    ],
)
def test_a_database_url_that_requires_tls(query, verify_mode, checks_the_host):
    """The strict checks that Python 3.13 adds would refuse MySQL's own certificates."""
    context = tls_options(query)["ssl"]
    assert context.verify_mode == verify_mode
    assert context.check_hostname == checks_the_host
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
