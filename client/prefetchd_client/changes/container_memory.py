"""Elements tells whether a list or dict still has the same elements, by the memory that it keeps them in and without a
look at them.

A look at an element writes to it: its references are counted in its own memory. After a fork that copies the page.

Where CPython keeps them (Include/cpython/listobject.h, dictobject.h, 3.10 to 3.14)
    list    the object's head, its length, the address of its elements, and for how many there is room
    dict    the object's head, its length, a version or tags, the address of keys and values, and another one of values
            alone, which is null but in the attributes of an object
"""

from __future__ import annotations

import ctypes
import dataclasses
import operator
import sys
from collections.abc import Callable
from typing import Any

from prefetchd_client.changes.written_pages import PAGE_BYTES, Block

_WORD_BYTES = ctypes.sizeof(ctypes.c_void_p)
_HEAD_BYTES = object.__basicsize__
_OF_LIST = _HEAD_BYTES + _WORD_BYTES
_OF_DICT = _HEAD_BYTES + 2 * _WORD_BYTES


def elements_block(value: object) -> Block | None:
    """Returns the memory that has the addresses of all that a list or dict holds. Returns None for another object, for
    an empty one, and where the interpreter's layout is unknown."""
    if type(value) is list and value and _KNOWS_LISTS:
        return _list_block(value)
    if type(value) is dict and value and _KNOWS_DICTS and not _address_at(id(value) + _OF_DICT + _WORD_BYTES):
        return _dict_block(value)
    return None


def _list_block(value: list[Any]) -> Block:
    return _address_at(id(value) + _OF_LIST), len(value) * _WORD_BYTES


def _dict_block(value: dict[Any, Any]) -> Block:
    return _address_at(id(value) + _OF_DICT), value.__sizeof__() - dict.__basicsize__


@dataclasses.dataclass(frozen=True)
class Elements:
    """Remembers where a list or dict kept its elements, and which pages of that are to be watched. Of a list only the
    pages that it has to itself are watched, and the elements at its ends, which share pages with others' memory, are
    remembered. What a dict keeps is not a row of elements, and its pages are watched whole: a neighbour's change may be
    taken for one of its own."""

    block: Block
    own: Block
    first: tuple[object, ...] = ()
    last: tuple[object, ...] = ()

    def may_be_others(self, value: Any, is_written: Callable[[Block], bool]) -> bool:
        """Returns False when `value` still has the same elements, by what `is_written` tells of the memory."""
        if elements_block(value) != self.block:
            return True
        if self.first and any(map(operator.is_not, self.first, value)):
            return True
        if self.last and any(map(operator.is_not, self.last, value[-len(self.last) :])):
            return True
        return self.own[1] > 0 and is_written(self.own)


def elements_of(value: Any) -> Elements | None:
    """Returns the Elements of a list or dict, or None where elements_block() returns None."""
    block = elements_block(value)
    if block is None or type(value) is dict:
        return Elements(block, block) if block is not None else None
    address, nbytes = block
    begin = -(-address // PAGE_BYTES) * PAGE_BYTES
    end = (address + nbytes) // PAGE_BYTES * PAGE_BYTES
    if begin >= end:
        return Elements(block, (begin, 0), tuple(value))
    first, last = (begin - address) // _WORD_BYTES, (address + nbytes - end) // _WORD_BYTES
    return Elements(block, (begin, end - begin), tuple(value[:first]), tuple(value[len(value) - last :]))


def _address_at(pointer: int) -> int:
    return ctypes.c_void_p.from_address(pointer).value or 0


def _is_known(kind: type, words: int) -> bool:
    """Returns True when an object of the kind has the parts that it has in the versions above."""
    return sys.implementation.name == "cpython" and kind.__basicsize__ == _HEAD_BYTES + words * _WORD_BYTES


def _has(block: Block, held: list[object]) -> bool:
    content = ctypes.string_at(*block)
    return all(id(each).to_bytes(_WORD_BYTES, sys.byteorder) in content for each in held)


def _knows_lists() -> bool:
    held = [object() for _ in range(4)]
    return _is_known(list, 3) and _has(_list_block(held), held)


def _knows_dicts() -> bool:
    held: dict[object, object] = {object(): object() for _ in range(4)}
    return _is_known(dict, 4) and _has(_dict_block(held), [*held, *held.values()])


_KNOWS_LISTS = _knows_lists()
_KNOWS_DICTS = _knows_dicts()
