"""Which cluster an address means, and which ones are too open to be used."""

from __future__ import annotations

import os

import pytest

from prefetchd.wire.cluster_address import EVERYWHERE, check_security, is_loopback, resolve_address
from prefetchd.wire.errors import CallerError
from tests.conftest import NEEDS_ROOT

SECURE = {"RAY_AUTH_MODE": "token", "RAY_USE_TLS": "1"}


@pytest.fixture
def nothing_in_tmp(monkeypatch, tmp_path):
    """A cluster that somebody runs on this machine is none of the test's."""
    real = open

    def opened(path, *arguments, **options):
        if str(path).startswith("/tmp/ray/"):
            path = tmp_path / "there is none"
        return real(path, *arguments, **options)

    monkeypatch.setattr("builtins.open", opened)


def note_cluster(directory, text: str) -> str:
    """What `ray start` leaves below the directory."""
    (directory / "ray").mkdir(parents=True)
    (directory / "ray" / "ray_current_cluster").write_text(text)
    return str(directory)


# --- which cluster ---


@pytest.mark.parametrize("address", ["head:6379", "10.0.0.1:6379", "[fd00::1]:6379", "127.0.0.1:1"])
def test_an_address_is_taken_as_it_is(address):
    assert resolve_address(address, {"RAY_ADDRESS": "other:1"}) == address


@pytest.mark.parametrize(
    "address",
    ["", "head", "head:", ":6379", "head:port", "ray://head:10001", "http://head:8265", "6379", "local", "head:-1"],
)
def test_what_is_no_address_is_the_caller_s_error(address):
    with pytest.raises(CallerError, match="allowed: 'auto', or HOST:PORT") as raised:
        resolve_address(address, {})
    assert repr(address) in str(raised.value)


@pytest.mark.parametrize("address", ["head:0", "head:65536", "head:99999999", "head:\u00b2"])
def test_a_port_that_cannot_be_is_the_caller_s_error(address):
    """It would come out where the head is asked, as an error that is none of the caller's."""
    with pytest.raises(CallerError, match="HOST:PORT"):
        resolve_address(address, {})


def test_auto_means_the_variable(tmp_path):
    variables = {"RAY_ADDRESS": "head:6379", "RAY_TMPDIR": note_cluster(tmp_path, "other:1")}
    assert resolve_address("auto", variables) == "head:6379"


def test_a_variable_that_is_no_address_is_named_as_it_stands():
    with pytest.raises(CallerError, match="ray://head:10001"):
        resolve_address("auto", {"RAY_ADDRESS": "ray://head:10001"})


def test_a_variable_that_says_auto_means_the_cluster_of_this_machine(tmp_path):
    """As it does to Ray."""
    variables = {"RAY_ADDRESS": "auto", "RAY_TMPDIR": note_cluster(tmp_path, "here:6379")}
    assert resolve_address("auto", variables) == "here:6379"


def test_without_a_variable_auto_means_the_cluster_of_this_machine(tmp_path):
    for name in ("RAY_TMPDIR", "TMPDIR"):
        place = note_cluster(tmp_path / name, f"{name}:6379\n")
        assert resolve_address("auto", {name: place, "RAY_ADDRESS": ""}) == f"{name}:6379"


def test_ray_s_own_directory_comes_before_the_temporary_one(tmp_path):
    one, other = note_cluster(tmp_path / "one", "one:1"), note_cluster(tmp_path / "other", "other:2")
    assert resolve_address("auto", {"RAY_TMPDIR": one, "TMPDIR": other}) == "one:1"
    (tmp_path / "one" / "ray" / "ray_current_cluster").unlink()
    assert resolve_address("auto", {"RAY_TMPDIR": one, "TMPDIR": other}) == "other:2"


def test_where_no_cluster_was_started_that_is_said_with_what_to_set(nothing_in_tmp, tmp_path):
    with pytest.raises(CallerError, match="no cluster was started on this machine") as raised:
        resolve_address("auto", {"RAY_TMPDIR": str(tmp_path)})
    for named in (str(tmp_path / "ray" / "ray_current_cluster"), "HOST:PORT", "$RAY_ADDRESS"):
        assert named in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"x" * 1000], ids=["empty", "no text", "long"])
def test_a_file_that_names_no_cluster_is_the_caller_s_error(tmp_path, content):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_bytes(content)
    with pytest.raises(CallerError):
        resolve_address("auto", {"RAY_TMPDIR": str(tmp_path)})


# --- whether it may be used ---


@pytest.mark.parametrize("tls", ["1", "true", "True"])
@pytest.mark.parametrize("mode", ["token", "TOKEN"])
def test_a_cluster_that_asks_for_a_token_and_encrypts_may_be_used(mode, tls):
    assert check_security("head:6379", {"RAY_AUTH_MODE": mode, "RAY_USE_TLS": tls}, insecure=False) == ""


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        ({}, ["RAY_AUTH_MODE=token", "RAY_USE_TLS=1"]),
        ({"RAY_USE_TLS": "1"}, ["RAY_AUTH_MODE=token"]),
        ({"RAY_AUTH_MODE": "disabled", "RAY_USE_TLS": "1"}, ["RAY_AUTH_MODE=token"]),
        ({"RAY_AUTH_MODE": "token"}, ["RAY_USE_TLS=1"]),
        ({"RAY_AUTH_MODE": "token", "RAY_USE_TLS": "0"}, ["RAY_USE_TLS=1"]),
        ({"RAY_AUTH_MODE": "token", "RAY_USE_TLS": ""}, ["RAY_USE_TLS=1"]),
    ],
    ids=repr,
)
def test_one_that_lacks_either_may_not_unless_it_is_said_to_be_all_right(variables, missing):
    with pytest.raises(CallerError, match="ray_insecure = true") as raised:
        check_security("head:6379", variables, insecure=False)
    warning = check_security("head:6379", variables, insecure=True)
    for text in (str(raised.value), warning):
        assert "head:6379" in text
        assert [each for each in ("RAY_AUTH_MODE=token", "RAY_USE_TLS=1") if each in text] == missing
    assert "ray_insecure" not in warning, "it is set by now"


def test_a_secure_one_gives_no_warning_where_insecure_ones_are_allowed():
    assert check_security("head:6379", SECURE, insecure=True) == ""


def test_one_that_no_other_machine_reaches_may_be_used_as_it_is():
    assert check_security("127.0.0.1:6379", {}, insecure=False) == ""


def test_what_is_reached_everywhere_is_not_this_machine_s_alone():
    assert not is_loopback(EVERYWHERE)
    with pytest.raises(CallerError):
        check_security(EVERYWHERE, {}, insecure=False)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.9.10:6379", "localhost:6379", "[::1]:6379"])
def test_loopback_addresses_are_reached_from_this_machine_alone(address):
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["10.0.0.1:6379", "head:6379", "0.0.0.0:6379", "[::]:6379", "localhost.evil.org:1", "127.0.0.1.nip.io:1"]
)
def test_others_may_be_reached_from_elsewhere(address):
    assert not is_loopback(address)


@pytest.mark.skipif(os.geteuid() != 0, reason=NEEDS_ROOT)
def test_a_cluster_that_another_user_has_noted_is_not_believed(nothing_in_tmp, tmp_path):
    variables = {"RAY_TMPDIR": note_cluster(tmp_path, "127.0.0.1:6379")}
    assert resolve_address("auto", variables) == "127.0.0.1:6379"
    os.chown(tmp_path / "ray" / "ray_current_cluster", 12345, 12345)
    with pytest.raises(CallerError, match="no cluster was started"):
        resolve_address("auto", variables)
