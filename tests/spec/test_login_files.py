"""`fleet init --security`: files that people log in with become `security:`, without secrets."""

import re
from pathlib import Path

import pytest

from fleet.config.load import load, load_security
from fleet.config.spec import Security
from fleet.errors import ConfigError
from tests.support.needs import repository

SECRET = "hunter2-of-the-test"
PEM = "tls.pem"


def read(folder: Path, text: str, name: str = "client.properties", **variables: str) -> Security:
    """The security of such a file; a `__` in a variable's key is a dot."""
    (folder / PEM).write_text("")
    file = folder / name
    file.write_text(text)
    named = {key.replace("__", "."): value for key, value in variables.items()}
    return load_security(file, {}, named).security


JAVA = f"""\
# a comment
bootstrap.servers=broker-1:9093,broker-2:9093
security.protocol=SASL_SSL
sasl.mechanism = SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="ann" password="{SECRET}";
ssl.truststore.type=PEM
ssl.truststore.location={PEM}
acks=all
"""
RDKAFKA = f"""\
security.protocol=sasl_ssl
sasl.mechanisms=OAUTHBEARER
sasl.oauthbearer.method=oidc
sasl.oauthbearer.token.endpoint.url=https://idp/token
sasl.oauthbearer.client.id=fleet
sasl.oauthbearer.client.secret={SECRET}
sasl.oauthbearer.scope=kafka
sasl.oauthbearer.extensions=logicalCluster=lkc-1,identityPoolId=pool-1
https.ca.location={PEM}
"""
CERTIFICATE = f"""\
security.protocol=SSL
ssl.ca.location={PEM}
ssl.certificate.location={PEM}
ssl.key.location={PEM}
ssl.key.password={SECRET}
"""


def test_java(tmp_path):
    """The name is kept, the password is a variable's, PEM stores are files."""
    held = load_security(_file(tmp_path, JAVA), {}, {"sasl.password": "KAFKA_PASSWORD"})
    sasl = held.security.sasl
    assert sasl is not None
    assert (sasl.mechanism, sasl.username, sasl.password_env) == (
        "SCRAM-SHA-512",
        "ann",
        "KAFKA_PASSWORD",
    )
    assert held.security.tls.ca_file == str(tmp_path / PEM)
    assert held.bootstrap == "broker-1:9093,broker-2:9093"
    assert held.left_out == ("acks",)
    assert SECRET not in str(held)


def _file(folder: Path, text: str) -> Path:
    file = folder / "client.properties"
    file.write_text(text)
    return file


