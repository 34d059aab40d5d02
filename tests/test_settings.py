"""The settings: their defaults, what each takes, and how a refusal reads."""

import os
import runpy
import ssl
import sys

import pytest
from service import ROOT, Served

from app import create_app
from config import SettingError, load, parse_database_url
from validators import PROFILE_FIELDS

CA = ssl.get_default_verify_paths().cafile
OVER = "is greater than MAXIMUM_PROFILE_FULL_NAME_LENGTH=50"
NUMBER = "must be a whole number from 1 to 2147483647"
FIELDS = f"must list each field once, out of {', '.join(PROFILE_FIELDS)}"
URLS = (
    "DATABASE_URL=***: must look like sqlite:///file, sqlite:////folder/file or "
    "mysql://user:password@host/name, percent-encoded; for TLS, append "
    "?ssl-mode=REQUIRED, VERIFY_CA or VERIFY_IDENTITY, and &ssl-ca=file"
)

# The variable, the value, and the reason.
REFUSED = [
    ("APPID", "a b", "must match [A-Za-z0-9._-]{1,64}"),
    ("MAXIMUM_POST_DATA_LENGTH", "0", NUMBER),
    ("MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH", "0", NUMBER),
    ("MINIMUM_PROFILE_COMPANY_NAME_LENGTH", "x", NUMBER.replace("1", "0", 1)),
    ("MINIMUM_PROFILE_FULL_NAME_LENGTH", "51", OVER),
    ("PORT", "0", "must be a whole number from 1 to 65535"),
    ("PORT", "65536", "must be a whole number from 1 to 65535"),
    ("WEB_CONCURRENCY", "0", "must be a whole number from 1 to 1000"),
    ("WEB_CONCURRENCY", "1001", "must be a whole number from 1 to 1000"),
    ("PAGE_SIZE", "0", NUMBER),
    ("PAGE_SIZE", "１", NUMBER),
    ("PAGE_SIZE", "2147483648", NUMBER),
    ("PAGE_SIZE", "1_0", NUMBER),
    ("PAGE_SIZE", "1.5", NUMBER),
    ("PAGE_SIZE", "10\n", NUMBER),
    ("USER_PROFILE_FIELDS", "dob,", FIELDS),
    ("USER_PROFILE_FIELDS", " ", FIELDS),
    ("USER_PROFILE_FIELDS", "dob,dob", FIELDS),
    ("OPTIONAL_PROFILE_FIELDS", "fax", FIELDS),
    ("OPTIONAL_PROFILE_FIELDS", "dob,", FIELDS),
    ("OPTIONAL_PROFILE_FIELDS", "dob,dob", FIELDS),
]
LISTS = ["USER_PROFILE_FIELDS", "OPTIONAL_PROFILE_FIELDS"]
REFUSED_URLS = [
    "postgres://u:secret@h/d",
    "mysql://u:secret@h",
    "mysql://u:secret@h:0/d",
    "mysql://u:p@a..b/d",
    "mysql://u:secret%FF@h/d",
    "mysql://u:sec\nret@h/d",
    # A character of the password is not encoded, or the name has one too many.
    "mysql://u:se/cret@h/d",
    "mysql://h/d?x=u:secret%40h",
    "mysql://u:s#ecret@h/d",
    "mysql://h/d/secret",
    # These are no files.
    "sqlite:///:memory:",
    "sqlite:///folder/",
    "sqlite:///x.db?",
    # TLS
    "mysql://h/d?ssl-mode=required",
    "mysql://h/d?SSL-MODE=REQUIRED",
    "mysql://h/d?ssl-mode=REQUIRED&ssl-mode=DISABLED",
    "mysql://h/d?ssl-ca=",
    "mysql://h/d?ssl-ca=/secret",
    f"mysql://h/d?ssl-mode=DISABLED&ssl-ca={CA}",
]


