"""Sizes of the parameter tensors of well-known models, counted from their architectures.

Each function gives the number of elements of every trainable tensor, in the order of the forward
pass, from the layer list of the paper or of the public implementation that its docstring names.
Nothing is trained or downloaded. ``PUBLISHED`` has the totals that others state.
"""

# ruff: noqa: INP001 - a script beside its data, no package

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

Tensors = list[int]
"""Elements of each tensor."""


def conv(inputs: int, outputs: int, height: int, width: int = 0, *, bias: bool = False) -> Tensors:
    """A convolution with kernels of *height* x *width*, square unless said otherwise."""
    weight = inputs * outputs * height * (width or height)
    return [weight, outputs] if bias else [weight]


def linear(inputs: int, outputs: int, *, bias: bool = True) -> Tensors:
    """A fully connected layer."""
    return [inputs * outputs, outputs] if bias else [inputs * outputs]


def norm(width: int) -> Tensors:
    """Scale and shift of a batch or layer normalisation."""
    return [width, width]


def chain(*parts: Iterable[int]) -> Tensors:
    """One after another."""
    return [size for part in parts for size in part]


# --- AlexNet and VGG


def _plain_cnn(kernels: Sequence[tuple[int, int]], features: int, classes: int = 1000) -> Tensors:
    """Convolutions with biases as (outputs, kernel), then three fully connected layers."""
    tensors, width = [], 3
    for outputs, kernel in kernels:
        tensors += conv(width, outputs, kernel, bias=True)
        width = outputs
    return tensors + chain(
        linear(width * features, 4096), linear(4096, 4096), linear(4096, classes)
    )


def alexnet() -> Tensors:
    """Krizhevsky, arXiv:1404.5997, as in torchvision: 64-192-384-256-256 filters."""
    return _plain_cnn([(64, 11), (192, 5), (384, 3), (256, 3), (256, 3)], 36)


def alexnet_384() -> Tensors:
    """The same with 384 filters in the fourth layer, as in TensorFlow's CNN benchmarks."""
    return _plain_cnn([(64, 11), (192, 5), (384, 3), (384, 3), (256, 3)], 36)


def _vgg(repeats: Sequence[int]) -> Tensors:
    """Simonyan and Zisserman, arXiv:1409.1556, table 1: 3x3 convolutions, *repeats* per block."""
    widths = (64, 128, 256, 512, 512)
    kernels = [(w, 3) for w, count in zip(widths, repeats, strict=True) for _ in range(count)]
    return _plain_cnn(kernels, 49)


# --- ResNet


def _resnet(repeats: Sequence[int], *, bottleneck: bool) -> Tensors:
    """He et al., arXiv:1512.03385, table 1."""
    tensors, width = chain(conv(3, 64, 7), norm(64)), 64
    for stage, count in enumerate(repeats):
        inner = 64 << stage
        outer = inner * 4 if bottleneck else inner
        for block in range(count):
            if bottleneck:
                tensors += chain(
                    *(conv(width, inner, 1), norm(inner)),
                    *(conv(inner, inner, 3), norm(inner)),
                    *(conv(inner, outer, 1), norm(outer)),
                )
            else:
                tensors += chain(conv(width, inner, 3), norm(inner))
                tensors += chain(conv(inner, inner, 3), norm(inner))
            if block == 0 and width != outer:
                tensors += chain(conv(width, outer, 1), norm(outer))
            width = outer
    return tensors + linear(width, 1000)


# --- Inception and MobileNet


def _cbn(inputs: int, outputs: int, height: int, width: int = 0) -> Tensors:
    return chain(conv(inputs, outputs, height, width), norm(outputs))


