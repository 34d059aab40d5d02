"""The settings: what each takes, and how a refusal reads."""

import re

import pytest

import config
from app import create_app
from validators import BOUNDED_FIELDS

NUMBER = "must be a whole number from 1 to 2147483647"
REFUSED = [
    ("APPID", ["a b", "x" * 65], "must match [A-Za-z0-9._-]{1,64}"),
    ("USER_PROFILE_FIELDS", ["name,age"], "'name' is none of full-name, contact-email, "),
    ("USER_PROFILE_FIELDS", ["dob,", ",", " "], "'' is none of "),
    ("USER_PROFILE_FIELDS", ["dob,dob"], "'dob' is there twice"),
    ("PAGE_SIZE", ["0", "ten", "-1", "１", "2147483648", 0, True, 1.5], NUMBER),
    ("MAXIMUM_POST_DATA_LENGTH", ["1e3", "9" * 10], NUMBER),
    ("MAXIMUM_POST_DATA_LENGTH", ["40"], "is too short for a body of the configured fields"),
    ("MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH", ["0"], NUMBER),
    ("MINIMUM_PROFILE_COMPANY_NAME_LENGTH", ["x"], NUMBER.replace("1", "0", 1)),
    ("MINIMUM_PROFILE_FULL_NAME_LENGTH", ["51"], "is over MAXIMUM_PROFILE_FULL_NAME_LENGTH=50"),
    ("WEB_CONCURRENCY", ["0", "-1", "x", "1_0", "2.5", " ", "1001"], f"{NUMBER[:-10]}1000"),
]
REFUSED_URLS = {
    "must be sqlite:///… or mysql://…": """
        postgres://u:secret@h/d u:secret@tcp(h)/d u:secret host=h;password=secret profiles.db""",
    "is not a URL; percent-encode what is special in a password": """
        //u:secret%40h/d mysql://u:se/cret@h/d mysql://u:secret@h:x/d mysql://u:secret@h:65536/d
        mysql://u:se?cret@h/d mysql://u:sec\x7fret@h/d mysql://u:s@ecret@h:x/d mysql://u:secret
        mysql://u:se://cret@h mysql://h?x=u:secret@h/d mysql://h/d?a=u:secret%40h mysql://h..x/d
        mysql://u:a@secret/x@h/d mysql://;user=u:;password=secret mysql://u:sec\udcffret@h/d
        mysql://u:sec%FFret@h/d mysql://u%FF:secret@h/d mysql://h/d%FF sqlite:///\udcff.db
        sqlite:///%FF.db sqlite://u:secret""",
    "must name a host, a port over 0 or none, and a database": f"""
        mysql://u:secret@h mysql://u:secret@h:0/d mysql://h#secret mysql://h/d#secret mysql:///d
        mysql://h/d/ mysql://h/d%20 mysql://h/d%00 mysql://h/%F0%9F%98%80 mysql://h/{"d" * 65}""",
    "ssl-mode is none of DISABLED, PREFERRED, REQUIRED, VERIFY_CA, VERIFY_IDENTITY": """
        mysql://h/d?ssl-mode=secret""",
    "ssl-ca is no file of certificates": f"""
        mysql://h/d?SSL-mode=VERIFY_CA&ssl-ca=a%00b mysql://h/d?sslmode=VERIFY_CA&ssl-ca=/secret
        mysql://h/d?sslmode=VERIFY_CA&ssl-ca={__file__}""",
    "must name a file: sqlite:///profiles.db, with %3F for ? and %23 for #": """
        sqlite:// sqlite:x.db sqlite:/x.db sqlite://profiles.db sqlite:/// sqlite:///folder/
        sqlite:///:memory: sqlite:///a%00b.db sqlite:///a#b.db sqlite:///a?b.db sqlite:///a.db?""",
}


def refusal(name, value):
    """The line that the start ends with."""
    with pytest.raises(config.SettingError) as caught:
        create_app({name: value})
    return str(caught.value)


