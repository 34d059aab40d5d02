"""The settings: what each takes, and how a refusal reads."""

import os
import ssl

import pytest
from serving import ROOT

import config
from app import create_app
from validators import CATALOGUE

NUMBER = "must be a whole number from 1 to 2147483647"
FIELDS = f"must name each field once, of {', '.join(CATALOGUE)}"
REFUSED_URLS = f"""
postgres://u:secret@h/d
u:secret@tcp(h)/d
u:secret
host=h;password=secret
profiles.db
secret
//u:secret%40h/d
mysql://u:se/cret@h/d
mysql://u:secret@h:x/d
mysql://u:secret@h:65536/d
mysql://u:secret@h:0/d
mysql://u:se?cret@h/d
mysql://u:sec\x7fret@h/d
mysql://u:s@ecret@h:x/d
mysql://u:secret
mysql://u:se://cret@h
mysql://u:secret@h
mysql://h?x=u:secret@h/d
mysql://h/d?a=u:secret%40h
mysql://h..x/d
mysql://u:a@secret/x@h/d
mysql://;user=u:;password=secret
mysql://u:sec\udcffret@h/d
mysql://u:sec%FFret@h/d
mysql://u%FF:secret@h/d
mysql://u:s#x@h/d
mysql://[secret/d
mysql://h#secret
mysql://h/d#secret
mysql:///d
mysql://h/d/
mysql://h/d%00
mysql://h/d%FF
sqlite:///\udcff.db
sqlite:///%FF.db
sqlite://u:secret
sqlite://
sqlite:x.db
sqlite:/x.db
sqlite://profiles.db
sqlite:///
sqlite:///folder/
sqlite:///:memory:
sqlite:///a%00b.db
sqlite:///a#b.db
sqlite:///a?b.db
sqlite:///a.db?
mysql://h/d?ssl-ca=/secret
mysql://h/d?ssl-ca=a%00b
mysql://h/d?ssl-ca={__file__}
mysql://h/d?ssl-ca
mysql://h/d?ssl-ca=
mysql://h/d?ssl-mode=REQUIRED&ssl-ca=
mysql://h/d?ssl-mode
mysql://h/d?ssl-mode=
mysql://h/d?ssl-mode=secret
mysql://h/d?ssl-mode=REQUIRED&sslmode=
mysql://h/d?ssl
mysql://h/d?ssl=
mysql://h/d?ssl=true
mysql://h/d?ssl=false
mysql://h/d?ssl-mode=VERIFY_CA&ssl=true
mysql://h/d?useSSL=true
mysql://h/d?requireSSL=true
mysql://h/d?sslaccept=strict
mysql://h/d?tls
mysql://h/d?tls=true
mysql://h/d?enabledTLSProtocols=TLSv1.3
mysql://h/d?TLSversion=1
mysql://h/d?ssl-cert=secret
mysql://h/d?ssl-key=secret
mysql://h/d?sslrootcert=secret
mysql://h/d?ssl_verify_cert=true
mysql://h/d?ssl-mode=REQUIRED&sslcapath=/etc
mysql://h/d?verifyServerCertificate=true
mysql://h/d?trustServerCertificate=false
mysql://h/d?trustCertificateKeyStoreUrl=file:secret
""".split()


def refusal(name, value):
    """The line that the start ends with."""
    with pytest.raises(config.SettingError) as caught:
        create_app({name: value})
    return str(caught.value)


REFUSALS = f"""\
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
USER_PROFILE_FIELDS=name,age: {FIELDS}
USER_PROFILE_FIELDS=dob,: {FIELDS}
USER_PROFILE_FIELDS=,: {FIELDS}
USER_PROFILE_FIELDS= : {FIELDS}
USER_PROFILE_FIELDS=dob,dob: {FIELDS}
USER_PROFILE_FIELDS=dob;phone: {FIELDS}""".splitlines()


@pytest.mark.parametrize("line", REFUSALS)
def test_refused(line):
    setting, _, _ = line.partition(":")
    name, _, value = setting.partition("=")
    assert refusal(name, value) == line


def test_a_refusal_is_one_line():
    assert refusal("PAGE_SIZE", "10\n") == f"PAGE_SIZE='10\\n': {NUMBER}"


@pytest.mark.parametrize("url", [*REFUSED_URLS, "mysql://u:sec\nret@h/d"])
def test_a_refusal_shows_nothing_of_a_database_url(url):
    line = refusal("DATABASE_URL", url)
    assert line.startswith("DATABASE_URL=***: must be like sqlite:///file, ")
    assert line == refusal("DATABASE_URL", "x")