def googlenet() -> Tensors:
    """Szegedy et al., arXiv:1409.4842, table 1, as in torchvision: normalised, 3x3 for its 5x5."""
    # 1x1, 3x3 reduced, 3x3, 5x5 reduced, 5x5, pooled and projected
    modules = (
        (64, 96, 128, 16, 32, 32),
        (128, 128, 192, 32, 96, 64),
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
        (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    )
    tensors = chain(_cbn(3, 64, 7), _cbn(64, 64, 1), _cbn(64, 192, 3))
    width = 192
    for one, reduce3, three, reduce5, five, pooled in modules:
        tensors += chain(
            _cbn(width, one, 1),
            *(_cbn(width, reduce3, 1), _cbn(reduce3, three, 3)),
            *(_cbn(width, reduce5, 1), _cbn(reduce5, five, 3)),
            _cbn(width, pooled, 1),
        )
        width = one + three + five + pooled
    return tensors + linear(width, 1000)


def inception3() -> Tensors:
    """Szegedy et al., arXiv:1512.00567, as in torchvision, with its auxiliary classifier."""
    tensors = chain(_cbn(3, 32, 3), _cbn(32, 32, 3), _cbn(32, 64, 3), _cbn(64, 80, 1))
    tensors += _cbn(80, 192, 3)
    for width, pooled in ((192, 32), (256, 64), (288, 64)):
        tensors += chain(
            *(_cbn(width, 64, 1), _cbn(width, 48, 1), _cbn(48, 64, 5)),
            *(_cbn(width, 64, 1), _cbn(64, 96, 3), _cbn(96, 96, 3)),
            _cbn(width, pooled, 1),
        )
    tensors += chain(_cbn(288, 384, 3), _cbn(288, 64, 1), _cbn(64, 96, 3), _cbn(96, 96, 3))
    for inner in (128, 160, 160, 192):
        tensors += chain(
            _cbn(768, 192, 1),
            *(_cbn(768, inner, 1), _cbn(inner, inner, 1, 7), _cbn(inner, 192, 7, 1)),
            *(_cbn(768, inner, 1), _cbn(inner, inner, 7, 1), _cbn(inner, inner, 1, 7)),
            *(_cbn(inner, inner, 7, 1), _cbn(inner, 192, 1, 7)),
            _cbn(768, 192, 1),
        )
    tensors += chain(_cbn(768, 128, 1), _cbn(128, 768, 5), linear(768, 1000))
    tensors += chain(_cbn(768, 192, 1), _cbn(192, 320, 3))
    tensors += chain(_cbn(768, 192, 1), _cbn(192, 192, 1, 7), _cbn(192, 192, 7, 1))
    tensors += _cbn(192, 192, 3)
    for width in (1280, 2048):
        tensors += chain(
            _cbn(width, 320, 1),
            *(_cbn(width, 384, 1), _cbn(384, 384, 1, 3), _cbn(384, 384, 3, 1)),
            *(_cbn(width, 448, 1), _cbn(448, 384, 3)),
            *(_cbn(384, 384, 1, 3), _cbn(384, 384, 3, 1)),
            _cbn(width, 192, 1),
        )
    return tensors + linear(2048, 1000)


def inception4() -> Tensors:
    """Szegedy et al., arXiv:1602.07261, figures 3 to 9."""
    tensors = chain(_cbn(3, 32, 3), _cbn(32, 32, 3), _cbn(32, 64, 3), _cbn(64, 96, 3))
    tensors += chain(_cbn(160, 64, 1), _cbn(64, 96, 3))
    tensors += chain(_cbn(160, 64, 1), _cbn(64, 64, 1, 7), _cbn(64, 64, 7, 1), _cbn(64, 96, 3))
    tensors += _cbn(192, 192, 3)
    for _ in range(4):
        tensors += chain(
            *(_cbn(384, 96, 1), _cbn(384, 64, 1), _cbn(64, 96, 3)),
            *(_cbn(384, 64, 1), _cbn(64, 96, 3), _cbn(96, 96, 3)),
            _cbn(384, 96, 1),
        )
    tensors += chain(_cbn(384, 384, 3), _cbn(384, 192, 1), _cbn(192, 224, 3), _cbn(224, 256, 3))
    for _ in range(7):
        tensors += chain(
            *(_cbn(1024, 384, 1), _cbn(1024, 192, 1)),
            *(_cbn(192, 224, 1, 7), _cbn(224, 256, 7, 1)),
            *(_cbn(1024, 192, 1), _cbn(192, 192, 7, 1), _cbn(192, 224, 1, 7)),
            *(_cbn(224, 224, 7, 1), _cbn(224, 256, 1, 7)),
            _cbn(1024, 128, 1),
        )
    tensors += chain(_cbn(1024, 192, 1), _cbn(192, 192, 3))
    tensors += chain(_cbn(1024, 256, 1), _cbn(256, 256, 1, 7), _cbn(256, 320, 7, 1))
    tensors += _cbn(320, 320, 3)
    for _ in range(3):
        tensors += chain(
            *(_cbn(1536, 256, 1), _cbn(1536, 384, 1)),
            *(_cbn(384, 256, 1, 3), _cbn(384, 256, 3, 1)),
            *(_cbn(1536, 384, 1), _cbn(384, 448, 3, 1), _cbn(448, 512, 1, 3)),
            *(_cbn(512, 256, 1, 3), _cbn(512, 256, 3, 1)),
            _cbn(1536, 256, 1),
        )
    return tensors + linear(1536, 1000)


def mobilenet_v2() -> Tensors:
    """Sandler et al., arXiv:1801.04381, table 2."""
    tensors, width = _cbn(3, 32, 3), 32
    # expansion, outputs, repeats
    blocks = ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1))
    for expansion, outputs, count in blocks:
        for _ in range(count):
            inner = width * expansion
            if expansion > 1:
                tensors += _cbn(width, inner, 1)
            # Depthwise: one kernel for each channel.
            tensors += chain(conv(1, inner, 3), norm(inner), _cbn(inner, outputs, 1))
            width = outputs
    return tensors + chain(_cbn(width, 1280, 1), linear(1280, 1000))


