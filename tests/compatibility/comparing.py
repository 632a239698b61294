"""What tells two outcomes apart, down to types, strides, bytes, and which names stand for one object."""

from __future__ import annotations

import enum
import inspect
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from tests.compatibility.case import Raised, Separate

HERE = Path(__file__).parent

# Python may make one object of two of these, and two of one.
_INTERCHANGEABLE = (bool, int, float, complex, str, bytes, type(None), enum.Enum, type, types.FunctionType)
_INTERCHANGEABLE += (types.BuiltinFunctionType, torch.dtype, torch.device, torch.layout, torch.Size, np.generic, range)

# What builtin exceptions keep outside of `args` and `__dict__`.
_OF_ERRORS = ("errno", "strerror", "filename", "filename2", "name", "path", "name_from", "msg", "lineno", "offset")
_OF_ERRORS += ("text", "code", "encoding", "object", "start", "end", "reason", "exceptions", "message")


def differences(theirs: Any, ours: Any) -> list[str]:
    """Each difference as a line; `theirs` is DataLoader's."""
    if type(theirs) is Separate and type(ours) is Separate:
        found = [] if len(theirs) == len(ours) else [f"{len(theirs)} outcomes and {len(ours)}"]
        for place, pair in enumerate(zip(theirs, ours)):
            found += [f"[{place}]{each}" for each in _Comparison().compare(*pair)]
        return found
    return _Comparison().compare(theirs, ours)


