"""The settings: what each takes, and how a refusal reads."""

import re

import pytest

import config
from app import create_app
from validators import BOUNDED_FIELDS

REFUSED = [
    ("APPID", "a b", "APPID=a b: must match [A-Za-z0-9._-]{1,64}"),
    ("APPID", "x" * 65, f"APPID={'x' * 65}: must match [A-Za-z0-9._-]{{1,64}}"),
    (
        "USER_PROFILE_FIELDS",
        "full-name,age",
        "USER_PROFILE_FIELDS=full-name,age: 'age' is none of full-name, contact-email,",
    ),
    ("USER_PROFILE_FIELDS", "dob,dob", "USER_PROFILE_FIELDS=dob,dob: 'dob' is there twice"),
    ("USER_PROFILE_FIELDS", "dob,", "USER_PROFILE_FIELDS=dob,: '' is none of"),
    (
        "USER_PROFILE_FIELDS",
        "fullName",
        "USER_PROFILE_FIELDS=fullName: 'fullName' is none of",
    ),
    ("PAGE_SIZE", "0", "PAGE_SIZE=0: must be a whole number from 1 to 2147483647"),
    ("PAGE_SIZE", "ten", "PAGE_SIZE=ten: must be a whole number"),
    ("PAGE_SIZE", "10\n", "PAGE_SIZE='10\\n': must be a whole number"),
    ("PAGE_SIZE", "-1", "PAGE_SIZE=-1: must be a whole number"),
    ("PAGE_SIZE", "１", "PAGE_SIZE=１: must be a whole number"),
    ("MAXIMUM_POST_DATA_LENGTH", "1e3", "MAXIMUM_POST_DATA_LENGTH=1e3: must be a whole number"),
    (
        "MAXIMUM_POST_DATA_LENGTH",
        "9999999999",
        "MAXIMUM_POST_DATA_LENGTH=9999999999: must be a whole",
    ),
    (
        "MINIMUM_PROFILE_FULL_NAME_LENGTH",
        "51",
        "MINIMUM_PROFILE_FULL_NAME_LENGTH=51: is over MAXIMUM_PROFILE_FULL_NAME_LENGTH=50",
    ),
    ("MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH", "0", "MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH=0: must be"),
    *(
        ("WEB_CONCURRENCY", value, f"WEB_CONCURRENCY={value}: must be a whole number from 1 to")
        for value in ("0", "-1", "x", "2.5", " ")
    ),
    ("MINIMUM_PROFILE_COMPANY_NAME_LENGTH", "x", "MINIMUM_PROFILE_COMPANY_NAME_LENGTH=x: must be"),
    ("DATABASE_URL", "postgres://u:secret@h/d", "DATABASE_URL=postgres://***@h/d: must be"),
    ("DATABASE_URL", "u:secret@tcp(h)/d", "DATABASE_URL=***@tcp(h)/d: must be"),
    ("DATABASE_URL", "mysql://u:se/cret@h/d", "DATABASE_URL=mysql://***@h/d: is not a URL"),
    ("DATABASE_URL", "mysql://u:secret@h", "DATABASE_URL=mysql://***@h: must name a host and"),
    ("DATABASE_URL", "mysql://u:secret@h:x/d", "DATABASE_URL=mysql://***@h:x/d: is not a URL"),
    ("DATABASE_URL", "mysql://u:se?cret@h/d", "DATABASE_URL=mysql://***@h/d: is not a URL"),
    ("DATABASE_URL", "mysql://u:sec\nret@h:x/d", "DATABASE_URL=mysql://***@h:x/d: is not a URL"),
    ("DATABASE_URL", "mysql://u:s@ecret@h:x/d", "DATABASE_URL=mysql://***@h:x/d: is not a URL"),
    ("DATABASE_URL", "mysql://u:se://cret@h", "DATABASE_URL=mysql://***@h: is not a URL"),
    ("DATABASE_URL", "mysql://u:secret", "DATABASE_URL=mysql://***: is not a URL"),
    ("DATABASE_URL", "u:secret", "DATABASE_URL=***: must be sqlite:///… or mysql://…"),
    ("DATABASE_URL", "mysql://h?x=u:secret@h/d", "DATABASE_URL=mysql://***@h/d: is not a URL"),
    ("DATABASE_URL", "mysql://u:a@secret/x@h/d", "DATABASE_URL=mysql://***@h/d: is not a URL"),
    ("DATABASE_URL", "mysql://h/d?a=u:secret@h", "DATABASE_URL=mysql://***@h: is not a URL"),
    ("DATABASE_URL", "mysql://h#secret", "DATABASE_URL=mysql://***: must name a host and"),
    ("DATABASE_URL", "mysql://;user=u:;password=secret", "DATABASE_URL=mysql://***: is not"),
    ("DATABASE_URL", "mysql://u:sec\udcffret@h/d", "DATABASE_URL=mysql://***@h/d: is not a URL"),
    ("DATABASE_URL", "mysql://u\udcff:secret@h/d", "DATABASE_URL=mysql://***@h/d: is not a URL"),
    ("DATABASE_URL", "mysql://u:1/a?ssl-mode=secret%40h/d", "DATABASE_URL=mysql://***: is not a"),
    ("DATABASE_URL", "mysql://h/d?ssl-mode=x;p=secret", "DATABASE_URL=mysql://h/d: ssl-mode is"),
    ("DATABASE_URL", "//u:secret%40h/d", "DATABASE_URL=***: is not a URL"),
    ("DATABASE_URL", "host=h password=secret", "DATABASE_URL=***: must be sqlite"),
    ("DATABASE_URL", "sqlite://u:secret", "DATABASE_URL=sqlite://***: is not a URL"),
    ("DATABASE_URL", "mysql://h..x/d", "DATABASE_URL=mysql://h..x/d: is not a URL"),
    ("DATABASE_URL", "mysql://h/d?SSL-mode=VERIFY_CA&ssl-ca=a%00b", "DATABASE_URL='…ssl-ca=a"),
    ("DATABASE_URL", "mysql:///d", "DATABASE_URL=mysql:///d: must name a host and a database"),
    ("DATABASE_URL", "mysql://h/d?ssl-mode=maybe", "DATABASE_URL=mysql://h/d: ssl-mode is none of"),
    ("DATABASE_URL", "mysql://h/d?sslmode=VERIFY_CA&ssl-ca=/x", "DATABASE_URL=…ssl-ca=/x: is no"),
    ("DATABASE_URL", f"mysql://h/d?sslmode=VERIFY_CA&ssl-ca={__file__}", "DATABASE_URL=…ssl-ca="),
    ("DATABASE_URL", "profiles.db", "DATABASE_URL=profiles.db: must be sqlite:///… or mysql://…"),
    ("DATABASE_URL", "sqlite://", "DATABASE_URL=sqlite://: must name a file"),
    ("DATABASE_URL", "sqlite:x.db", "DATABASE_URL=***: must name a file: sqlite:///profiles.db"),
    ("DATABASE_URL", "sqlite:/x.db", "DATABASE_URL=***: must name a file: sqlite:///profiles.db"),
    ("DATABASE_URL", "sqlite://profiles.db", "DATABASE_URL=sqlite://profiles.db: must name a file"),
    ("DATABASE_URL", "sqlite:///a%00b.db", "DATABASE_URL=sqlite:///a%00b.db: must name a file"),
    ("DATABASE_URL", "sqlite:///:memory:", "DATABASE_URL=sqlite:///:memory:: must name a file"),
]