def shufflenet_v2() -> Tensors:
    """Ma et al., arXiv:1807.11164, table 5, 1x."""
    tensors, width = _cbn(3, 24, 3), 24
    for outputs, count in ((116, 4), (232, 8), (464, 4)):
        half = outputs // 2
        # The first unit halves the resolution and has two branches; the others work on one half.
        tensors += chain(conv(1, width, 3), norm(width), _cbn(width, half, 1))
        for unit in range(count):
            inputs = half if unit else width
            tensors += chain(_cbn(inputs, half, 1), conv(1, half, 3), norm(half))
            tensors += _cbn(half, half, 1)
        width = outputs
    return tensors + chain(_cbn(width, 1024, 1), linear(1024, 1000))


# --- Transformers


def _attention(width: int) -> Tensors:
    return chain(*(linear(width, width) for _ in range(4)))


def _bert(width: int, layers: int) -> Tensors:
    """Devlin et al., arXiv:1810.04805: uncased vocabulary of 30,522, with the pooler."""
    tensors = chain([30_522 * width, 512 * width, 2 * width], norm(width))
    for _ in range(layers):
        tensors += chain(_attention(width), norm(width))
        tensors += chain(linear(width, 4 * width), linear(4 * width, width), norm(width))
    return tensors + linear(width, width)


def _gpt2(width: int, layers: int) -> Tensors:
    """Radford et al. 2019, table 2: 50,257 tokens, 1,024 places, output tied to the input."""
    tensors = [50_257 * width, 1024 * width]
    for _ in range(layers):
        tensors += chain(norm(width), linear(width, 3 * width), linear(width, width))
        tensors += chain(norm(width), linear(width, 4 * width), linear(4 * width, width))
    return tensors + norm(width)


def transformer() -> Tensors:
    """Vaswani et al., arXiv:1706.03762, base: 37,000 tokens shared by input and output."""
    width, inner = 512, 2048
    feed = chain(linear(width, inner), linear(inner, width), norm(width))
    encoder = chain(_attention(width), norm(width), feed)
    decoder = chain(_attention(width), norm(width), _attention(width), norm(width), feed)
    return chain([37_000 * width], encoder * 6, decoder * 6)


# --- Recurrent


def _recurrent(inputs: int, hidden: int, gates: int) -> Tensors:
    """One direction of one layer, with two biases as in cuDNN."""
    return [gates * hidden * inputs, gates * hidden * hidden, gates * hidden, gates * hidden]


def lstm_lm() -> Tensors:
    """Word language model of the PyTorch examples: WikiText-2, 33,278 words, 2 x 200 LSTM."""
    return chain(
        [33_278 * 200], _recurrent(200, 200, 4), _recurrent(200, 200, 4), linear(200, 33_278)
    )


# --- Others


def recoder() -> Tensors:
    """An autoencoder over the 20,108 items of ML-20M with one hidden layer of 200.

    The items are counted in Liang et al., arXiv:1802.05814, table 1; the model is that of the
    Recoder library as Gavel's "Recommendation" trains it.
    """
    return [20_108 * 200, 200, 20_108 * 200, 20_108]


