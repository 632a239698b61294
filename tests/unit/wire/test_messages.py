"""The table of messages: numbers that never change, and both sides may be older or newer than the other."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import given

from prefetchd.wire import messages
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import MAX_PACKET_BYTES, decode, encode
from prefetchd.wire.messages import MESSAGE_TYPES, Hello, LoadFailed, Message, Output, Program, Published, Ready
from tests.budgets import tries
from tests.unit.wire.golden.examples import BARE_MESSAGES, MESSAGES

# A number that was given once is never given to another message: lines here are added, not changed.
NUMBERS = {
    1: "Hello",
    2: "Welcome",
    3: "Refused",
    4: "Deciding",
    5: "Introduce",
    10: "Program",
    11: "PlaceCursor",
    12: "CloseCursor",
    13: "Consumed",
    14: "GiveBack",
    15: "Goodbye",
    16: "Waiting",
    17: "Assume",
    18: "ShardStart",
    19: "Forked",
    20: "RingOpened",
    21: "Published",
    22: "BatchFailed",
    23: "StreamFailed",
    24: "Output",
    25: "Farewell",
    26: "Recall",
    27: "WaitNamed",
    28: "EpochStates",
    29: "BadSamplesNamed",
    30: "Stop",
    31: "Pause",
    32: "Resume",
    33: "Evict",
    34: "SetLogLevel",
    35: "Done",
    39: "Reload",
    59: "Reloaded",
    36: "Trace",
    37: "TraceEvents",
    38: "ForkWanted",
    40: "SpawnStream",
    41: "SpawnWorker",
    42: "Spawned",
    43: "Ready",
    44: "LoadFailed",
    45: "ChildEnded",
    46: "Enclosed",
    47: "UseNote",
    48: "WriteProgram",
    49: "Unpicklable",
    50: "UseRing",
    51: "Fill",
    52: "AskPlan",
    53: "Rebase",
    54: "TooLarge",
    55: "Identified",
    56: "Serve",
    57: "Spare",
    58: "NotSpawned",
    60: "Filled",
    61: "Measured",
    62: "Unfit",
    63: "FillFailed",
    64: "BadSamples",
    65: "Digested",
    66: "Begun",
    67: "Planned",
    68: "PlanFailed",
    70: "Declared",
    71: "StoreFailed",
    72: "ShardEnded",
    73: "ShardCame",
    74: "TrainerEnvironment",
    75: "Spent",
    76: "TellFingerprint",
    77: "UseSamples",
    78: "Helped",
    80: "Compared",
    81: "OpenBridge",
    82: "StartRemote",
    83: "StopRemote",
    84: "FillRemote",
    85: "Revoke",
    86: "Unreachable",
    87: "RemoteReady",
    88: "RemoteAnswer",
    89: "Revoked",
    90: "LateAnswer",
    91: "RemoteEnded",
    92: "RemotePrinted",
    93: "FilesChecked",
    94: "SamplesWrote",
    97: "ShardBegun",
    104: "DataDiffers",
    105: "RemoteWaits",
    106: "BridgeUsed",
}

INTS = st.integers(-(1 << 63), (1 << 64) - 1)
ROWS = st.lists(st.lists(INTS, max_size=6).map(tuple), max_size=6).map(tuple)
OF_ANNOTATION = {
    "int": INTS,
    "str": st.text(max_size=50),
    "bytes": st.binary(max_size=50),
    "bool": st.booleans(),
    "Ints": st.lists(INTS, max_size=8).map(tuple),
    "Rows": ROWS,
    "Blobs": st.lists(st.binary(max_size=20), max_size=5).map(tuple),
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def instances(cls: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of this type that its annotations allow."""
    return st.builds(cls, *[OF_ANNOTATION[str(field.type)] for field in dataclasses.fields(cls)])


any_message = st.sampled_from(sorted(MESSAGE_TYPES)).flatmap(lambda number: instances(MESSAGE_TYPES[number]))
all_examples = pytest.mark.parametrize("message", [*MESSAGES, *BARE_MESSAGES], ids=lambda each: type(each).__name__)


def packed(message: Message) -> list:
    return msgpack.unpackb(encode(message))


def defaulted(message: Message) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(message) if field.default is not dataclasses.MISSING]


