"""Triton's config.pbtxt: protobuf's text format, and what is made of its fields."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import Message

from app.models.onnx.reading import signature
from app.models.repository.config import BadConfig, apply_config, number, parse
from app.models.repository.text_format import integer
from tests.models.documents import affine

FIELDS = {"a": 9, "n": 3, "m": 11}
"""Names and types of texts, numbers and messages that a message has any number of."""


@pytest.fixture(scope="module")
def known() -> type[Message]:
    """To protobuf, which has no text without a schema."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto2")
    message = file.message_type.add(name="M")
    for index, (name, type_) in enumerate(FIELDS.items(), 1):
        message.field.add(name=name, number=index, label=3, type=type_, type_name=".M" if name == "m" else None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName("M"))
    return made


def plain(message: Message) -> object:
    fields = {name: [*getattr(message, name)] for name in FIELDS}
    return {name: [*map(plain, values)] if name == "m" else values for name, values in fields.items() if values}


def numbered(message: dict[str, list[Any]]) -> object:
    read: dict[str, Callable[[Any], object]] = {"a": str, "n": integer, "m": numbered}
    return {name: [*map(read[name], values)] for name, values in message.items() if values}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " # nothing\n",
        "n: 1, n: 2; n: 3 n: 4",
        "n: [1, 2] m { a: 'd\\'e' } m < n: 2 > # end",
        "m [ { n: 1 }, < n: 2 > ] m: [ <n: 3,> ] m: < m < > >",
        "n: [] a: [] m []",
        "n: 0x1F n: 0X0a n: 0 n: -0x1f",
        "n: 9223372036854775807 n: -9223372036854775808",
        'a: "one " \'text\'\n# of\n"three" n: 1',
        r'''a: "\xC3\xA9\303\251\u00e9\U0001F600\101" a: "\a\b\f\n\r\t\v\\\"" "\'" a: "\x41g\1018"''',
        "a: '#{}[]<>:,;-' a: ['\"', \"'\"]",
        "m: { n: [ # one\n 1, 2 ] ; };",
    ],
)
def test_protobufs_text(text: str, known: type[Message]) -> None:
    assert numbered(parse(text)) == plain(text_format.Parse(text, known()))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a" + "{a" * 16 + "{}" + "}" * 16, "nested too deep"),
        ("a" + "<a" * 16 + "<>" + ">" * 16, "nested too deep"),
        ("a" + "[{a" * 16 + "[{}]" + "}]" * 16, "nested too deep"),
        ("#" * ((1 << 20) + 1), "more than the 1048576 characters"),
        ("m", "ends within a message"),
        ("m {", "ends within a message"),
        ("n:", "ends within a message"),
        ("n: [1", "ends within a message"),
        ("m { n: 1 >", "> in line 1 stands where a field should"),
        ("m < n: 1 }", "} in line 1 stands where a field should"),
        ("n: 1\n\n}", "} in line 3 stands where a field should"),
        ("n: 1,, n: 2", ", in line 1 stands where a field should"),
        (", n: 1", ", in line 1 stands where a field should"),
        ("1: 1", "1 in line 1 stands where a field should"),
        ("n.n: 1", "n.n in line 1 stands where a field should"),
        ("'n': 1", "'n' in line 1 stands where a field should"),
        ("n 1", "1 in line 1 stands where a colon should"),
        ("n [1]", "1 in line 1 stands where a colon should"),
        ("n: [1 2]", "2 in line 1 stands where a comma should"),
        ("m [ { ], }", "] in line 1 stands where a field should"),
        ("n: [1, 2,]", "] in line 1 stands where a value should"),
        ("n: }", "} in line 1 stands where a value should"),
        ("n: --1", "- in line 1 stands where a value should"),
        ("n: - 'a'", "'a' in line 1 stands where a value should"),
        ("a: 'ends", "line 1 cannot be read"),
        ("a: 'two\nlines'", "line 1 cannot be read"),
        ("n: 1\n# line 2\n !", "line 3 cannot be read"),
        (r"a: '\xFF'", r"'\\xFF' is no text in UTF-8"),
        (r"a: '\U00110000'", "is no text in UTF-8"),
        (r"a: '\ud800'", "is no text in UTF-8"),
    ],
)
def test_what_is_no_text_of_protobuf(text: str, why: str, known: type[Message]) -> None:
    with pytest.raises(BadConfig, match=why):
        parse(text)
    if len(text) < 40:  # whose readers have other limits
        with pytest.raises(text_format.ParseError):
            text_format.Parse(text, known())


def test_a_text_as_large_as_may_be() -> None:
    assert parse(" " * (1 << 20)) == {}
    assert parse("a" + "{a" * 15 + "{}" + "}" * 15)
    assert len(parse("a:1 " * (1 << 18))["a"]) == 1 << 18


def test_what_pythons_own_reader_takes_otherwise() -> None:
    """The format's description, and Triton's reader, are as here."""
    assert parse("n: - 7 n: -\n# so many\n9") == {"n": ["-7", "-9"]}
    with pytest.raises(BadConfig, match=r"\\q in a text stands for nothing"):  # which Python's own takes as it is
        parse(r"a: '\q'")
    with pytest.raises(BadConfig, match=r"'\\400' is no text in UTF-8"):
        parse(r"a: '\400'")