def cyclegan() -> Tensors:
    """Zhu et al., arXiv:1703.10593, appendix: 2 generators of 9 blocks, 2 discriminators."""
    generator = chain(
        *(conv(3, 64, 7, bias=True), conv(64, 128, 3, bias=True), conv(128, 256, 3, bias=True)),
        *(conv(256, 256, 3, bias=True) for _ in range(18)),
        *(conv(256, 128, 3, bias=True), conv(128, 64, 3, bias=True), conv(64, 3, 7, bias=True)),
    )
    widths = (3, 64, 128, 256, 512, 1)
    discriminator = chain(*(conv(a, b, 4, bias=True) for a, b in itertools.pairwise(widths)))
    return chain(generator * 2, discriminator * 2)


ARCHITECTURES: dict[str, tuple[Callable[[], Tensors], str]] = {
    "alexnet": (alexnet, "Krizhevsky, arXiv:1404.5997, as in torchvision"),
    "vgg11": (lambda: _vgg((1, 1, 2, 2, 2)), "Simonyan and Zisserman, arXiv:1409.1556, A"),
    "vgg13": (lambda: _vgg((2, 2, 2, 2, 2)), "Simonyan and Zisserman, arXiv:1409.1556, B"),
    "vgg16": (lambda: _vgg((2, 2, 3, 3, 3)), "Simonyan and Zisserman, arXiv:1409.1556, D"),
    "vgg19": (lambda: _vgg((2, 2, 4, 4, 4)), "Simonyan and Zisserman, arXiv:1409.1556, E"),
    "resnet18": (lambda: _resnet((2, 2, 2, 2), bottleneck=False), "He et al., arXiv:1512.03385"),
    "resnet34": (lambda: _resnet((3, 4, 6, 3), bottleneck=False), "He et al., arXiv:1512.03385"),
    "resnet50": (lambda: _resnet((3, 4, 6, 3), bottleneck=True), "He et al., arXiv:1512.03385"),
    "resnet101": (lambda: _resnet((3, 4, 23, 3), bottleneck=True), "He et al., arXiv:1512.03385"),
    "resnet152": (lambda: _resnet((3, 8, 36, 3), bottleneck=True), "He et al., arXiv:1512.03385"),
    "googlenet": (googlenet, "Szegedy et al., arXiv:1409.4842, as in torchvision, main output"),
    "inception3": (inception3, "Szegedy et al., arXiv:1512.00567, as in torchvision"),
    "inception4": (inception4, "Szegedy et al., arXiv:1602.07261"),
    "mobilenet_v2": (mobilenet_v2, "Sandler et al., arXiv:1801.04381"),
    "shufflenet_v2": (shufflenet_v2, "Ma et al., arXiv:1807.11164, 1x"),
    "bert-base": (lambda: _bert(768, 12), "Devlin et al., arXiv:1810.04805, uncased, with pooler"),
    "bert-large": (
        lambda: _bert(1024, 24),
        "Devlin et al., arXiv:1810.04805, uncased, with pooler",
    ),
    "gpt2": (lambda: _gpt2(768, 12), "Radford et al. 2019, Language models are unsupervised"),
    "gpt2-medium": (
        lambda: _gpt2(1024, 24),
        "Radford et al. 2019, Language models are unsupervised",
    ),
    "gpt2-xl": (lambda: _gpt2(1600, 48), "Radford et al. 2019, Language models are unsupervised"),
    "lstm": (lstm_lm, "word language model of the PyTorch examples, WikiText-2"),
    "transformer": (transformer, "Vaswani et al., arXiv:1706.03762, base"),
    "recommendation": (recoder, "autoencoder over ML-20M's items, arXiv:1802.05814, table 1"),
    "cyclegan": (cyclegan, "Zhu et al., arXiv:1703.10593"),
}
"""By the profile's name: its tensors, and what they are from."""

PUBLISHED = {
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "googlenet": 6_624_904,
    "inception3": 27_161_264,
    "inception4": 42_679_816,
    "mobilenet_v2": 3_504_872,
    "shufflenet_v2": 2_278_604,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
}
"""Parameters as torchvision (its models' num_params), timm (Inception-4) and Hugging Face
Transformers (BERT, GPT-2) state them."""

ROUNDED = {"transformer": (65e6, 0.035), "cyclegan": (2 * (11.378e6 + 2.765e6), 1e-3)}
"""Parameters that are stated in round numbers, and how far off they may be: table 3 of the
Transformer's paper ("about 37,000 tokens"), the networks' sizes that CycleGAN's authors' code
prints."""