def test_numbers_are_those_that_were_given():
    assert {number: cls.__name__ for number, cls in MESSAGE_TYPES.items()} == NUMBERS


def test_every_message_is_in_the_table_under_its_own_number():
    defined = {
        each
        for each in vars(messages).values()
        if isinstance(each, type) and issubclass(each, Message) and each is not Message
    }
    assert set(MESSAGE_TYPES.values()) == defined
    assert {cls.number for cls in defined} == set(MESSAGE_TYPES)
    assert all(cls.number == number for number, cls in MESSAGE_TYPES.items())


def test_a_number_is_not_given_twice():
    with pytest.raises(AssertionError):
        messages._numbered(Hello.number)(type("Another", (Message,), {}))
    assert MESSAGE_TYPES[Hello.number] is Hello


@pytest.mark.parametrize("cls", MESSAGE_TYPES.values())
def test_messages_are_values(cls):
    names = [field.name for field in dataclasses.fields(cls)]
    message = cls(*names)
    for name in [*names, "another"]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, name, 0)
    assert message == cls(*names)
    assert hash(message) == hash(cls(*names))
    assert "__slots__" in vars(cls)
    assert cls.__doc__
    assert not cls.__doc__.startswith(cls.__name__ + "("), "a docstring made by dataclasses"


@all_examples
def test_an_example_of_every_message_round_trips(message):
    assert decode(encode(message)) == message


@given(any_message)
@tries(300)
def test_every_valid_message_round_trips(message):
    assert decode(encode(message)) == message


@given(any_message, st.lists(ANYTHING, min_size=1, max_size=4))
@tries(200)
def test_fields_of_a_newer_side_are_ignored(message, newer):
    assert decode(msgpack.packb([*packed(message), *newer])) == message


@all_examples
def test_fields_that_an_older_side_does_not_send_get_their_defaults(message):
    values = packed(message)
    for missing in range(1, len(defaulted(message)) + 1):
        older = decode(msgpack.packb(values[:-missing]))
        absent = {field.name: field.default for field in dataclasses.fields(message)[-missing:]}
        assert older == dataclasses.replace(message, **absent)


@all_examples
def test_fields_without_a_default_are_never_left_out(message):
    values = packed(message)
    required = len(dataclasses.fields(message)) - len(defaulted(message))
    for fields in range(required):
        with pytest.raises(ProtocolError, match=f"{type(message).__name__} has {fields} fields; it needs {required}"):
            decode(msgpack.packb(values[: 1 + fields]))


def test_equal_content_under_another_number_is_another_message():
    assert decode(msgpack.packb([12, 5])) != decode(msgpack.packb([20, 5]))


def test_a_packet_may_be_as_long_as_the_limit_and_not_a_byte_longer():
    room = MAX_PACKET_BYTES - len(encode(Output(1, "x" * 40_000))) + 40_000
    assert len(encode(Output(1, "x" * room))) == MAX_PACKET_BYTES
    with pytest.raises(ProtocolError, match=rf"Output of {MAX_PACKET_BYTES + 1} bytes; allowed: {MAX_PACKET_BYTES}"):
        encode(Output(1, "x" * (room + 1)))


@pytest.mark.parametrize(
    "message",
    [
        Hello(1, "trainer", "test", 1, spec=b"\0" * MAX_PACKET_BYTES),
        Program("n" * MAX_PACKET_BYTES, 1),
        Published(batches=((1, 0, 0, 0, *[1 << 40] * 10_000),)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_message_that_is_too_long_is_refused_before_it_is_sent(message):
    with pytest.raises(ProtocolError, match=type(message).__name__):
        encode(message)


def test_a_full_publication_fits_one_packet():
    """1024 batches are the most that one publication tells; nine bytes a number at worst."""
    batches = tuple((9, 3, 1000 * i, 0, *[1 << 20, 1 << 40] * 256) for i in range(4))
    assert len(encode(Published(batches))) <= MAX_PACKET_BYTES


def test_text_that_is_no_utf_8_still_arrives():
    """A file's name, an argument or a line of output may hold any byte; Python keeps such bytes as surrogates."""
    message = decode(encode(LoadFailed("No such file: 'tr\udce4in.jpg'")))
    assert message.message.startswith("No such file: 'tr")


def test_defaults_are_what_an_empty_field_means():
    assert Ready() == decode(msgpack.packb([Ready.number]))