class _Comparison:
    def __init__(self) -> None:
        self._found: list[str] = []
        # Temporary ones too must not give their ids to others.
        self._kept: list[Any] = []
        self._twins: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._storages: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def compare(self, theirs: Any, ours: Any) -> list[str]:
        self._walk(theirs, ours, "")
        return self._found

    def _differ(self, where: str, theirs: Any, ours: Any) -> None:
        self._found.append(f"{where}: {_short(theirs)} and {_short(ours)}")

    def _walk(self, theirs: Any, ours: Any, where: str) -> None:
        if type(theirs) is not type(ours):
            self._differ(where, _named(theirs), _named(ours))
            return
        if not isinstance(theirs, _INTERCHANGEABLE) and not (isinstance(theirs, tuple) and not theirs):
            known = self._twins[0].get(id(theirs)), self._twins[1].get(id(ours))
            if known != (None, None):
                if known != (id(ours), id(theirs)):
                    self._found.append(f"{where}: another name for the same object with one loader only")
                return
            self._twins[0][id(theirs)], self._twins[1][id(ours)] = id(ours), id(theirs)
            self._kept += (theirs, ours)
        self._contents(theirs, ours, where)

    def _contents(self, theirs: Any, ours: Any, where: str) -> None:
        if isinstance(theirs, Raised):
            self._errors(theirs.error, ours.error, where)
        elif isinstance(theirs, torch.Tensor):
            self._tensors(theirs, ours, where)
        elif isinstance(theirs, np.ndarray):
            self._arrays(theirs, ours, where)
        elif isinstance(theirs, (enum.Enum, type, types.FunctionType, types.BuiltinFunctionType)):
            if theirs is not ours:
                self._differ(where, theirs, ours)
        elif isinstance(theirs, np.generic):
            if (theirs.dtype, theirs.tobytes()) != (ours.dtype, ours.tobytes()):
                self._differ(where, theirs, ours)
        elif isinstance(theirs, (set, frozenset)):
            if theirs != ours:
                self._differ(where, theirs, ours)
            self._attributes(theirs, ours, where)
        elif isinstance(theirs, (float, complex)):
            if repr(theirs) != repr(ours):
                self._differ(where, theirs, ours)
        elif _is_tensordict(theirs):
            self._tensordicts(theirs, ours, where)
        elif isinstance(theirs, (Mapping, dict)):
            self._mappings(theirs, ours, where)
        elif isinstance(theirs, (list, tuple)):
            if len(theirs) != len(ours):
                self._differ(where, f"{len(theirs)} items", f"{len(ours)} items")
            for place, pair in enumerate(zip(theirs, ours)):
                self._walk(*pair, f"{where}[{place}]")
            self._attributes(theirs, ours, where)
        elif type(theirs).__module__ == "PIL.Image":
            if (theirs.mode, theirs.size, theirs.tobytes()) != (ours.mode, ours.size, ours.tobytes()):
                self._differ(where, theirs, ours)
        else:
            self._objects(theirs, ours, where)

    def _mappings(self, theirs: Any, ours: Any, where: str) -> None:
        if list(theirs) != list(ours):
            self._differ(where, list(theirs), list(ours))
            return
        for key in theirs:
            self._walk(theirs[key], ours[key], f"{where}[{key!r}]")
        self._walk(getattr(theirs, "default_factory", None), getattr(ours, "default_factory", None), where)
        self._attributes(theirs, ours, where)

    def _tensordicts(self, theirs: Any, ours: Any, where: str) -> None:
        for name in ("batch_size", "names", "device", "is_locked"):
            if getattr(theirs, name) != getattr(ours, name):
                self._differ(f"{where}.{name}", getattr(theirs, name), getattr(ours, name))
        if type(theirs).__name__.startswith("NonTensor"):
            self._walk(theirs.tolist(), ours.tolist(), where)
            return
        inner = [getattr(each, "_tensordict", each) for each in (theirs, ours)]
        if list(inner[0].keys()) != list(inner[1].keys()):
            self._differ(where, list(inner[0].keys()), list(inner[1].keys()))
            return
        for key in inner[0].keys():  # noqa: SIM118 - iterating over a TensorDict gives its rows
            self._walk(inner[0].get(key), inner[1].get(key), f"{where}[{key!r}]")

    def _objects(self, theirs: Any, ours: Any, where: str) -> None:
        has_state = bool(_state_of(theirs))
        if has_state:
            self._attributes(theirs, ours, where)
        if (type(theirs).__eq__ is not object.__eq__ and not has_state) and theirs != ours:
            self._differ(where, theirs, ours)

    def _attributes(self, theirs: Any, ours: Any, where: str) -> None:
        states = _state_of(theirs), _state_of(ours)
        if list(states[0]) != list(states[1]):
            self._differ(where, list(states[0]), list(states[1]))
            return
        for name in states[0]:
            self._walk(states[0][name], states[1][name], f"{where}.{name}")

    # --- leaves ---

    def _tensors(self, theirs: torch.Tensor, ours: torch.Tensor, where: str) -> None:
        looks = _look_of_tensor(theirs), _look_of_tensor(ours)
        for name, look in looks[0].items():
            if look != (other := looks[1].get(name)):
                self._differ(f"{where}.{name}", look, other)
        # A jagged one keeps symbols of its own there, which no two have in common.
        if theirs.layout is not torch.jagged and (vars(theirs) or vars(ours)):
            self._walk(vars(theirs), vars(ours), f"{where}.__dict__")
        if theirs.layout is ours.layout is torch.strided and not theirs.is_nested and theirs.device.type == "cpu":
            self._same_memory(theirs, ours, where)

    def _same_memory(self, theirs: torch.Tensor, ours: torch.Tensor, where: str) -> None:
        """Views of one storage are views of one storage, as far apart."""
        if not theirs.numel():
            return
        pairs = [(each.untyped_storage().data_ptr(), each.data_ptr()) for each in (theirs, ours)]
        firsts = [known.get(storage) for known, (storage, _) in zip(self._storages, pairs)]
        if firsts == [None, None]:
            for known, (storage, data) in zip(self._storages, pairs):
                known[storage] = data
        elif None in firsts:
            self._found.append(f"{where}: memory in common with another tensor with one loader only")
        elif pairs[0][1] - firsts[0] != pairs[1][1] - firsts[1]:  # type: ignore[operator]
            self._found.append(f"{where}: at another place in its memory")

    def _arrays(self, theirs: Any, ours: Any, where: str) -> None:
        def look(array: Any) -> tuple[Any, ...]:
            # Without elements strides mean nothing, and some ways of copying an array forget them.
            return array.dtype, array.shape, array.strides if array.size else (), array.flags.writeable

        if look(theirs) != look(ours):
            self._differ(where, look(theirs), look(ours))
        elif theirs.dtype.hasobject:
            self._walk(theirs.tolist(), ours.tolist(), where)
        elif theirs.tobytes() != ours.tobytes():
            self._differ(where, theirs, ours)
        self._attributes(theirs, ours, where)

    # --- errors ---

    def _errors(self, theirs: BaseException, ours: BaseException, where: str) -> None:
        if type(theirs) is not type(ours):
            self._differ(where, repr(theirs), repr(ours))
            return
        for name, text in (("str", str), ("repr", repr)):
            if _text(text, theirs) != _text(text, ours):
                self._differ(f"{where}.{name}", _text(text, theirs), _text(text, ours))
        self._walk(theirs.args, ours.args, f"{where}.args")
        self._walk(vars(theirs), vars(ours), f"{where}.__dict__")
        for name in _OF_ERRORS:
            if name not in vars(theirs):
                self._walk(getattr(theirs, name, None), getattr(ours, name, None), f"{where}.{name}")
        missing = [each for each in _user_frames(theirs) if f"in {each}\n" not in _shown(ours)]
        if missing:
            self._found.append(f"{where}: the traceback does not show {', '.join(missing)}")