@pytest.mark.parametrize(
    ("stated", "value"),
    [
        ("0", 0),
        ("010", 8),
        ("-010", -8),
        ("0x", None),
        ("08", None),
        ("+1", None),
        ("1_000", None),
        ("1.0", None),
        ("1e3", None),
        ("\xb2", None),
        ("-9223372036854775808", -(1 << 63)),
        ("9223372036854775808", None),
        ("9" * 5000, None),
        ({}, None),
    ],
)
def test_integers(stated: object, value: int | None) -> None:
    assert integer(stated) == value


def test_numbers_in_a_config() -> None:
    for text, given in (("", None), ("a: 0", 0), ("a: 999999999", 999_999_999), ("a: 0x10", 16)):
        assert number(parse(text), "a", None) == given
    for text in ("a: 1000000000", "a: -1", "a: 1.0", "a: '\xb2'"):
        with pytest.raises(BadConfig, match=r"a in config\.pbtxt is .*, which is no number from 0 on below 10*\."):
            number(parse(text), "a", None)
    with pytest.raises(BadConfig, match=r"a in config\.pbtxt is a message"):
        number(parse("a {}"), "a", None)
    with pytest.raises(BadConfig, match=r"a in config\.pbtxt is given 2 times"):
        number(parse("a: 1 a: 1"), "a", None)


CONFIG = """
name: "versions"
platform: "onnxruntime_onnx"  # what is for other servers is passed over
max_batch_size: 4
input [ < name: "x" data_type: 11 dims: [ 3 ] > ]
output: { name: "y", data_type: TYPE_FP32, dims: -1 }
instance_group [ { count: 2 kind: KIND_CPU } ]
optimization { graph { level: -1 } execution_accelerators { gpu_execution_accelerator: [ { name: "tensorrt" } ] } }
parameters [ { key: "intra_op_thread_count" value: { string_value: "1" } } ]
parameters: { key: "metadata" value: < string_value: "{\\"a\\": 1}" "\\n" > }
model_warmup [ { name: "zeros" batch_size: 1 inputs { key: "x" value: { dims: 3 zero_data: true } } } ]
sequence_batching { max_sequence_idle_microseconds: 5000000 }
cc_model_filenames [ { key: "7.5" value: "model.plan" } ]
"""


def test_what_a_config_says() -> None:
    ports = signature(affine())
    assert apply_config(CONFIG, "versions", ports).inputs["x"].sizes == ("batch", 3)
    for rows in (1, 2):
        fixed = apply_config(f'input {{ name: "x" dims: [{rows}, 3] }}', "versions", ports)
        assert fixed.inputs["x"].sizes == (rows, 3)
    unknown = ports._replace(inputs={"x": ports.inputs["x"]._replace(sizes=None)})
    for told, dims, sizes in ((ports, "", ("batch", 3)), (unknown, "", None), (unknown, "dims: [ -1, 3 ]", (None, 3))):
        assert apply_config(f'input {{ name: "x" {dims} }}', "versions", told).inputs["x"].sizes == sizes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('name: "other"', "in the folder"),
        ('input { name: "w" }', "has an input w"),
        ('input { name: "x" data_type: TYPE_FP16 }', "float16 in config"),
        ('input { name: "x" data_type: 10 }', "float16 in config"),
        ('input { name: "x" data_type: 13 }', "x is 13 in config.pbtxt, which is none of"),
        ('input { name: "x" dims: [ 3 ] }', "3 in config.pbtxt and batchx3"),
        ('input { name: "x" dims: [ 2, 4 ] }', "2x4"),
        ('input { name: "x" dims: [ -1, 4 ] }', r"x is \?x4 in config.pbtxt and batchx3 in the model"),
        ('input { name: "x" dims: [ -1, 010 ] }', r"x is \?x8 in config.pbtxt"),
        ('input { name: "x" dims: [ 0, 3 ] }', "dims of x in config.pbtxt have a 0; each is -1, for any size, or >= 1"),
        ('input { name: "x" dims: [ -2, 3 ] }', "have a -2;"),
        ('input { name: "x" dims: [ many ] }', "dims of x in config.pbtxt are no numbers"),
        ('input { name: "x" dims: { } }', "dims of x in config.pbtxt are no numbers"),
        ('input { name: "x" data_type: TYPE_FP8 }', "TYPE_FP8 in config.pbtxt, which is none of"),
        ('input { name: "x" reshape { shape: [ 3 ] } }', "x reshaped"),
        ('input { name: "x" dim: 3 }', r"has dim, which is no field there\. Did you mean dims\?"),
        ("input: x", "input in config.pbtxt is no message"),
        ("max_batchsize: 4", r"has max_batchsize, which is no field there\. Did you mean max_batch_size\?"),
        ("batch_input [ { kind: BATCH_ELEMENT_COUNT } ]", "batch_input, tensors that Triton makes of batches"),
        ("batch_output [ { } ]", "batch_output, tensors that Triton makes of batches"),
        ("sequence_batching { state [ { } ] }", "has state in sequence_batching"),
        ("sequence_batching { control_input [ { } ] }", "has control_input in sequence_batching"),
    ],
)
def test_what_a_config_cannot_say(text: str, why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        apply_config(text, "versions", signature(affine()))
