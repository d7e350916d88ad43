"""Ways to spoil a file: blind ones that know bytes alone, and ones that know the format and keep it readable.

A mutation takes the content of a file and a random generator, and gives other content; one that knows a format raises
if an earlier one left nothing of it. Those that know a format correct checksums and lengths, so that the code behind
these checks is reached as well.
"""

import hashlib
import io
import json
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

_NUMBERS = (0, 1, -1, 2, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 10**12, 2**63 - 1, 2**63, 10**30)
_SHAPES = ("()", "(0,)", "(-1,)", "(1000000000000, 4)", "(4, 1000000000000)", "(2**70,)", "(1,)", "(12, 4)", "(4, 12)")
_TYPES = (
    "|O",
    "<f2",
    "<f4",
    "<f8",
    ">f8",
    "<i8",
    "<u8",
    "|b1",
    "<c16",
    "<U9",
    "|S4",
    "<M8[s]",
    "|V8",
    "<f16",
    "<U900000000",
)


def flip_bits(content: bytes, draw: random.Random) -> bytes:
    """Change single bits."""
    spoilt = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if spoilt:
            spoilt[_place(spoilt, draw)] ^= 1 << draw.randrange(8)
    return bytes(spoilt)


def write_number(content: bytes, draw: random.Random) -> bytes:
    """Put a number that is often wrong over some bytes."""
    width, order = draw.choice((1, 2, 4, 8)), draw.choice(("<", ">"))
    packed = struct.pack(f"{order}Q", draw.choice(_NUMBERS) % 2**64)
    place = _place(content, draw)
    part = packed[:width] if order == "<" else packed[-width:]
    return content[:place] + part + content[place + width :]


def cut_off(content: bytes, draw: random.Random) -> bytes:
    """Cut the end off."""
    return content[: _place(content, draw)]


def move_bytes(content: bytes, draw: random.Random) -> bytes:
    """Take some bytes out, or write them somewhere else or twice."""
    start, length = _place(content, draw), draw.choice((1, 4, 16, 64, 512))
    part, target = content[start : start + length], _place(content, draw)
    rest = content if draw.random() < 0.5 else content[:start] + content[start + length :]
    return rest if draw.random() < 0.3 else rest[:target] + part * draw.choice((1, 1, 2, 40)) + rest[target:]


BLIND: tuple[Mutation, ...] = (flip_bits, write_number, cut_off, move_bytes)


def edit_json(content: bytes, draw: random.Random) -> bytes:
    """Replace, remove, add or double values anywhere in a JSON text."""
    holder = {"": json.loads(content)}
    for _ in range(draw.choice((1, 1, 1, 3))):
        _edit(holder, draw)
    text = json.dumps(holder.get(""))
    if draw.random() < 0.02:
        text = text.replace("[", "[" * 100_000, 1)
    return text.encode()


def edit_json_lines(content: bytes, draw: random.Random) -> bytes:
    """Edit one line of JSON lines."""
    lines = content.splitlines()
    if not lines:
        return content
    place = draw.randrange(len(lines))
    lines[place] = draw.choice((edit_json, flip_bits))(lines[place], draw)
    return b"\n".join(lines) + b"\n"


def edit_zip(content: bytes, draw: random.Random) -> bytes:
    """Spoil one member of a zip file, rename it, or leave it out; checksums of what is left are right."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if not members:
        return content
    name, other = draw.choice(list(members)), draw.choice(list(members))
    action = draw.randrange(6)
    if action == 0:
        members[name], members[other] = members[other], members[name]
    elif action == 1:
        members["../" + name] = members.pop(name)
    elif action == 2:
        del members[name]
    else:
        members[name] = draw.choice((edit_array, edit_array, *BLIND))(members[name], draw)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return packed.getvalue()


def edit_array(content: bytes, draw: random.Random) -> bytes:
    """Change the shape or the type that the header of a NumPy array claims, or values behind it."""
    if len(content) < 10 or not content.startswith(b"\x93NUMPY"):
        return flip_bits(content, draw)
    end = 10 + int.from_bytes(content[8:10], "little")
    header, data = content[10:end].decode("latin1"), content[end:]
    action = draw.randrange(4)
    if action == 0:
        start, stop = header.find("("), header.find(")")
        header = header[:start] + draw.choice(_SHAPES) + header[stop + 1 :]
    elif action == 1:
        start = header.find("'descr': '") + len("'descr': '")
        header = header[:start] + draw.choice(_TYPES) + header[header.find("'", start) :]
    elif action == 2:
        width = draw.choice((2, 4, 8))
        place = draw.randrange(max(1, len(data) // width)) * width
        kind = {2: "<e", 4: "<f", 8: "<d"}[width]
        data = data[:place] + struct.pack(kind, draw.choice((float("nan"), float("inf"), -1.0))) + data[place + width :]
    else:
        data = draw.choice(BLIND)(data, draw)
    encoded = header.encode("latin1", "replace")
    return content[:8] + len(encoded).to_bytes(2, "little") + encoded + data


def edit_safetensors(content: bytes, draw: random.Random) -> bytes:
    """Edit the header of a safetensors file, swap tensors in it, or change values."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    names = [name for name in header if name != "__metadata__"] if isinstance(header, dict) else []
    action = draw.randrange(5)
    if action == 0 and names:
        one, two = draw.choice(names), draw.choice(names)
        header[one], header[two] = header[two], header[one]
    elif action == 1 and names:
        tensor = header[draw.choice(names)]
        shape = tensor.get("shape") if isinstance(tensor, dict) else None
        if isinstance(shape, list):
            tensor["shape"] = draw.choice(([1, *shape], shape[::-1], [*shape, 1]))
    elif action == 2 and data:
        place = draw.randrange(len(data)) // 8 * 8
        number = draw.choice(
            (struct.pack("<d", float("nan")), struct.pack("<q", draw.choice(_NUMBERS) % 2**63), b"\xff" * 8)
        )
        data = (data[:place] + number + data[place + 8 :])[: len(data)]
    else:
        header = json.loads(edit_json(json.dumps(header).encode(), draw)) if draw.random() < 0.8 else header
        data = data if draw.random() < 0.8 else draw.choice(BLIND)(data, draw)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def edit_tar(content: bytes, draw: random.Random) -> bytes:
    """Change a field of a header in a tar, and mend the checksum of that header."""
    blocks = [place for place in range(0, len(content) - 511, 512) if content[place + 257 : place + 262] == b"ustar"]
    if not blocks:
        return flip_bits(content, draw)
    start = draw.choice(blocks)
    header = bytearray(content[start : start + 512])
    field, width = draw.choice(((0, 100), (100, 8), (124, 12), (124, 12), (136, 12), (156, 1), (157, 100), (345, 155)))
    values = (
        b"../../x.png",
        b"/etc/passwd",
        b"77777777777",
        b"\xff" * 12,
        b"\x80" + b"\0" * 10 + b"\xff",
        b"\0" * 12,
        b"",
    )
    value = draw.choice(b"0123456LKxgSV").to_bytes(1, "big") if width == 1 else draw.choice(values)
    header[field : field + width] = value.ljust(width, b"\0")[:width]
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return content[:start] + bytes(header) + content[start + tarfile.BLOCKSIZE :]