@pytest.mark.parametrize(("name", "values", "reason"), REFUSED)
def test_refused(name, values, reason):
    for value in values:
        assert refusal(name, value).startswith(f"{name}={value}: {reason}")


def test_a_refusal_is_one_line():
    assert refusal("PAGE_SIZE", "10\n") == f"PAGE_SIZE='10\\n': {NUMBER}"
    line = refusal("DATABASE_URL", "mysql://u:sec\nret@h/d")
    assert line.startswith("DATABASE_URL=mysql://***: is not a URL")


@pytest.mark.parametrize("reason", REFUSED_URLS)
def test_a_refused_database_url_shows_its_scheme_alone(reason):
    for url in REFUSED_URLS[reason].split():
        scheme = re.match("(mysql|sqlite|postgres)://|", url)[0]
        assert refusal("DATABASE_URL", url) == f"DATABASE_URL={scheme}***: {reason}"


def test_the_start_ends_with_the_line(serve, tmp_path):
    service = serve(f"sqlite:///{tmp_path}/x.db", wait=False, PAGE_SIZE="ten")
    line = f"Error: PAGE_SIZE=ten: {NUMBER}\n"
    assert service.process.wait(20) != 0
    assert service.log() == line
    done = service.flask("init-db")
    assert (done.returncode, done.stderr) == (1, line)


def test_the_environment_and_its_overrides(make_app, monkeypatch):
    monkeypatch.setenv("PAGE_SIZE", "7")
    assert make_app().config["SETTINGS"].page_size == 7
    app = make_app(PAGE_SIZE=8, TESTING=True, USER_PROFILE_FIELDS="website, dob ,full-name")
    assert (app.config["SETTINGS"].page_size, app.testing) == (8, True)
    assert app.config["SETTINGS"].user_profile_fields == ("website", "dob", "full-name")


def test_defaults():
    given = {"PAGE_SIZE": "", "APPID": ""}
    assert config.load(given) == config.Settings(
        appid="default",
        database_url=config.DatabaseURL("sqlite", "profiles.db"),
        user_profile_fields=("contact-email", "full-name"),
        lengths=((1, 50),) * len(BOUNDED_FIELDS),
        page_size=10,
        maximum_post_data_length=65536,
        workers=min(config.CORES, 4),
        example_body={"contact-email": "ada@example.com", "full-name": "Ada King"},
    )


def test_database_urls():
    for url, expected in {
        "sqlite:////var/lib/a%20b.db": {"name": "/var/lib/a b.db"},
        "sqlite:///data/profiles.db": {"name": "data/profiles.db"},
        "sqlite:///a%3Fb%23c.db": {"name": "a?b#c.db"},
        "mysql://u@h/d?reconnect=true": {"host": "h", "user": "u", "name": "d", "port": 3306},
        "mysql://u:p%40s%2Fs@h:3307/d": {"password": b"p@s/s", "port": 3307},
        "mysql2://u%2B:p@h/d?charset=utf8mb4": {"user": "u+", "engine": "mysql"},
        "mysql+pymysql://u:p@[::1]/d": {"host": "::1"},
        "mariadb://u:p@h/d%2Dname": {"name": "d-name"},
        "mysql://u:p@h/d?ssl_mode=disabled": {"ssl_disabled": True},
    }.items():
        parsed = config.parse_database_url(url)
        parts = {"engine": parsed.engine, "name": parsed.name, **parsed.server}
        assert parts.items() >= expected.items()
        assert "p@s/s" not in repr(parsed)


def test_ssl_modes():
    def options(mode):
        server = config.parse_database_url(f"mysql://h/d?ssl-mode={mode}").server
        return {name: value for name, value in server.items() if name.startswith("ssl")}

    assert (options("DISABLED"), options("PREFERRED")) == ({"ssl_disabled": True}, {})
    contexts = [options(mode)["ssl"] for mode in ("REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")]
    checks = [(int(context.verify_mode), context.check_hostname) for context in contexts]
    assert checks == [(0, False), (2, False), (2, True)]
