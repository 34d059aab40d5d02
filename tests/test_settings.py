"""The settings: their defaults, what each takes, and how a refusal reads."""

import os
import ssl

import pytest
from service import ROOT, Served

from app import create_app
from config import SettingError, load, parse_database_url
from validators import PROFILE_FIELDS

CA = ssl.get_default_verify_paths().cafile
NAMES = "full-name", "display-name", "company-name"
NUMBER = "must be a whole number from 1 to 2147483647"
FIELDS = f"must name each field once, of {', '.join(PROFILE_FIELDS)}"
URLS = (
    "DATABASE_URL=***: must be like sqlite:///file, sqlite:////folder/file or "
    "mysql://user:password@host/name, percent-encoded; TLS is ?ssl-mode=REQUIRED, "
    "VERIFY_CA or VERIFY_IDENTITY, with &ssl-ca=file"
)

REFUSED = f"""\
APPID=a b: must match [A-Za-z0-9._-]{{1,64}}
MAXIMUM_POST_DATA_LENGTH=0: {NUMBER}
MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH=0: {NUMBER}
MINIMUM_PROFILE_COMPANY_NAME_LENGTH=x: {NUMBER.replace("1", "0", 1)}
MINIMUM_PROFILE_FULL_NAME_LENGTH=51: is over MAXIMUM_PROFILE_FULL_NAME_LENGTH=50
PORT=99999: must be a whole number from 1 to 65535
PORT=0: must be a whole number from 1 to 65535
WEB_CONCURRENCY=0: must be a whole number from 1 to 1000
WEB_CONCURRENCY=1001: must be a whole number from 1 to 1000
PAGE_SIZE=0: {NUMBER}
PAGE_SIZE=ten: {NUMBER}
PAGE_SIZE=-1: {NUMBER}
PAGE_SIZE=１: {NUMBER}
PAGE_SIZE=2147483648: {NUMBER}
PAGE_SIZE=1_0: {NUMBER}
PAGE_SIZE= : {NUMBER}
PAGE_SIZE=True: {NUMBER}
PAGE_SIZE=1.5: {NUMBER}
PAGE_SIZE='10\\n': {NUMBER}
USER_PROFILE_FIELDS=name,age: {FIELDS}
USER_PROFILE_FIELDS=dob,: {FIELDS}
USER_PROFILE_FIELDS=,: {FIELDS}
USER_PROFILE_FIELDS= : {FIELDS}
USER_PROFILE_FIELDS=dob,dob: {FIELDS}
USER_PROFILE_FIELDS=dob;phone: {FIELDS}""".splitlines()

REFUSED_URLS = f"""
postgres://u:secret@h/d  u:secret@tcp(h)/d  u:secret  host=h;password=secret  secret
profiles.db  //u:secret%40h/d  mysql://u:se/cret@h/d  mysql://u:se?cret@h/d
mysql://u:secret@h:x/d  mysql://u:secret@h:65536/d  mysql://u:secret@h:0/d
mysql://u:sec\x7fret@h/d  mysql://u:s@ecret@h:x/d  mysql://u:secret  mysql://u:secret@h
mysql://u:se://cret@h  mysql://h?x=u:secret@h/d  mysql://h/d?a=u:secret%40h
mysql://h..x/d  mysql://u:a@secret/x@h/d  mysql://;user=u:;password=secret
mysql://u:sec\udcffret@h/d  mysql://u:sec%FFret@h/d  mysql://u%FF:secret@h/d
mysql://u:s#x@h/d  mysql://[secret/d  mysql://h#secret  mysql://h/d#secret
mysql:///d  mysql://h/d/  mysql://h/d%00  mysql://h/d%FF

sqlite:///\udcff.db  sqlite:///%FF.db  sqlite://u:secret  sqlite://  sqlite:x.db
sqlite:/x.db  sqlite://profiles.db  sqlite:///  sqlite:///folder/  sqlite:///:memory:
sqlite:///a%00b.db  sqlite:///a#b.db  sqlite:///a?b.db  sqlite:///a.db?

mysql://h/d?ssl-ca=/secret  mysql://h/d?ssl-ca=a%00b  mysql://h/d?ssl-ca={__file__}
mysql://h/d?ssl-ca  mysql://h/d?ssl-ca=  mysql://h/d?ssl-mode=REQUIRED&ssl-ca=
mysql://h/d?ssl-mode=DISABLED&ssl-ca={CA}  mysql://h/d?ssl-ca={CA}&ssl-ca={CA}
mysql://h/d?ssl-mode  mysql://h/d?ssl-mode=  mysql://h/d?ssl-mode=secret
mysql://h/d?ssl-mode=required  mysql://h/d?ssl-mode=REQUIRED&ssl-mode=DISABLED
mysql://h/d?ssl-mode=DISABLED&ssl-mode=REQUIRED  mysql://h/d?ssl-mode=&ssl-mode=REQUIRED

mysql://h/d?ssl_mode=REQUIRED  mysql://h/d?SSL-Mode=REQUIRED  mysql://h/d?sslmode=require
mysql://h/d?ssl-mode=REQUIRED&sslmode=  mysql://h/d?ssl-mode=VERIFY_CA&ssl=true
mysql://h/d?ssl  mysql://h/d?ssl=  mysql://h/d?ssl=true  mysql://h/d?ssl=false
mysql://h/d?useSSL=true  mysql://h/d?sslaccept=strict  mysql://h/d?tls
mysql://h/d?TLSversion=1  mysql://h/d?enabledTLSProtocols=TLSv1.3
mysql://h/d?ssl-cert=secret  mysql://h/d?ssl-key=secret  mysql://h/d?ssl_ca=/secret
mysql://h/d?ssl_verify_cert=true  mysql://h/d?ssl-mode=REQUIRED&sslcapath=/etc
mysql://h/d?trustServerCertificate=0  mysql://h/d?trustCertificateKeyStoreUrl=secret
""".split()


