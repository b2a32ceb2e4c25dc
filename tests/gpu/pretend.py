"""A pretended GPU: a device of torch that computes on the CPU, but refuses what a real GPU refuses.

Every tensor on the device `pretend` wraps a CPU tensor. An operation on it runs on the wrapped tensors. If its tensors lie
on several devices, the operation raises the error that a GPU would raise. So a whole run of fedkeel on this device shows
that nothing lies in the wrong place, and that its numbers are those of the CPU. It shows nothing about the speed, the order
of asynchronous copies or the rounding of a real GPU.

It is built on torch's experimental support for backends written in Python. `install` must be called in a process of its own,
because the device stays registered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

NAME, COUNT = "pretend", 2
aten = torch.ops.aten
# These take tensors on several devices: they copy from one to the other.
COPIES = {aten._to_copy.default, aten.copy_.default, aten._foreach_copy_.default}
# Their index tensors may lie on the CPU, as on a GPU.
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class Pretended(Tensor):
    """A tensor that says that it lies on `pretend`. Its numbers are in `elem`, on the CPU."""

    elem: Tensor

    @staticmethod
    def __new__(cls, elem: Tensor, device: torch.device) -> Pretended:
        out = Tensor._make_wrapper_subclass(
            cls, elem.shape, strides=elem.stride(), storage_offset=elem.storage_offset(), dtype=elem.dtype, device=device
        )
        out.elem = elem
        return out

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pretended({self.elem!r}, device={self.device})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Pretended:
        out = Pretended(self.elem.clone(), self.device).requires_grad_(self.requires_grad)
        if hasattr(self, "_is_param"):
            out._is_param = self._is_param
        memo[id(self)] = out
        return out

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist:
            return args[0].elem.tolist()
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[1], list):
            # torch would make the index below the reach of `PretendMode`.
            args = (args[0], torch.tensor(args[1], dtype=torch.int64), *args[2:])
        with torch._C.DisableTorchFunctionSubclass():  # what leaves the device is a plain tensor
            out = func(*args, **(kwargs or {}))
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            args[0].elem = args[1].elem
        return out

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class PretendMode(TorchDispatchMode):
    """Sees what makes tensors on the device from none, or from tensors of the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class PretendFunctions(TorchFunctionMode):
    """`torch.tensor` makes its result below the reach of `PretendMode`, so it is made on the CPU and moved."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.pop("device", None) if func in (torch.tensor, torch.as_tensor) else None
        out = func(*args, **kwargs)
        return out if device is None else out.to(device)


@contextlib.contextmanager
def pretending() -> Iterator[None]:
    """Inside, the device `pretend` can be used."""
    with PretendMode(), PretendFunctions():
        yield


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [z for z in pytree.tree_leaves((args, kwargs)) if isinstance(z, Tensor)]
    asked = kwargs.get("device")
    asked = torch.device(asked) if asked is not None else None
    device = _device_of(func, args, tensors)
    if asked is not None:
        device = asked
        kwargs = kwargs | {"device": torch.device("cpu")}
    kwargs = {name: value for name, value in kwargs.items() if name not in ("non_blocking",)}
    inner = pytree.tree_map(lambda z: z.elem if isinstance(z, Pretended) else z, (args, kwargs))
    out = func(*inner[0], **inner[1])
    if device is None or device.type == "cpu":
        return out
    device = torch.device(NAME, device.index or 0)
    known = {id(z.elem): z for z in tensors if isinstance(z, Pretended)}  # operations in place return their argument

    def wrapped(z: Any) -> Any:
        if type(z) is not Tensor:
            return z
        return known[id(z)] if id(z) in known else Pretended(z, device)

    return pytree.tree_map(wrapped, out)


def _device_of(func: Any, args: Any, tensors: list[Tensor]) -> torch.device | None:
    """The device on which the operation runs. Raises if its tensors lie on several."""
    if func in COPIES:
        first = args[0][0] if isinstance(args[0], list | tuple) else args[0]
        return first.device
    if func in INDEXED:
        tensors = [args[0], *(z for z in args[2:3] if isinstance(z, Tensor))]
    # A single number of the CPU may stand beside tensors of a GPU.
    devices = {z.device for z in tensors if z.dim() or z.device.type != "cpu"}
    if len(devices) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device: {func} got {sorted(map(str, devices))}")
    return next(iter(devices), tensors[0].device if tensors else None)


class Module:
    """What torch wants to know about the device."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def device_count(self) -> int:
        return COUNT


def install() -> None:
    """Makes the device known to torch."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME, Module())