def test_librdkafka(tmp_path):
    """Client credentials with everything, and a certificate."""
    found = read(tmp_path, RDKAFKA, sasl__oidc__client_secret="OIDC_SECRET")
    assert found.sasl is not None
    assert found.sasl.oidc is not None
    assert found.sasl.oidc.model_dump(exclude_none=True) == {
        "endpoint": "https://idp/token",
        "client_id": "fleet",
        "client_secret_env": "OIDC_SECRET",
        "header_urlencode": False,
        "scope": "kafka",
        "extensions": {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"},
        "ca_file": str(tmp_path / PEM),
    }
    encoded = read(
        tmp_path,
        RDKAFKA + "sasl.oauthbearer.header.urlencode=true\n",
        sasl__oidc__client_secret="OIDC_SECRET",
    )
    assert encoded.sasl is not None
    assert encoded.sasl.oidc is not None
    assert encoded.sasl.oidc.header_urlencode
    by_certificate = read(tmp_path, CERTIFICATE, tls__key_password="KEY_PASSWORD")
    assert by_certificate.tls.key_password_env == "KEY_PASSWORD"


@pytest.mark.parametrize("key", ["security:\n  ", ""])
def test_yaml(tmp_path, key):
    """The block, with its key or without; a mistake is told with the line of that file."""
    block = "protocol: SASL_SSL\nsasl: {mechanism: PLAIN, username: ann, password: '${P}'}\n"
    if key:
        block = key + block.replace("\n", "\n  ").rstrip() + "\n"
    found = read(tmp_path, block, name="login.yaml")
    assert found.sasl is not None
    assert found.sasl.password_env == "P"
    with pytest.raises(ConfigError, match=rf"login\.yaml:{2 + bool(key)}: .*'PLAN' is not allowed"):
        read(tmp_path, block.replace("PLAIN", "PLAN"), name="login.yaml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(JAVA, "--secret-env sasl.password=KAFKA_PASSWORD", id="password"),
        pytest.param(RDKAFKA, "--secret-env sasl.oidc.client_secret=KAFKA_CLIENT_SEC", id="oidc"),
        pytest.param(CERTIFICATE, "--secret-env tls.key_password=KAFKA_KEY_PASS", id="key"),
        pytest.param("ssl.truststore.location=t.jks\n", "which only Java reads: export", id="jks"),
        pytest.param("sasl.mechanism=AWS_MSK_IAM\n", "Amazon's signer", id="msk"),
        pytest.param("sasl.mechanism=GSSAPI\n", "Kerberos", id="kerberos"),
        *(
            pytest.param(
                f"security.protocol=SSL\n{key}=-----BEGIN X-----\\n{SECRET}\\n-----END X-----\n",
                f"{key} holds PEM text, and fleet.yaml only names files: move it to a file and "
                f"write {instead}=FILE instead of {key}",
                id=key,
            )
            for key, instead in (
                ("ssl.truststore.certificates", "ssl.ca.location"),
                ("ssl.ca.pem", "ssl.ca.location"),
                ("ssl.keystore.certificate.chain", "ssl.certificate.location"),
                ("ssl.certificate.pem", "ssl.certificate.location"),
                ("ssl.keystore.key", "ssl.key.location"),
                ("ssl.key.pem", "ssl.key.location"),
            )
        ),
        pytest.param("security.protocol=SSLX\n", "'SSLX' is not allowed", id="protocol"),
    ],
)
def test_what_is_asked_for_or_refused(tmp_path, text, told):
    """In one sentence, which holds no secret."""
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert told in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("login.conf", "security:\n  protocol: SASL_SSL\n  sasl: {mechanism: PLAIN}\n"),
        ("login.json", '{"protocol": "SSL"}\n'),
        ("client.properties", "# nothing yet\n"),
        ("client.properties", "acks=all\n"),
    ],
)
def test_a_file_of_something_else_is_no_login_without_security(tmp_path, name, text):
    """It was read as if it asked for PLAINTEXT."""
    with pytest.raises(ConfigError, match=r"no key of a client\.properties.*in \.yaml or \.yml"):
        read(tmp_path, text, name=name)


PLAIN = """\
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=a.PlainLoginModule required """


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("username='ann lee' password='p;=x';", "ann lee"),
        ("username=ann password='p username=evil';", "ann"),
        ("password='p\" username=\"evil' username=ann;", "ann"),
        (r'username="a\\"n\\\\n" password="p";', 'a"n\\n'),
        (r"username='\\141nn' password='\\t';", "ann"),
        ("// username=evil\\n username=ann /* username=evil */ password='//';", "ann"),
        ("username='$ConnectionString' password='Endpoint=sb://x/;Key=a==';", "$ConnectionString"),
        ("username=x username=ann-1.b password=p;", "ann-1.b"),
        ("\\\n  username=caf\\u00e9\t\\\n\t password=\\u0022p\\u0022\\u003b", "caf\u00e9"),
        ("username='\\uD83D\\uDE00' password=p;  ", "\U0001f600"),
    ],
)
def test_jaas_is_read_by_its_grammar(tmp_path, options, name):
    """Properties take their escapes first, then the line is a tokenizer's of Java."""
    sasl = read(tmp_path, PLAIN + options, sasl__password="P").sasl
    assert sasl is not None
    assert (sasl.username, sasl.password_env) == (name, "P")


