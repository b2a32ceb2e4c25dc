"""Everything that fedkeel uses of torch without a promise that it stays: private names, and aten's operators.

Each has a public replacement, which is used if the installed torch does not have the private name. The choice is made once,
when this module is imported. A replacement returns the same bits, and is slower for small models. Two are the same only to
rounding, `public_amsgrad` and `public_adam`: torch's kernel fuses its operations.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import graph
from torch.nn import functional
from torch.nn.modules import batchnorm, conv, dropout

aten: Any = torch.ops.aten

# Gradients by autograd ------------------------------------------------------------------------------------------------

Gradients = tuple[Tensor | None, ...]


def private_backward(loss: Tensor, parameters: Sequence[Tensor]) -> Gradients:
    """The call in which `torch.autograd.grad` ends. What that function does before prepares for cases that cannot occur
    here, and takes a noticeable part of a small network's step."""
    return graph._engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, parameters, allow_unreachable=True, accumulate_grad=False
    )


def public_backward(loss: Tensor, parameters: Sequence[Tensor]) -> Gradients:
    return torch.autograd.grad(loss, parameters, torch.ones_like(loss), allow_unused=True)


# The gradient of a loss (a tensor with one number) for each parameter: None for those on which it does not depend.
backward = private_backward if hasattr(graph, "_engine_run_backward") else public_backward


# Lists of tensors -----------------------------------------------------------------------------------------------------