def test_the_start_ends_with_the_line(serve, tmp_path):
    service = serve(f"sqlite:///{tmp_path}/x.db", wait=False, PORT="x")
    line = "Error: PORT=x: must be a whole number from 1 to 65535\n"
    assert service.process.wait(40) != 0
    assert service.log() == line
    process = service.flask("init-db")
    assert process.returncode == 1
    assert process.stderr == line


def test_the_environment_and_its_overrides(make_app, monkeypatch):
    monkeypatch.setenv("PAGE_SIZE", "7")
    assert make_app().config["PAGE_SIZE"] == 7
    fields = "website, dob ,full-name"
    app = make_app(PAGE_SIZE=8, TESTING=True, USER_PROFILE_FIELDS=fields)
    assert app.config["PAGE_SIZE"] == 8
    assert app.testing
    assert app.config["USER_PROFILE_FIELDS"] == ("website", "dob", "full-name")


def test_an_empty_variable_counts_as_not_set():
    """The defaults are those of README.md, which test_readme.py compares."""
    defaults = config.load({"PAGE_SIZE": "", "APPID": ""})
    assert defaults == config.load({})
    assert defaults["WEB_CONCURRENCY"] == min(len(os.sched_getaffinity(0)), 4)


# Parts that each holds, behind two blanks.
DATABASE_URLS = f"""\
sqlite:////var/lib/a%20b.db  name=/var/lib/a b.db
sqlite:///data/profiles.db  name={ROOT}/data/profiles.db
sqlite:///a%3Fb%23c.db  name={ROOT}/a?b#c.db
mysql://u@h/d?reconnect=true  host=h  user=u  port=3306
mysql://u:p%40s%2Fs@h:3307/d  password=b'p@s/s'  port=3307
mysql2://u%2B:p@h/d?charset=utf8mb4&pool=5  user=u+  name=d
mysql+pymysql://u:p@[::1]/d  engine=mysql  host=::1
mariadb://u:p@h/d%2Dname  engine=mysql  name=d-name""".splitlines()


@pytest.mark.parametrize("line", DATABASE_URLS)
def test_database_urls(line):
    url, *expected = line.split("  ")
    parsed = config.parse_database_url(url)
    parts = {"engine": parsed.engine, "name": parsed.name, **parsed.server}
    assert {f"{name}={value}" for name, value in parts.items()} >= {*expected}
    shown = repr(parsed).split()  # without user and password
    assert {*shown} <= {parsed.engine, parsed.server.get("host"), *parsed.name.split()}


# How a connection checks the certificate, and the host's name in it.
MODES = {
    "DISABLED": {"ssl_disabled": True},
    "PREFERRED": {},  # PyMySQL's own way
    "REQUIRED": (ssl.CERT_NONE, False),
    "VERIFY_CA": (ssl.CERT_REQUIRED, False),
    "VERIFY_IDENTITY": (ssl.CERT_REQUIRED, True),
}
QUERIES = """\
reconnect=true&charset=utf8mb4&pool=5&x=ssl-proxy PREFERRED
ssl-mode=PREFERRED PREFERRED
ssl-mode=DISABLED DISABLED
ssl_mode=disabled DISABLED
SSL-Mode=Required REQUIRED
ssl-mode=DISABLED&ssl-mode=REQUIRED REQUIRED
ssl-mode=REQUIRED&sslmode=preferred REQUIRED
ssl-mode=VERIFY_CA VERIFY_CA
sslmode=verify_ca&ssl_mode=REQUIRED VERIFY_CA
ssl_ca={ca} VERIFY_CA
SSLCA={ca} VERIFY_CA
ssl-mode=REQUIRED&ssl-ca={ca} VERIFY_CA
ssl-ca={ca}&ssl-mode=PREFERRED VERIFY_CA
ssl-mode=DISABLED&ssl-ca={ca} VERIFY_CA
SSLMODE=Verify_Identity&ssl-mode=VERIFY_CA VERIFY_IDENTITY
ssl-ca={ca}&ssl-mode=VERIFY_IDENTITY VERIFY_IDENTITY""".splitlines()


@pytest.fixture
def ca():
    """A file of certificates to trust."""
    return ssl.get_default_verify_paths().cafile or pytest.skip("there is none")


@pytest.mark.parametrize("line", QUERIES)
def test_tls(ca, line):
    query, mode = line.format(ca=ca).split()
    server = config.parse_database_url(f"mysql://h/d?{query}").server
    context = server.get("ssl")
    if context:
        found = context.verify_mode, context.check_hostname
    else:
        found = {name: server[name] for name in server if "ssl" in name}
    assert found == MODES[mode]