@pytest.mark.parametrize(("cores", "workers"), [(None, 1), (1, 1), (3, 3), (64, 4)])
def test_by_default_each_core_has_a_worker_but_four_at_most(
    monkeypatch, cores, workers
):
    """README's table has the other defaults: see test_pages.py."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
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
    ("name", "value"),
    [
        ("APPID", "shop"),
        ("PAGE_SIZE", 7),
        ("PORT", 8001),
        ("DATABASE_URL", parse_database_url("sqlite:///a.db")),
        ("USER_PROFILE_FIELDS", ("dob",)),
    ],
)
def test_blanks_around_a_value_do_not_count(name, value):
    text = "sqlite:///a.db" if name == "DATABASE_URL" else str(value)
    text = "dob" if name == "USER_PROFILE_FIELDS" else text
    assert load({name: f" {text}  "})[name] == value


@pytest.mark.parametrize("name", ["APPID", "PORT", "DATABASE_URL", *LISTS])
def test_a_value_of_blanks_alone_is_refused(name):
    with pytest.raises(SettingError, match=f"^{name}="):
        load({name: "  "})


@pytest.mark.parametrize(
    ("optional", "required"),
    [
        ("full-name,phone", ("contact-email",)),
        ("full-name,contact-email", ()),
        ("phone", ("contact-email", "full-name")),
    ],
)
def test_what_is_optional_is_not_required_by_default(optional, required):
    assert (
        load({"OPTIONAL_PROFILE_FIELDS": optional})["USER_PROFILE_FIELDS"] == required
    )


def test_blanks_around_the_names_of_fields_do_not_count():
    fields = load(
        {
            "USER_PROFILE_FIELDS": "website, dob ,full-name",
            "OPTIONAL_PROFILE_FIELDS": " phone, location",
        }
    )
    assert fields["USER_PROFILE_FIELDS"] == ("website", "dob", "full-name")
    assert fields["OPTIONAL_PROFILE_FIELDS"] == ("phone", "location")


@pytest.mark.parametrize(("name", "value", "reason"), REFUSED)
def test_a_refusal_names_the_variable_and_the_value_in_one_line(name, value, reason):
    with pytest.raises(SettingError) as caught:
        create_app({name: value})
    shown = value.strip(" ").replace("10\n", r"'10\n'")
    assert str(caught.value) == f"{name}={shown}: {reason}"


def test_a_field_that_is_required_and_optional_is_refused():
    with pytest.raises(SettingError) as caught:
        load(dict.fromkeys(LISTS, "dob,full-name"))
    reason = "must not repeat a field of USER_PROFILE_FIELDS=dob,full-name"
    assert str(caught.value) == f"OPTIONAL_PROFILE_FIELDS=dob,full-name: {reason}"


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_a_refusal_shows_nothing_of_a_database_url(url):
    with pytest.raises(SettingError) as caught:
        load({"DATABASE_URL": url})
    assert str(caught.value) == URLS


@pytest.mark.long
def test_a_command_ends_with_the_line_of_a_refusal(tmp_path):
    command = Served(tmp_path, "", PAGE_SIZE="x")
    command.start(sys.executable, "-m", "flask", "init-db")
    assert command.process.wait(60) == 1
    assert command.log() == f"Error: PAGE_SIZE=x: {NUMBER}\n"


@pytest.mark.parametrize(
    ("url", "engine", "name", "options"),
    [
        ("sqlite:////var/lib/a%20b.db", "sqlite", "/var/lib/a b.db", {}),
        ("sqlite:///a%3Fb%23c.db", "sqlite", f"{ROOT}/a?b#c.db", {}),
        ("mysql://h/d", "mysql", "d", {"host": "h", "port": 3306, "user": ""}),
        ("mysql://u:s%40%2F%C3%BF@h/d", "mysql", "d", {"password": "s@/ÿ".encode()}),
        ("mysql://secret:secret@h:3307/d", "mysql", "d", {"port": 3307}),
        ("mysql2://u%2B:secret@h/d?charset=x&pool=5", "mysql", "d", {"user": "u+"}),
        ("mysql+pymysql://u:secret@[::1]/d", "mysql", "d", {"host": "::1"}),
        ("mariadb://u:secret@h/d%2Dname", "mysql", "d-name", {"host": "h"}),
    ],
)
def test_a_database_url_as_providers_write_it(url, engine, name, options):
    """``options``: some of those for PyMySQL."""
    parsed = parse_database_url(url)
    assert (parsed.engine, parsed.name) == (engine, name)
    assert parsed.server == parsed.server | options
    assert "secret" not in repr(parsed)


def tls_options(query):
    """PyMySQL's options for TLS."""
    server = parse_database_url(f"mysql://h/d?{query}").server
    return {name: server[name] for name in server if "ssl" in name}


@pytest.mark.parametrize(
    ("query", "options"),
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
    ("query", "verify_mode", "checks_the_host"),
    [
        ("ssl-mode=REQUIRED", ssl.CERT_NONE, False),
        ("ssl-mode=VERIFY_CA", ssl.CERT_REQUIRED, False),
        ("ssl-mode=VERIFY_IDENTITY", ssl.CERT_REQUIRED, True),
        (f"ssl-ca={CA}", ssl.CERT_REQUIRED, False),
        (f"ssl-mode=REQUIRED&ssl-ca={CA}", ssl.CERT_REQUIRED, False),
        (f"ssl-ca={CA}&ssl-mode=VERIFY_IDENTITY", ssl.CERT_REQUIRED, True),
    ],
)
def test_a_database_url_that_requires_tls(
    monkeypatch, query, verify_mode, checks_the_host
):
    """The strict checks that Python 3.13 adds would refuse MySQL's own certificates."""
    create = ssl.create_default_context

    def create_as_python_313(**options):
        context = create(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create_as_python_313)
    context = tls_options(query)["ssl"]
    assert context.verify_mode == verify_mode
    assert context.check_hostname == checks_the_host
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