@pytest.mark.parametrize(("name", "value", "line"), REFUSED)
def test_refused(name, value, line):
    with pytest.raises(config.SettingError) as caught:
        create_app({name: value})
    assert str(caught.value).startswith(line)
    assert len(str(caught.value).splitlines()) == 1
    if name == "DATABASE_URL":
        assert not {"u:", "se", "cret", "secret"} & set(re.split("[^a-z:]", str(caught.value)))


def test_the_start_ends_with_the_line(serve, tmp_path):
    service = serve(f"sqlite:///{tmp_path}/x.db", wait=False, PAGE_SIZE="ten")
    line = "PAGE_SIZE=ten: must be a whole number from 1 to 2147483647"
    assert service.process.wait(20) != 0
    assert service.log().strip() == f"Error: {line}"
    done = service.flask("init-db")
    assert (done.returncode, done.stderr) == (1, f"Error: {line}\n")


@pytest.mark.parametrize("value", [0, True, 1.5, "0"])
def test_overrides_are_checked_like_the_environment(value):
    with pytest.raises(config.SettingError, match=f"^PAGE_SIZE={value}: "):
        create_app({"PAGE_SIZE": value})


def test_the_environment_and_its_overrides(make_app, monkeypatch):
    monkeypatch.setenv("PAGE_SIZE", "7")
    assert make_app().config["SETTINGS"].page_size == 7
    app = make_app(PAGE_SIZE=8, TESTING=True)
    assert (app.config["SETTINGS"].page_size, app.testing) == (8, True)


def test_defaults():
    settings = config.load({"PAGE_SIZE": "", "APPID": ""})
    assert settings == config.Settings(
        appid="default",
        database_url=config.DatabaseURL("sqlite", "profiles.db"),
        user_profile_fields=("contact-email", "full-name"),
        lengths=((1, 50),) * len(BOUNDED_FIELDS),
        page_size=10,
        maximum_post_data_length=65536,
        workers=min(config.CORES, 4),
    )


def test_fields_keep_their_order_and_lose_their_spaces():
    settings = config.load({"USER_PROFILE_FIELDS": "website, dob ,full-name"})
    assert settings.user_profile_fields == ("website", "dob", "full-name")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:////var/lib/a%20b.db", {"name": "/var/lib/a b.db"}),
        ("sqlite:///data/profiles.db", {"name": "data/profiles.db"}),
        ("mysql://u@h/d?reconnect=true", {"host": "h", "user": "u", "name": "d", "port": 3306}),
        ("mysql://u:p%40s%2Fs@h:3307/d", {"password": b"p@s/s", "port": 3307}),
        ("mysql2://u%2B:p@h/d?charset=utf8mb4", {"user": "u+", "engine": "mysql"}),
        ("mysql+pymysql://u:p@[::1]/d", {"host": "::1"}),
        ("mariadb://u:p@h/d%2Dname", {"name": "d-name"}),
        ("mysql://u:p@h/d?ssl_mode=disabled", {"ssl_disabled": True}),
    ],
)
def test_database_urls(url, expected):
    parsed = config.database_url(url)
    parts = {"engine": parsed.engine, "name": parsed.name, **parsed.server}
    assert {name: parts[name] for name in expected} == expected
    assert "p@s/s" not in repr(parsed)


def test_ssl_modes():
    def options(mode):
        server = config.database_url(f"mysql://h/d?ssl-mode={mode}").server
        return {name: value for name, value in server.items() if name.startswith("ssl")}

    assert options("DISABLED") == {"ssl_disabled": True}
    assert options("PREFERRED") == {}
    contexts = {mode: options(mode)["ssl"] for mode in ("REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")}
    checks = {m: (int(c.verify_mode), c.check_hostname) for m, c in contexts.items()}
    assert checks == {
        "REQUIRED": (0, False),
        "VERIFY_CA": (2, False),
        "VERIFY_IDENTITY": (2, True),
    }