@pytest.mark.parametrize(
    "options",
    [
        f"username=ann password={SECRET}",
        f"username=ann password={SECRET} more;",
        f"username=ann password=1{SECRET};",
        f"username=ann password=p@{SECRET};",
        f"username='ann' password='{SECRET};",
        f"username=; password='{SECRET}';",
        f"username='ann' password='{SECRET}'; b.Module required;",
        f"sometimes username='ann' password='{SECRET}';",
        f"username='\\u12' password='{SECRET}';",
    ],
)
def test_what_is_no_jaas_is_refused_without_a_word_of_it(tmp_path, options):
    """Kafka's own clients refuse it as well; any part of it may be a password's."""
    text = PLAIN.replace("required ", "") if options.startswith("some") else PLAIN
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text + options, sasl__password="P")
    assert SECRET not in str(refused.value)
    assert "ann" not in str(refused.value)
    assert re.search(r"client\.properties: (sasl\.jaas\.config|a \\u) ", str(refused.value))


@pytest.mark.parametrize(
    ("text", "protocol"),
    [
        ("security.protocol:SSL", "SSL"),
        ("security.protocol SSL", "SSL"),
        (" \tsecurity.protocol \t : \f SSL  ", "SSL"),
        ("security\\.protocol = SS\\\r\n    L", "SSL"),
        ("security.protocol=PLAINTEXT\rsecurity.protocol=SSL", "SSL"),
        ("! a=\\\nsecurity.protocol=SSL", "SSL"),
        ("# a=\\\nsecurity.protocol=SSL\n! security.protocol=PLAINTEXT", "SSL"),
        ("security.protocol=S\\u0053\\L", "SSL"),
        ("client.id=\u2028security.protocol=PLAINTEXT\nsecurity.protocol=SSL\\", "SSL"),
        ("client.id=a\\\n# b\nsecurity.protocol=SSL", "SSL"),
        ("client.id=C:\\\\\nsecurity.protocol=SSL", "SSL"),
    ],
)
def test_properties_are_read_by_their_grammar(tmp_path, text, protocol):
    """That of java.util.Properties: separators, escapes, lines that go on, comments, the last."""
    assert read(tmp_path, text).protocol == protocol


def test_what_has_no_setting_is_named(tmp_path):
    """Keys, options of JAAS, and values that are not what the clients here do anyway."""
    text = JAVA.replace(";", " tokenauth=true;") + (
        "ssl.endpoint.identification.algorithm=\nssl.cipher.suites=X\nssl.keystore.type=PEM\n"
        f"sasl.login.callback.handler.class=org.acme.Tokens\n{SECRET}\n{SECRET.upper()}==\n"
    )
    held = load_security(_file(tmp_path, text), {}, {"sasl.password": "P"})
    assert held.left_out == (
        *("a line that is not KEY=VALUE of a client", "acks", "sasl.jaas.config: tokenauth"),
        "sasl.login.callback.handler.class",
        *("ssl.cipher.suites", "ssl.endpoint.identification.algorithm"),
    )


def test_an_address_alone_is_a_login(tmp_path):
    """Of a cluster that asks for none."""
    assert read(tmp_path, "bootstrap.servers=b:9092\n") == Security()


def test_a_variable_for_nothing_is_refused(tmp_path):
    """A typing mistake would leave a secret unnamed."""
    with pytest.raises(ConfigError, match=r"no such secret; it has sasl\.password"):
        read(tmp_path, JAVA, sasl__pasword="P")


def test_the_manuals_blocks_are_logins(tmp_path):
    """Each block of docs/how-to/security.md is read as it stands, and by workers as managers
    write it.
    """
    text = (repository() / "docs/how-to/security.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(cluster:.*?)```", text, re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        file = tmp_path / "fleet.yaml"
        file.write_text(block)
        security = load(file, {}).cluster.security
        assert security != Security()
        assert Security.model_validate_json(security.model_dump_json()) == security
