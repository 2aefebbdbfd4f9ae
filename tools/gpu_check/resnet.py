"""ResNet-50 in PyTorch, as He et al. have it ("Deep Residual Learning", CVPR 2016, table 1)."""

from typing import Any

import torch

_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # channels, blocks, stride
_EXPANSION = 4


def _normed(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Any:
    """Make a convolution, and batch norm behind it."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        torch.nn.BatchNorm2d(outputs),
    )


class _Bottleneck(torch.nn.Module):  # type: ignore[misc]
    """Three convolutions beside a shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        outputs, relu = channels * _EXPANSION, torch.nn.ReLU
        self.inside = torch.nn.Sequential(
            _normed(inputs, channels, 1), relu(),
            _normed(channels, channels, 3, stride), relu(),
            _normed(channels, outputs, 1),
        )  # fmt: skip
        fits = inputs == outputs and stride == 1
        self.shortcut = torch.nn.Identity() if fits else _normed(inputs, outputs, 1, stride)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.inside(x) + self.shortcut(x))


def resnet50(width: int = 64) -> Any:
    """Make ResNet-50 for 1,000 classes.

    Args:
        width: Channels of the first stage; fewer to try it on a CPU.
    """
    inputs, layers = width, [_normed(3, width, 7, 2), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1)]
    for channels, blocks, stride in _STAGES:
        for block in range(blocks):
            outputs = channels * width // 64
            layers.append(_Bottleneck(inputs, outputs, 1 if block else stride))
            inputs = outputs * _EXPANSION
    ends = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(inputs, 1000))
    return torch.nn.Sequential(*layers, *ends)
