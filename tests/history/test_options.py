"""Options of `consumer_offsets`: what they mean, and a sentence for each mistake."""

import pytest

from fleet.history.read_options import EARLIEST, LATEST, read_options

SERVERS = {"bootstrap.servers": "localhost:9092"}


def test_defaults():
    """Everything, from the beginning, committed records only."""
    read = read_options(SERVERS)
    assert read.login == {"bootstrap.servers": {"value": "localhost:9092"}}
    assert (read.starting, read.ending) == (EARLIEST, LATEST)
    assert (read.groups, read.pattern, read.tasks, read.most) == (None, None, None, None)
    assert (read.topic, read.isolation) == ("__consumer_offsets", "read_committed")


def test_names_are_read_in_any_case_as_spark_sends_them():
    """Spark lowers the case of options on some ways."""
    read = read_options({**SERVERS, "startingoffsets": "LATEST", "MAXOFFSETSPERTRIGGER": "7"})
    assert (read.starting, read.most) == (LATEST, 7)


def test_offsets_in_json():
    """By partition, flat or under the topic's name; -2 and -1 as in Spark's own source."""
    flat = read_options({**SERVERS, "startingOffsets": '{"0": 12, "3": -2}'})
    nested = read_options(
        {**SERVERS, "startingOffsets": '{"__consumer_offsets": {"0": 12, "3": -2}}'}
    )
    assert flat.starting == nested.starting == {0: 12, 3: EARLIEST}


def test_client_options_and_references():
    """kafka.… is what is no secret; a secret is a place where it is found."""
    read = read_options(
        {
            "kafka.bootstrap.servers": "b:1",
            "kafka.security.protocol": "SASL_SSL",
            "login": '{"sasl.password": {"env": "PASSWORD"}}',
        }
    )
    assert read.login == {
        "bootstrap.servers": {"value": "b:1"},
        "security.protocol": {"value": "SASL_SSL"},
        "sasl.password": {"env": "PASSWORD"},
    }


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param({}, "bootstrap.servers is missing", id="no-servers"),
        pytest.param({**SERVERS, "subscribe": "x"}, "unknown option subscribe", id="unknown"),
        pytest.param(
            {**SERVERS, "startingOffsets": "noon"}, "'noon' is not earliest, latest", id="word"
        ),
        pytest.param({**SERVERS, "endingOffsets": '{"a": 1}'}, "endingOffsets", id="partition"),
        pytest.param({**SERVERS, "endingOffsets": '{"0": -3}'}, "-2: earliest", id="offset"),
        pytest.param({**SERVERS, "groups": "a,b"}, "'a,b' is not a list in JSON", id="groups"),
        pytest.param({**SERVERS, "groups": "[1]"}, "not a list of names", id="group-names"),
        pytest.param({**SERVERS, "groupsPattern": "("}, "not a regular expression", id="pattern"),
        pytest.param(
            {**SERVERS, "tasks": "0"}, "tasks: '0' is not a number of 1 or more", id="tasks"
        ),
        pytest.param({**SERVERS, "isolation.level": "x"}, "read_committed or", id="isolation"),
        pytest.param(
            {**SERVERS, "readTimeout": "soon"}, "is not between 0 and 3600 seconds", id="timeout"
        ),
        pytest.param({**SERVERS, "login": '{"a": "b"}'}, "option login", id="login"),
        pytest.param({**SERVERS, "leaderEpochs": '{"a": 1}'}, "if none is known", id="epochs"),
    ],
)
def test_mistakes_are_refused_in_words(options, told):
    """The option, its value, what is allowed."""
    with pytest.raises(ValueError, match="option") as refused:
        read_options(options)
    assert told in str(refused.value)


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "ssl.key.pem"])
def test_a_secret_is_no_option(name):
    """It would stand in plans, logs and Spark's UI; its value is not repeated."""
    with pytest.raises(ValueError, match="is a secret, and plans and logs show options") as refused:
        read_options({**SERVERS, f"kafka.{name}": "hunter2"})
    assert "hunter2" not in str(refused.value)
