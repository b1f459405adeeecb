"""Redaction: values of secret keys are masked, and all other text stays as it is."""

import json
from random import Random
from typing import Any

from graphile_worker.contrib.dashboard._redaction import Redactor
from graphile_worker.contrib.dashboard._settings import DEFAULT_REDACT

redactor = Redactor(DEFAULT_REDACT)


def test_values_are_masked_at_any_depth():
    for text, masked in [
        ('{"password":"x"}', '{"password":"•••"}'),
        ('{"a":[{"b":{"Token":{"x":[1,"]"]}}}],"c":1}', '{"a":[{"b":{"Token":"•••"}}],"c":1}'),
        ('{"token" : null , "n": 1e2}', '{"token" : "•••" , "n": 1e2}'),
        ('{"pass\\u0077ord": "x"}', '{"pass\\u0077ord": "•••"}'),
        ('{"a": "token", "b": ["token", "x"]}', '{"a": "token", "b": ["token", "x"]}'),
        ('"token"', '"token"'),
        ('{"tok\\"en": 1}', '{"tok\\"en": 1}'),
        ('{"passwords":1,"password1":2}', '{"passwords":"•••","password1":"•••"}'),
        ('{"PASSWORD_HASH":1,"db_pass":2}', '{"PASSWORD_HASH":"•••","db_pass":"•••"}'),
        ('{"passenger":1,"encompassing":2}', '{"passenger":1,"encompassing":2}'),
    ]:
        assert redactor.redact_json(text).text == masked


def test_numbers_and_order_stay_as_they_are():
    text = '{"n": 12345678901234567890.10e+01,  "b": -0.0,"a":1}'

    assert redactor.redact_json(text).text == text


def test_json_that_is_cut_off_is_masked_up_to_its_end():
    text = '{"a": 1, "token": {"x": "a secret", "y": ["a secret"]}, "password": "a secret"}'
    for length in range(len(text)):
        assert "a s" not in redactor.redact_json(text[:length]).text


def test_values_in_text_are_masked():
    for text, masked in [
        ("Error: {'password': 'a b', 'n': 1}", "Error: {'password': •••, 'n': 1}"),
        ('body: {\\"token\\": \\"abc\\"}', 'body: {\\"token\\": •••}'),
        ("GET /?api_key=abc&x=1", "GET /?api_key=•••&x=1"),
        ('{"token": {"a": [1]}, "b": 2}', '{"token": •••, "b": 2}'),
        ("the token was wrong", "the token was wrong"),
        ("{'token': b'abc', 'n': 1}", "{'token': •••, 'n': 1}"),
        ("{'token': ['a]', (1, '')], 'n': 1}", "{'token': •••, 'n': 1}"),
        ("{'card': ('4111', 'x'), 'n': 1}", "{'card': •••, 'n': 1}"),
        ("User(password=SecretBytes(b'x'), n=1)", "User(password=•••, n=1)"),
        ("authorization=Bearer eyJabc x=1", "authorization=••• x=1"),
        ("Authorization: Bearer eyJ.abc\nHost: x", "Authorization: •••\nHost: x"),
        ('curl -H "Authorization: Basic YTpi" x', 'curl -H "Authorization: •••" x'),
        ("password: a b, n: 1", "password: •••, n: 1"),
        ("{token: 'abc', n: 1}", "{token: •••, n: 1}"),
        ('{"token"=>"abc", "n"=>1}', '{"token"=>•••, "n"=>1}'),
        ('host=x password = "a b" n=1', "host=x password = ••• n=1"),
        ("postgres://ann:p:w@x@db:5432/x", "postgres://ann:•••@db:5432/x"),
        ("http://localhost:80/a@b", "http://localhost:80/a@b"),
        ("Key (email, token)=(a, b) exists", "Key (email, token)=••• exists"),
        ("InvalidTokenError: signature expired", "InvalidTokenError: signature expired"),
        ("if token == expected: return", "if token == expected: return"),
    ]:
        assert redactor.redact_text(text) == masked


def test_values_in_strings_of_json_are_masked():
    for document, masked in [
        ({"body": '{"password":"x","n":1}'}, {"body": '{"password":•••,"n":1}'}),
        ({"url": "https://u:pw@h/?token=a&n=1"}, {"url": "https://u:•••@h/?token=•••&n=1"}),
        (["Authorization: Bearer x"], ["Authorization: •••"]),
    ]:
        redacted = redactor.redact_json(json.dumps(document))
        assert json.loads(redacted.text) == masked
        assert redacted.is_redacted
    assert redactor.redact_json(r'["\ud800 token=x é"]').text == r'["\ud800 token=••• é"]'
    text = json.dumps({"n": "é: 1", "body": json.dumps({"password": "a secret", "n": 1})})
    for length in range(len(text)):
        assert "a s" not in redactor.redact_json(text[:length]).text


def test_the_time_grows_with_the_length_of_the_text():
    parts = ("a", " ", "\\", '"', "'", '\\"', "(", "[", "://", "://:", "token=", "'token': ")
    for text in (f"{prefix}{part * 40_000}" for prefix in ("", "token=(") for part in parts):
        redactor.redact_text(text)
        redactor.redact_json(json.dumps([text]))


def test_no_patterns_mask_nothing():
    assert Redactor(()).redact_json('{"token": 1}').text == '{"token": 1}'


def test_any_json_stays_json_with_only_the_secret_values_changed():
    random = Random(7)

    def draw(depth: int) -> Any:
        kind = random.randrange(6 if depth else 4)
        match kind:
            case 0:
                return random.choice([None, True, False])
            case 1:
                return random.randrange(-(10**20), 10**20)
            case 2:
                return random.random() * 1e10
            case 3:
                return "".join(random.choices('a"\\\n{}[]:,é', k=random.randrange(6)))
            case 4:
                return [draw(depth - 1) for _ in range(random.randrange(4))]
            case _:
                return {draw_key(): draw(depth - 1) for _ in range(random.randrange(4))}

    def draw_key() -> str:
        return "".join(random.choices('ab"\\:,{é', k=random.randrange(4)))

    for _ in range(300):
        document = {"a": [draw(3), {"my_password": [draw(3), "s3cr3t"], "b": draw(3)}, draw(3)]}
        redacted = json.loads(redactor.redact_json(json.dumps(document)).text)
        document["a"][1]["my_password"] = "•••"
        assert redacted == document


def test_any_text_is_read():
    random = Random(8)
    for _ in range(500):
        text = "".join(random.choices("\"'\\{}[]:,=&token \n\ud800é1", k=random.randrange(60)))
        redactor.redact_json(text)
        redactor.redact_text(text)