def _user_frames(error: BaseException) -> list[str]:
    """The functions of the cases that DataLoader's traceback goes through."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    places = [place for place, code in enumerate(codes) if code.co_filename == inspect.getsourcefile(DataLoader)]
    inner = codes[places[0] :] if places else []
    return [code.co_name for code in inner if Path(code.co_filename).parent == HERE]


def _shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _text(of: Any, error: BaseException) -> str:
    try:
        return str(of(error))
    except Exception as none:
        return f"raises {none!r}"


def _state_of(thing: Any) -> dict[str, Any]:
    state = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                state[name] = getattr(thing, name)
    return state


def _look_of_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    look: dict[str, Any] = {
        name: getattr(tensor, name)
        for name in ("dtype", "layout", "device", "requires_grad", "is_leaf", "is_nested", "is_quantized")
    }
    look["is_conj"], look["is_neg"] = tensor.is_conj(), tensor.is_neg()
    if tensor.layout is torch.jagged:
        look["ragged_dim"], look["offsets"] = tensor._ragged_idx, tensor.offsets().tolist()  # type: ignore[attr-defined]
    if tensor.is_nested:
        return look | {"values": [_look_of_tensor(each) for each in tensor.detach().unbind()]}
    look["shape"] = tensor.shape
    if tensor.layout is torch.strided:
        look["stride"] = tensor.stride()
    if tensor.device.type == "meta":
        return look
    plain = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        return look | {"is_coalesced": tensor.is_coalesced(), "bytes": _bytes_of(plain.to_dense())}
    if tensor.layout is not torch.strided:
        return look | {"bytes": _bytes_of(plain.to_dense())}
    if tensor.is_quantized:
        look["scale"], look["zero_point"] = tensor.q_scale(), tensor.q_zero_point()
        plain = plain.int_repr()
    return look | {"bytes": _bytes_of(plain.as_subclass(torch.Tensor))}


def _bytes_of(plain: torch.Tensor) -> bytes:
    dense = torch.empty(plain.numel(), dtype=plain.dtype)
    dense.view(plain.shape).copy_(plain)
    return bytes(dense.view(torch.uint8).numpy()) if dense.numel() else b""


def _is_tensordict(thing: Any) -> bool:
    tensordict = sys.modules.get("tensordict")
    return tensordict is not None and tensordict.is_tensor_collection(thing)


def _named(thing: Any) -> Any:
    return thing.error if isinstance(thing, Raised) else type(thing)


def _short(thing: Any) -> str:
    text = " ".join(repr(thing).split())
    return text if len(text) <= 400 else f"{text[:300]} ... {text[-80:]}"