def public_copy_each(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


def public_add_each(targets: Sequence[Tensor], values: Sequence[Tensor], *, alpha: float = 1.0) -> None:
    for target, value in zip(targets, values, strict=True):
        target.add_(value, alpha=alpha)


def public_subtract_each(targets: Sequence[Tensor], values: Sequence[Tensor], *, alpha: float = 1.0) -> None:
    for target, value in zip(targets, values, strict=True):
        target.sub_(value, alpha=alpha)


# Each changes the targets in place: target <- value, target <- target + alpha value, target <- target - alpha value.
copy_each: Callable[..., Any] = getattr(torch, "_foreach_copy_", public_copy_each)
add_each: Callable[..., Any] = getattr(torch, "_foreach_add_", public_add_each)
subtract_each: Callable[..., Any] = getattr(torch, "_foreach_sub_", public_subtract_each)


# AMSGrad and Adam -----------------------------------------------------------------------------------------------------


@functools.cache
def _large_count(device: torch.device) -> Tensor:
    return torch.full((), 1e9, device=device)


def private_amsgrad(
    w: Tensor, g: Tensor, m: Tensor, v: Tensor, v_hat: Tensor, lr: float, beta1: float, beta2: float, eps: float
) -> None:
    """One pass of torch's Adam kernel over the memory, instead of one for every operation.

    The kernel corrects the bias of the moments, by factors that are exactly 1 for a step count that is large enough.
    """
    torch._fused_adam_(
        [w], [g], [m], [v], [v_hat], [_large_count(w.device)],
        lr=lr, beta1=beta1, beta2=beta2, weight_decay=0.0, eps=eps, amsgrad=True, maximize=False,
    )  # fmt: skip


def public_amsgrad(
    w: Tensor, g: Tensor, m: Tensor, v: Tensor, v_hat: Tensor, lr: float, beta1: float, beta2: float, eps: float
) -> None:
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    torch.maximum(v_hat, v, out=v_hat)
    w.addcdiv_(m, v_hat.sqrt().add_(eps), value=-lr)


# m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
# v_hat <- max(v_hat, v);  w <- w - lr m / (sqrt(v_hat) + eps)
amsgrad = private_amsgrad if hasattr(torch, "_fused_adam_") else public_amsgrad


def private_adam(
    w: Tensor, g: Tensor, m: Tensor, v: Tensor, count: Tensor, lr: float | Tensor, beta1: float, beta2: float, eps: float
) -> None:
    if isinstance(lr, Tensor) and not w.is_cpu:  # the kernels of other devices need a number, or a tensor in float32
        public_adam(w, g, m, v, count, lr, beta1, beta2, eps)
        return
    rows = [z.unbind() if z.dim() > 1 else (z,) for z in (w, g, m, v)]
    counts = count.expand(*w.shape[:-1], 1).reshape(-1).unbind()
    fused: Any = torch._fused_adam_  # its type has no union of number and tensor
    fused(*rows, [], counts, lr=lr, beta1=beta1, beta2=beta2, weight_decay=0.0, eps=eps, amsgrad=False, maximize=False)


def public_adam(
    w: Tensor, g: Tensor, m: Tensor, v: Tensor, count: Tensor, lr: float | Tensor, beta1: float, beta2: float, eps: float
) -> None:
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    first, second = ((1 - torch.pow(beta, count.double())).to(w.dtype) for beta in (beta1, beta2))
    w.sub_((m / first).div_((v / second).sqrt_().add_(eps)).mul_(lr))


# m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
# w <- w - lr (m / (1 - beta1^count)) / (sqrt(v / (1 - beta2^count)) + eps)
# count [1], or [S, 1] for w [S, d]; a tensor lr is float64 and has one number
adam = private_adam if hasattr(torch, "_fused_adam_") else public_adam


# Derivatives of single operations -------------------------------------------------------------------------------------

MEAN, NO_LABEL = 1, -100  # the loss is the mean over the batch; the label that torch's cross-entropy leaves out


def private_cross_entropy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    logs = torch.log_softmax(outputs, 1)
    loss, count = aten.nll_loss_forward.default(logs, y, None, MEAN, NO_LABEL)
    error = aten.nll_loss_backward.default(torch.ones_like(loss), logs, y, None, MEAN, NO_LABEL, count)
    return loss, aten._log_softmax_backward_data.default(error, logs, 1, logs.dtype)


def public_cross_entropy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        loss = functional.cross_entropy(leaf, y)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def public_relu_backward(error: Tensor, output: Tensor, threshold: float) -> Tensor:
    return error.masked_fill(output <= threshold, 0)


def _has(*operators: str) -> bool:
    return all(hasattr(aten, name) for name in operators)


# Outputs [B, classes] and labels [B] -> the mean cross-entropy, and its gradient for the outputs.
cross_entropy = (
    private_cross_entropy
    if _has("nll_loss_forward", "nll_loss_backward", "_log_softmax_backward_data")
    else public_cross_entropy
)
# The gradient for the output of a ReLU, that output, 0 -> the gradient for its input.
relu_backward: Callable[..., Tensor] = (
    aten.threshold_backward.default if _has("threshold_backward") else public_relu_backward
)


# Tensors and modules --------------------------------------------------------------------------------------------------


def private_version(z: Tensor) -> int | str:
    return z._version


def public_version(z: Tensor) -> int | str:
    return hashlib.blake2b(z.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()


# What becomes another value if somebody changes the tensor in place.
version = private_version if hasattr(Tensor, "_version") else public_version

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Might somebody listen to this module, or change what goes through it? Yes, if this torch does not say."""
    return any(getattr(module, name, True) for name in HOOKS)


PUBLIC_BATCH_NORMS: tuple[type, ...] = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d,
)  # fmt: skip
PUBLIC_NORMS: tuple[type, ...] = (
    *PUBLIC_BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
    nn.LazyInstanceNorm1d, nn.LazyInstanceNorm2d, nn.LazyInstanceNorm3d,
)  # fmt: skip
PUBLIC_DROPOUTS: tuple[type, ...] = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip

PUBLIC_CONVOLUTIONS: tuple[type, ...] = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.LazyConv1d, nn.LazyConv2d, nn.LazyConv3d,
    nn.LazyConvTranspose1d, nn.LazyConvTranspose2d, nn.LazyConvTranspose3d,
)  # fmt: skip

# For `isinstance`: batch normalisation; that and the other layers with statistics; dropout; convolutions.
BATCH_NORMS: Any = getattr(batchnorm, "_BatchNorm", PUBLIC_BATCH_NORMS)
NORMS: Any = getattr(batchnorm, "_NormBase", PUBLIC_NORMS)
DROPOUTS: Any = getattr(dropout, "_DropoutNd", PUBLIC_DROPOUTS)
CONVOLUTIONS: Any = getattr(conv, "_ConvNd", PUBLIC_CONVOLUTIONS)