def test_defaults():
    defaults = load({})
    assert defaults == defaults | {
        "APPID": "default",
        "DATABASE_URL": parse_database_url("sqlite:///profiles.db"),
        "USER_PROFILE_FIELDS": ("contact-email", "full-name"),
        "PROFILE_LENGTHS": dict.fromkeys(NAMES, (1, 50)),
        "PAGE_SIZE": 10,
        "MAXIMUM_POST_DATA_LENGTH": 65_536,
        "WEB_CONCURRENCY": min(os.cpu_count(), 4),
        "PORT": 8_000,
    }


def test_an_empty_variable_counts_as_not_set():
    defaults = load({})
    assert load(dict.fromkeys(defaults, "")) == defaults


def test_an_override_wins_over_the_environment(make_app, monkeypatch):
    monkeypatch.setenv("PAGE_SIZE", "7")
    assert make_app().config["PAGE_SIZE"] == 7
    assert make_app(PAGE_SIZE=8).config["PAGE_SIZE"] == 8


def test_blanks_around_the_names_of_fields_do_not_count():
    fields = load({"USER_PROFILE_FIELDS": "website, dob ,full-name"})
    assert fields["USER_PROFILE_FIELDS"] == ("website", "dob", "full-name")


@pytest.mark.parametrize("line", REFUSED)
def test_a_refusal_names_the_variable_and_the_value_in_one_line(line):
    name, value = line.partition(": ")[0].split("=")
    with pytest.raises(SettingError) as caught:
        create_app({name: value.replace("'10\\n'", "10\n")})
    assert str(caught.value) == line


@pytest.mark.parametrize("url", [*REFUSED_URLS, "mysql://u:sec\nret@h/d"])
def test_a_refusal_shows_nothing_of_a_database_url(url):
    with pytest.raises(SettingError) as caught:
        load({"DATABASE_URL": url})
    assert str(caught.value) == URLS


@pytest.mark.long
def test_a_command_ends_with_the_line_of_a_refusal(tmp_path):
    done = Served(tmp_path, "", PAGE_SIZE="x").flask("init-db")
    assert done.returncode == 1
    assert done.stderr == f"Error: PAGE_SIZE=x: {NUMBER}\n"


# Parts that each URL holds, behind two blanks.
DATABASE_URLS = f"""\
sqlite:////var/lib/a%20b.db  engine=sqlite  name=/var/lib/a b.db
sqlite:///data/profiles.db  name={ROOT}/data/profiles.db
sqlite:///a%3Fb%23c.db  name={ROOT}/a?b#c.db
mysql://h/d  engine=mysql  host=h  port=3306  user=  password=b''
mysql://u@h/d?reconnect=true  host=h  user=u  name=d
mysql://secret:s%40s%2F%C3%BF@h:3307/d  password={"s@s/ÿ".encode()}  port=3307
mysql2://u%2B:secret@h/d?charset=utf8mb4&pool=5  engine=mysql  user=u+  name=d
mysql+pymysql://u:secret@[::1]/d  engine=mysql  host=::1
mariadb://u:secret@h/d%2Dname  engine=mysql  name=d-name""".splitlines()


@pytest.mark.parametrize("line", DATABASE_URLS)
def test_a_database_url_as_providers_write_it(line):
    url, *expected = line.split("  ")
    parsed = parse_database_url(url)
    parts = {"engine": parsed.engine, "name": parsed.name, **parsed.server}
    found = {f"{name}={value}" for name, value in parts.items()}
    assert found >= {*expected}
    assert "secret" not in repr(parsed)


# How a connection checks the certificate, and whether it checks the host's name.
QUERIES = f"""\
reconnect=true&charset=utf8mb4&pool=5&x=ssl-proxy  {{}}
ssl-mode=PREFERRED  {{}}
ssl-mode=DISABLED  {{'ssl_disabled': True}}
ssl-mode=REQUIRED  CERT_NONE False
ssl-mode=VERIFY_CA  CERT_REQUIRED False
ssl-mode=VERIFY_IDENTITY  CERT_REQUIRED True
ssl-ca={CA}  CERT_REQUIRED False
ssl-mode=REQUIRED&ssl-ca={CA}  CERT_REQUIRED False
ssl-ca={CA}&ssl-mode=PREFERRED  CERT_REQUIRED False
ssl-ca={CA}&ssl-mode=VERIFY_IDENTITY  CERT_REQUIRED True""".splitlines()


@pytest.mark.skipif(not CA, reason="this machine has no file of CAs")
@pytest.mark.parametrize("line", QUERIES)
def test_the_query_of_a_database_url_asks_for_tls(line):
    query, expected = line.split("  ")
    server = parse_database_url(f"mysql://h/d?{query}").server
    context = server.get("ssl")
    if context:
        found = f"{context.verify_mode.name} {context.check_hostname}"
    else:
        found = str({name: server[name] for name in server if "ssl" in name})
    assert found == expected