def edit_png(content: bytes, draw: random.Random) -> bytes:
    """Change bytes of a chunk of a PNG, and mend its checksum."""
    chunks, place = [], 8
    while place + 12 <= len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        chunks.append((place, length))
        place += 12 + length
    if not chunks or not content.startswith(b"\x89PNG"):
        return flip_bits(content, draw)
    start, length = draw.choice(chunks)
    body = draw.choice((flip_bits, write_number))(content[start + 8 : start + 8 + length], draw)[:length]
    kind = content[start + 4 : start + 8]
    checksum = zlib.crc32(kind + body).to_bytes(4, "big")
    return content[: start + 4] + kind + body + checksum + content[start + 12 + length :]


KNOWING: dict[str, Mutation] = {
    ".json": edit_json,
    ".jsonl": edit_json_lines,
    ".npz": edit_zip,
    ".npy": edit_array,
    ".safetensors": edit_safetensors,
    ".tar": edit_tar,
    ".png": edit_png,
}


def mend_checksum(tensors: bytes, config: bytes) -> bytes:
    """Write the checksum of a model's tensors into its configuration, as who means harm would."""
    try:
        content = json.loads(config)
        content["sha256"] = hashlib.sha256(tensors).hexdigest()
    except (ValueError, TypeError, RecursionError):
        return config
    return json.dumps(content).encode()


def _place(content: bytes | bytearray, draw: random.Random) -> int:
    """Choose a place, as often as not near the beginning or the end, where headers and tables lie."""
    size = max(1, len(content))
    near = min(size, 300)
    return draw.choice((draw.randrange(size), draw.randrange(near), size - 1 - draw.randrange(near)))


def _edit(holder: dict[str, Any], draw: random.Random) -> None:
    parent: Any = holder
    key: Any = ""
    while isinstance(parent[key], (dict, list)) and parent[key] and draw.random() < 0.85:
        parent = parent[key]
        key = draw.choice(list(parent)) if isinstance(parent, dict) else draw.randrange(len(parent))
    action = draw.randrange(8)
    if action == 0 and parent is not holder:
        del parent[key]
    elif action == 1 and isinstance(parent, list):
        parent.extend([parent[key]] * draw.choice((1, 100)))
    elif action == 2 and isinstance(parent, dict) and parent is not holder:
        parent[draw.choice(("", "device", "tell", "__class__", "predict", "../x", "x" * 5000))] = parent[key]
    elif action == 3 and isinstance(parent[key], (int, float)):
        parent[key] = parent[key] + draw.choice((-1, 1, 0.5))
    else:
        parent[key] = _value(draw)


def _value(draw: random.Random) -> Any:
    deep: Any = 0
    for _ in range(draw.choice((3, 200, 900))):
        deep = [deep]
    texts = (
        "",
        "../../etc/passwd",
        "/etc/passwd",
        "x" * 100_000,
        "\0",
        "\ud800",
        "oak",
        "NaN",
        "os:system",
        "<U900000000",
    )
    lists: tuple[Any, ...] = ([], {}, [[]], {"tuple": 3}, {"tuple": [1, [2]]}, {"by_class": [[1]]}, deep)
    others: tuple[Any, ...] = (None, True, False, *lists)
    numbers = (*_NUMBERS, 0.5, 1e308, -1e308, 1e-320, float("nan"), float("inf"))
    return draw.choice(draw.choice((texts, others, numbers)))
